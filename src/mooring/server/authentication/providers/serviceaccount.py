"""Runs the authenticators of service account tokens, and follows the files of the keys that sign and verify those tokens.

Rules kept here (docs/protocol/service-account-tokens.md#keys-and-flags):
* Tokens of a key are rejected, on open connections too, as soon as no followed file holds the key. An added key verifies from the
  next request on.
* After a change of the signing file, the next token is signed with the new key. The old key verifies only while a file of
  verification keys holds it (docs/authentication/service-accounts.md).
* A file that cannot be used changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from mooring.authn.host import Configured, Files, Host, Running
from mooring.authn.serviceaccount import LegacyServiceAccountAuthenticator, ServiceAccountAuthenticator
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.errors import ConfigError
from mooring.observed import Observed
from mooring.pki.errors import PkiError
from mooring.pki.jwt.keyset import KeySet
from mooring.pki.jwt.token import TokenKeys, TokenSigner
from mooring.pki.keys import PrivateKey, PublicKey, load_private_key
from mooring.pki.x509.publickeys import load_public_keys

log = logging.getLogger("mooring.authentication")

SIGNING_KEY, VERIFYING_KEY = "service-account-signing-key-file", "service-account-key-file"


def build_legacy(config: Configured, host: Host) -> Running:
    """Return the authenticator of tokens that Secrets hold, which is always on."""
    settings = config[ServiceAccountSettings]
    authenticator = LegacyServiceAccountAuthenticator(
        host.token_keys.verifying, settings.audiences, host.last_uses, settings.service_account_lookup
    )
    host.token_keys.subscribe(authenticator.replace)
    return Running(authenticators=(authenticator,))


def build_bound(config: Configured, host: Host) -> Running:
    """Return the authenticator of bound tokens, which is always on."""
    issuers = config[ServiceAccountSettings].service_account_issuer
    authenticator = ServiceAccountAuthenticator(issuers, host.token_keys.verifying)
    host.token_keys.subscribe(authenticator.replace)
    return Running(authenticators=(authenticator,))


class FollowedTokenKeys(Observed[[KeySet]]):
    """The keys of one server. `keys` is what they are now."""

    def __init__(
        self,
        signing_key: PrivateKey,
        verifying_keys: Sequence[PublicKey],
        *,
        issuer: str,
        signing_file: str,
        verifying_files: Sequence[str],
        files: Files,
    ) -> None:
        """The keys were read from the files before, and are read again after a change.

        Raises ConfigError for keys that cannot be used.
        """
        key = SIGNING_KEY
        try:
            signer = TokenSigner(signing_key, issuer)
            key = VERIFYING_KEY
            self.keys = TokenKeys(signer, verifying_keys)
        except PkiError as error:
            raise ConfigError(f"{key}: {error}") from None
        self._issuer = issuer
        super().__init__()
        self._by_file: Mapping[str, tuple[PublicKey, ...]] = {
            path: self._read_verifying(path, files.follow(path, self._changing_verifying(path)))
            for path in verifying_files
        }
        if signing_file:
            files.follow(signing_file, self._changing_signer(signing_file))

    @property
    def verifying(self) -> KeySet:
        """The keys that verify now."""
        return self.keys.verifying

    def _read_verifying(self, path: str, data: bytes) -> tuple[PublicKey, ...]:
        try:
            return load_public_keys(data)
        except PkiError as error:
            raise ConfigError(f"{VERIFYING_KEY}: {path}: {error}") from None

    def _changing_verifying(self, path: str) -> Callable[[bytes], None]:
        def change(data: bytes) -> None:
            by_file = {**self._by_file, path: self._read_verifying(path, data)}
            try:
                self._replace(self.keys.signer, by_file)
            except PkiError as error:
                raise ConfigError(f"{VERIFYING_KEY}: {path}: {error}") from None
            self._by_file = by_file

        return change

    def _changing_signer(self, path: str) -> Callable[[bytes], None]:
        def change(data: bytes) -> None:
            try:
                self._replace(TokenSigner(load_private_key(data), self._issuer), self._by_file)
            except PkiError as error:
                raise ConfigError(f"{SIGNING_KEY}: {path}: {error}") from None

        return change

    def _replace(self, signer: TokenSigner, by_file: Mapping[str, tuple[PublicKey, ...]]) -> None:
        before = self.keys.key_ids
        self.keys.replace(signer, (key for keys in by_file.values() for key in keys))
        self.notify(self.keys.verifying)
        now = self.keys.key_ids
        log.info(
            "service account tokens are signed with the key %s, and verified with %s", signer.key_id, ", ".join(now)
        )
        for gone in before:
            if gone not in now:
                log.warning("service account tokens signed with the key %s are refused from now on", gone)
