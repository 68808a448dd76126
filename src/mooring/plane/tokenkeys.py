"""The files of keys that service account tokens are signed and verified with, followed while the server runs.

Rules kept here (docs/protocol/service-account-tokens.md#keys-and-flags):
* A key is taken out of service by its files alone: as soon as a file that held it holds it no more, and no other does, its tokens
  are refused, on open connections too. A key that was added verifies from the next request on.
* When the signing file changes, the next token is signed with the new key. The old one verifies only as long as a file of keys
  to verify with holds it: put it there before (docs/authentication/service-accounts.md).
* A file that cannot be used changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from mooring.authn.authenticator import Authenticator
from mooring.authn.login.authenticator import UserTokenAuthenticator
from mooring.authn.serviceaccount.authenticator import ServiceAccountAuthenticator
from mooring.authn.serviceaccount.legacy import LegacyServiceAccountAuthenticator
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.jwt.token import TokenKeys, TokenSigner
from mooring.pki.keys import PublicKey, load_private_key, load_public_keys
from mooring.plane.keystore import KeyStore
from mooring.plane.reloading import Apply, Reloading

log = logging.getLogger("mooring.authentication")

_JUDGES = (LegacyServiceAccountAuthenticator, ServiceAccountAuthenticator, UserTokenAuthenticator)


class FollowedTokenKeys:
    """The keys of one server: `keys` is what they are now."""

    def __init__(self, key_store: KeyStore, issuer: str, reloading: Reloading) -> None:
        """Raises ConfigError for files that cannot be used."""
        flag = "service-account-signing-key-file"
        try:
            signer = TokenSigner(key_store.token_key, issuer)
            flag = "service-account-key-file"
            self.keys = TokenKeys(signer, key_store.token_keys)
        except PkiError as error:
            raise ConfigError(f"{flag}: {error}") from None
        self._issuer = issuer
        self._by_file: dict[str, tuple[PublicKey, ...]] = {}
        self._authenticators: tuple[Authenticator, ...] = ()
        for path in key_store.token_key_files:
            self._by_file[path] = key_store.token_keys  # until all were read
        for path in key_store.token_key_files:
            reloading.add(path, self._verifying(path))
        if key_store.token_signing_file:
            reloading.add(key_store.token_signing_file, self._signing(key_store.token_signing_file))

    def follow_with(self, authenticators: Iterable[Authenticator]) -> None:
        """These verify with what changes from now on."""
        self._authenticators = tuple(authenticators)

    def _verifying(self, path: str) -> Apply:
        def apply(data: bytes) -> None:
            try:
                by_file = {**self._by_file, path: load_public_keys(data)}
                self._use(self.keys.signer, by_file)
            except PkiError as error:
                raise ConfigError(f"service-account-key-file: {path}: {error}") from None
            self._by_file = by_file

        return apply

    def _signing(self, path: str) -> Apply:
        def apply(data: bytes) -> None:
            try:
                self._use(TokenSigner(load_private_key(data), self._issuer), self._by_file)
            except PkiError as error:
                raise ConfigError(f"service-account-signing-key-file: {path}: {error}") from None

        return apply

    def _use(self, signer: TokenSigner, by_file: dict[str, tuple[PublicKey, ...]]) -> None:
        before = self.keys.key_ids
        self.keys.replace(signer, (key for keys in by_file.values() for key in keys))
        for one in self._authenticators:
            if isinstance(one, _JUDGES):
                one.replace(self.keys.verifying)
        now = self.keys.key_ids
        if not self._authenticators:
            return  # of what is read at start nothing is news
        log.info(
            "service account tokens are signed with the key %s, and verified with %s", signer.key_id, ", ".join(now)
        )
        for gone in before:
            if gone not in now:
                log.warning("service account tokens signed with the key %s are refused from now on", gone)
