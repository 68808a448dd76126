"""Runs the authenticator of Keystone: it connects to the service, and follows the CA that verifies it.

Rules kept here (docs/protocol/authentication.md#removed-authenticators): TLS is always verified, under `--keystone-ca-file` or the
machine's roots. A new CA clears the memory of accepted passwords. Requests under way still receive their responses.
"""

from __future__ import annotations

from mooring.authn.chain import BASIC
from mooring.authn.host import Configured, Host, RetirableTarget, Running
from mooring.authn.keystone import TARGET, KeystoneAuthenticator, KeystoneSettings, tokens_url
from mooring.authn.verdictcache import KEY_BYTES, CacheSettings, VerdictCache
from mooring.errors import ConfigError
from mooring.trust.cafile import named_cas


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None without `--keystone-url`. Raises ConfigError for a CA that cannot be used."""
    settings = config[KeystoneSettings]
    if not settings.keystone_url:
        return None
    remembered = VerdictCache(host.entropy(KEY_BYTES), config[CacheSettings].authentication_cache_ttl)
    authenticator = KeystoneAuthenticator(settings.keystone_user_domain, remembered)
    connection = _Connection(settings, authenticator, host)
    return Running(
        authenticators=(authenticator,),
        turned_on_by="keystone-url",
        schemes={BASIC: "Basic"},
        close=connection.close,
    )


class _Connection:
    """The connection to Keystone, under the CA that is in force."""

    def __init__(self, settings: KeystoneSettings, authenticator: KeystoneAuthenticator, host: Host) -> None:
        self._url = tokens_url(settings.keystone_url)
        self._authenticator = authenticator
        self._host = host
        self._path = settings.keystone_ca_file
        self._target = self._connect(host.files.follow(self._path, self._change_ca) if self._path else b"")

    async def close(self) -> None:
        """Close the connections."""
        await self._target.close()

    def _connect(self, ca_pem: bytes) -> RetirableTarget:
        try:
            if self._path:
                ca_pem = named_cas(ca_pem, self._path)
            target = self._host.connect.https(self._url, ca_pem)
        except ConfigError as error:
            raise ConfigError(f"keystone-ca-file: {error}") from None
        self._host.targets[TARGET] = target
        return target

    def _change_ca(self, ca_pem: bytes) -> None:
        old, self._target = self._target, self._connect(ca_pem)
        self._authenticator.forget()
        old.retire()
