"""Runtimes of the small authenticators: each follows the files, keys or CAs that its authenticator judges by."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from mooring.authn import verdictcache
from mooring.authn.anonymous import Anonymous, AnonymousAccess, AnonymousSettings
from mooring.authn.bootstraptoken import BootstrapTokenAuthenticator, BootstrapTokenSettings
from mooring.authn.chain import BASIC
from mooring.authn.host import ALWAYS, ONCE_A_SERVER, Configured, Files, Gauge, Host, RetirableTarget, Running
from mooring.authn.joinrule import JoinRuleAuthenticator
from mooring.authn.keystone import TARGET, KeystoneAuthenticator, KeystoneSettings, tokens_url
from mooring.authn.login import LoginSettings, UserTokenAuthenticator
from mooring.authn.passwordfile import PasswordFileAuthenticator, PasswordFileSettings
from mooring.authn.recovery import OFF, RecoveryAuthenticator, RecoverySettings
from mooring.authn.requestheader import RequestHeaderAuthenticator
from mooring.authn.requestheadersettings import RequestHeaderSettings
from mooring.authn.serviceaccount import LegacyServiceAccountAuthenticator, ServiceAccountAuthenticator
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.authn.tokenfile import TokenFileAuthenticator, TokenFileSettings
from mooring.authn.verdictcache import KEY_BYTES, CacheSettings, VerdictCache
from mooring.authn.x509 import ClientCertificateAuthenticator, ClientCertificateSettings, with_crls
from mooring.errors import ConfigError
from mooring.observed import Observed
from mooring.pki.errors import PkiError
from mooring.pki.jwt.keyset import KeySet
from mooring.pki.jwt.token import TokenKeys, TokenSigner
from mooring.pki.keys import PrivateKey, PublicKey, load_private_key
from mooring.pki.x509.bundles import load_public_keys
from mooring.pki.x509.verify import ClientTrust
from mooring.settings.serving import AuthorizationSettings
from mooring.trust.httpsurl import named_cas

# Runs the authenticator of requests without a credential.

log = logging.getLogger("mooring.authentication")


def build_anonymous(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None when every request needs a credential.

    The AuthenticationConfiguration may decide in place of `--anonymous-auth`. The mode AlwaysAllow turns anonymous access off in
    every case, because it would let every caller do everything, and a warning says so where anonymous access was asked for.
    """
    access = host.configuration.anonymous or AnonymousAccess(config[AnonymousSettings].enabled)
    if access.enabled and config[AuthorizationSettings].always_allow:
        if host.configuration.anonymous or config[AnonymousSettings].anonymous_auth:
            log.warning(
                "anonymous-auth: anonymous access is off, because authorization-mode AlwaysAllow would let every caller do "
                "everything; choose other authorizers",
                extra=ONCE_A_SERVER,
            )
        return None
    if not access.enabled:
        return None
    found = Anonymous(replace(access, networks=config[AnonymousSettings].anonymous_allow_cidr))
    return Running(authenticators=(found,), turned_on_by="anonymous-auth")


# Runs the authenticator of bootstrap tokens, which reads Secrets from the views and follows nothing.


def build_bootstraptoken(config: Configured, host: Host) -> Running | None:
    """Return the authenticator of bootstrap tokens, unless it is turned off."""
    if not config[BootstrapTokenSettings].enable_bootstrap_token_auth:
        return None
    return Running(authenticators=(BootstrapTokenAuthenticator(host.last_uses),))


# Runs the authenticator of join rules, which reads the rules from the views, and fetches the keys of their issuers.

JOIN_RULE_TARGETS = "join-rule/"
"""Prefix of the names of targets: one for each issuer and CA that a rule has named."""


def build_joinrule(config: Configured, host: Host) -> Running:
    """Return the authenticator."""
    names: dict[tuple[str, bytes], str] = {}

    def target_for(url: str, ca_pem: bytes) -> str:
        if (url, ca_pem) not in names:
            target = host.connect.https(url, ca_pem)
            name = names[url, ca_pem] = f"{JOIN_RULE_TARGETS}{len(names) + 1}"
            host.targets[name] = target
        return names[url, ca_pem]

    async def close() -> None:
        for name in names.values():
            await host.targets.pop(name).close()

    authenticator = JoinRuleAuthenticator(target_for, host.credentials_changed)
    unready = Gauge(
        "mooring_join_rule_issuers_unready",
        "Issuers of join rules that did not give their keys when they were last asked.",
        lambda: sum(bool(issuer.problem) for issuer in authenticator.issuers),
    )
    return Running(authenticators=(authenticator,), gauges=(unready,), close=close)


# Runs the authenticator of user tokens, which follows the keys of the cluster's tokens.


def build_login(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None when `--login-ttl` is zero, which turns logins off."""
    if not config[LoginSettings].login_ttl:
        return None
    authenticator = UserTokenAuthenticator(host.token_keys.verifying)
    host.token_keys.subscribe(authenticator.replace)
    return Running(authenticators=(authenticator,), turned_on_by="login-ttl")


# Follows a CSV file of users.
#
# Rules kept here (docs/protocol/authentication.md; better than kube-apiserver, which reads such files once):
# * A file that is wrong stops the start, and is not used when it becomes wrong later. The error names the flag, the file and the
#   line, and no content of the file.
# * Each reading logs the lines that have no effect, and a warning when other users of this machine can read or change the file.

MAX_WARNINGS = 20
"""Warnings that one reading logs. Beyond that, their number is logged."""


class Table(Protocol):
    """The content of a file, and warnings for its owner."""

    @property
    def warnings(self) -> tuple[str, ...]: ...


T = TypeVar("T", bound=Table)


def follow(key: str, path: str, read: Callable[[bytes], T], take: Callable[[T], None], files: Files) -> None:
    """Give `take` what `read` makes of the file at `path`, now and after each change. `key` is the flag that names the file.

    Raises ConfigError.
    """

    def prepare(data: bytes) -> Callable[[], None]:
        try:
            table = read(data)
        except ConfigError as error:
            raise ConfigError(f"{key}: {path}: {error}") from None
        return partial(use, table)

    def use(table: T) -> None:
        take(table)
        for warning in table.warnings[:MAX_WARNINGS]:
            log.warning("%s: %s: %s", key, path, warning)
        if len(table.warnings) > MAX_WARNINGS:
            log.warning("%s: %s: %d more warnings", key, path, len(table.warnings) - MAX_WARNINGS)
        files.warn_if_exposed(path)

    prepare(files.follow_prepared(path, prepare))()


# Runs the authenticator of `--basic-auth-file`, which is followed while the server runs.

BASIC_AUTH_FLAG = "basic-auth-file"


def build_passwordfile(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None without a file. Raises ConfigError."""
    path = config[PasswordFileSettings].basic_auth_file
    if not path:
        return None
    remembered = VerdictCache(host.entropy(verdictcache.KEY_BYTES), config[CacheSettings].authentication_cache_ttl)
    authenticator = PasswordFileAuthenticator(host.entropy(KEY_BYTES), remembered)
    follow(BASIC_AUTH_FLAG, path, authenticator.read, authenticator.take, host.files)
    return Running(authenticators=(authenticator,), turned_on_by=BASIC_AUTH_FLAG, schemes={BASIC: "Basic"})


# Runs the authenticator of `--token-auth-file`, which is followed while the server runs.

TOKEN_AUTH_FLAG = "token-auth-file"  # noqa: S105 - the name of a flag


def build_tokenfile(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None without a file. Raises ConfigError."""
    path = config[TokenFileSettings].token_auth_file
    if not path:
        return None
    authenticator = TokenFileAuthenticator(host.entropy(KEY_BYTES))
    follow(TOKEN_AUTH_FLAG, path, authenticator.read, authenticator.take, host.files)
    return Running(authenticators=(authenticator,), turned_on_by=TOKEN_AUTH_FLAG)


# Runs the authenticator of recovering nodes, which follows the CAs of clients.
#
# Rules kept here: CAs that a rollover has retired verify here, and nowhere else, so that a machine that was off throughout comes
# back.


def build_recovery(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None with `--node-recovery=off`."""
    if config[RecoverySettings].node_recovery == OFF:
        return None
    cas = host.client_cas

    def clients() -> ClientTrust:
        return ClientTrust(cas.clients, cas.issuing, cas.distrusted, cas.forgotten)

    def retired() -> ClientTrust:
        gone = (one for one in cas.distrusted if one not in cas.retired)
        return ClientTrust(cas.retired, cas.retired, gone, cas.forgotten)

    authenticator = RecoveryAuthenticator(clients(), with_crls(cas.crls), retired())
    cas.subscribe(lambda: authenticator.replace(clients(), retired()))
    return Running(authenticators=(authenticator,), turned_on_by="node-recovery")


# Runs the authenticator of authenticating proxies, which follows the CAs of proxies.


def build_requestheader(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None without `--requestheader-client-ca-file`."""
    settings = config[RequestHeaderSettings]
    names = settings.names
    if names is None:
        return None
    cas = host.client_cas
    authenticator = RequestHeaderAuthenticator(
        ClientTrust(cas.proxies, (), cas.distrusted, cas.forgotten),
        names,
        settings.requestheader_allowed_names,
        with_crls(cas.crls),
    )
    cas.subscribe(lambda: authenticator.replace(ClientTrust(cas.proxies, (), cas.distrusted, cas.forgotten)))
    return Running(authenticators=(authenticator,), turned_on_by="requestheader-client-ca-file")


# Runs the authenticator of client certificates, which follows the CAs of clients.


def build_x509(config: Configured, host: Host) -> Running:
    """Return the authenticator of client certificates, which is always on."""
    cas = host.client_cas
    trust = ClientTrust(cas.clients, cas.issuing, cas.distrusted, cas.forgotten)
    authenticator = ClientCertificateAuthenticator(trust, checks=with_crls(cas.crls))
    cas.subscribe(lambda: authenticator.replace(ClientTrust(cas.clients, cas.issuing, cas.distrusted, cas.forgotten)))
    replaced = bool(config[ClientCertificateSettings].client_ca_file)
    return Running(authenticators=(authenticator,), turned_on_by="client-ca-file" if replaced else ALWAYS)


# Runs the authenticators of service account tokens, and follows the files of the keys that sign and verify those tokens.
#
# Rules kept here (docs/protocol/service-account-tokens.md#keys-and-flags):
# * Tokens of a key are rejected, on open connections too, as soon as no followed file holds the key. An added key verifies from
#   the next request on.
# * After a change of the signing file, the next token is signed with the new key. The old key verifies only while a file of
#   verification keys holds it (docs/authentication/service-accounts.md).
# * A file that cannot be used changes nothing.

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


# Runs the authenticator of Keystone: it connects to the service, and follows the CA that verifies it.
#
# Rules kept here (docs/protocol/authentication.md#removed-authenticators): TLS is always verified, under `--keystone-ca-file` or
# the machine's roots. A new CA clears the memory of accepted passwords. Requests under way still receive their responses.


def build_keystone(config: Configured, host: Host) -> Running | None:
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
