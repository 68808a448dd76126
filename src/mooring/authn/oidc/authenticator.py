"""ID tokens of OpenID Connect providers, and other signed tokens of issuers that the operator names.

Rules kept here (docs/protocol/authentication.md#caching, docs/protocol/openid-connect.md#verification):
1. A bearer token that names no configured issuer is not mine. The issuer is read unverified for this only. A token that names one
   is judged here in any form: without a signature, too long, with an unreadable header.
2. Checks without a key come first (`mooring.authn.oidc.idtoken`), then the signature, then the claims
   (`mooring.authn.claims.mapping`).
3. A token of an issuer without known keys is rejected. A signature that no known key verifies makes the server fetch the keys,
   once for all waiting requests and not again for a while (`mooring.authn.oidc.issuer`). Then the token is judged again.
4. Distributed groups are fetched (`mooring.authn.oidc.distributedclaims`) and believed for TTL, as in kube-apiserver.
5. An accepted user is remembered by the SHA-256 of the token until the token expires, in a bounded table. A change of the
   issuer's keys or of the configuration clears it, and so does a clock that went back.
6. What was accepted ends with the key that signed the token, once the issuer's keys are known without it, and with a change of the
   configuration.
7. The user is valid for this server, as if the token named no audience: its audiences are the provider's names for its clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from mooring.api.view import Views
from mooring.authn.authenticator import SECRET
from mooring.authn.claims.mapping import Claim, ClaimsRefusedError, identify
from mooring.authn.credentials import Credentials
from mooring.authn.oidc.distributedclaims import ClaimSource, fetch, source_of
from mooring.authn.oidc.idtoken import MAX_HEADER, MAX_TOKEN, check
from mooring.authn.oidc.issuer import REFRESH_SECONDS, JwtIssuer
from mooring.authn.oidc.provider import Published, renew
from mooring.authn.oidc.reasons import KEYS_NOT_FETCHED, NOT_READY
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.verifiedtokens import MAX_REMEMBERED, VerifiedTokens
from mooring.identity import UserInfo
from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt.compact import Claims, claimed_issuer, decode_unverified
from mooring.trust.httpexchange import Exchange
from mooring.trust.oidc.discovery import ProviderError

DISTRIBUTED_TTL = timedelta(seconds=10)
FETCH_SECONDS = 10.0
"""Seconds for a distributed claim: the source, and perhaps the discovery of its issuer."""
_ALIASES = {"https://accounts.google.com": "accounts.google.com"}
"""An issuer that does not write its own name in full in every token."""
_NOT_MINE = NotMine()
_NO_KEY = b"no known key"
"""Basis of a verdict about a signature that no known key verifies: that of no acceptance."""


@dataclass(frozen=True, slots=True)
class _Known:
    """An accepted user, with the issuer and the number of changes of its keys."""

    user: UserInfo
    issuer: JwtIssuer
    changes: int


class OidcAuthenticator:
    """Judges bearers that are JWTs of a configured issuer."""

    name = "oidc"
    judges = SECRET

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._issuers: dict[str, JwtIssuer] = {}
        self._verified: VerifiedTokens[_Known] = VerifiedTokens(max_remembered)
        self._configurations = 0

    @property
    def issuers(self) -> tuple[JwtIssuer, ...]:
        return tuple(dict.fromkeys(self._issuers.values()))

    def replace(self, issuers: Iterable[JwtIssuer]) -> None:
        """Use these issuers and no others."""
        found = {issuer.config.url: issuer for issuer in issuers}
        self._issuers = found | {_ALIASES[url]: one for url, one in found.items() if url in _ALIASES}
        self._verified.clear()
        self._configurations += 1

    @property
    def _basis(self) -> bytes:
        return self._configurations.to_bytes(8)

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        if credentials.bearer is None or not self._issuers:
            return _NOT_MINE
        raw = credentials.bearer.reveal()
        known = self._verified.get(raw, now)
        if known is not None and known.changes == known.issuer.changes and known.issuer.known(now) is not None:
            return Accepted(known.user, basis=self._basis)
        text = raw.decode("utf-8", "surrogateescape")
        issuer = self._issuers.get(claimed_issuer(text))
        if issuer is None:
            return _NOT_MINE
        try:
            header, claims = decode_unverified(text, MAX_HEADER, MAX_TOKEN)
            return self._judge(issuer, text, header, claims, now, raw)
        except (TokenRefusedError, ClaimsRefusedError) as error:
            return Rejected(error.code, f"issuer {issuer.config.url}: {error}")

    def _judge(
        self,
        issuer: JwtIssuer,
        text: str,
        header: dict[str, Any],
        claims: Claims,
        now: datetime,
        raw: bytes,
    ) -> FirstVerdict:
        expires = check(header, claims, issuer.config.expected, now)
        if issuer.published is None:
            return Rejected(NOT_READY, f"issuer {issuer.config.url}: {issuer.problem}")
        try:
            published = issuer.known(now)
            if published is None:  # the provider was down for long, or this machine slept
                raise TokenRefusedError("unknown-key", "what it published last is too old to be believed")
            published.keys.verify(text, header)
        except TokenRefusedError:
            if not issuer.may_fetch(now):
                raise
            return Deferred(
                exchange=partial(_refetch_keys, issuer, issuer.published),
                key=issuer.config.url.encode(),
                deadline=REFRESH_SECONDS,
                recognised=True,
                basis=_NO_KEY,
            )
        groups = issuer.config.identification.groups
        source = source_of(groups.name, claims) if isinstance(groups, Claim) else None
        if source is None:
            user = identify(claims, issuer.config.identification)
            self._remember(raw, user, issuer, now, expires)
            return Accepted(user, basis=self._basis)

        def found(verdict: Verdict, then: datetime) -> None:
            if isinstance(verdict, Accepted):
                self._remember(raw, verdict.user, issuer, then, min(expires, then + DISTRIBUTED_TTL))

        return Deferred(
            exchange=partial(_fetch_groups, issuer, claims, source, self._basis),
            key=hashlib.sha256(raw).digest(),
            deadline=FETCH_SECONDS,
            on_verdict=found,
            recognised=True,
            basis=self._basis,
        )

    def _remember(self, raw: bytes, user: UserInfo, issuer: JwtIssuer, now: datetime, until: datetime) -> None:
        if self._issuers.get(issuer.config.url) is issuer:  # else the configuration changed while somebody was asked
            self._verified.put(raw, _Known(user, issuer, issuer.changes), now, until)


def _refetch_keys(issuer: JwtIssuer, before: Published, now: datetime) -> Exchange[Verdict | None]:
    """Fetch the keys of an issuer because of a token. None: judge the token again."""
    try:
        issuer.learn((yield from renew(issuer.provider, before.jwks_uri)), now)
    except ProviderError as error:
        issuer.fail(str(error))
        return Rejected(KEYS_NOT_FETCHED, f"issuer {issuer.config.url}: {error}")
    finally:
        issuer.fetch_ended()
    return None


def _fetch_groups(
    issuer: JwtIssuer, claims: Claims, source: ClaimSource, basis: bytes, now: datetime
) -> Exchange[Verdict | None]:
    try:
        groups = yield from fetch(source, issuer, now)
        return Accepted(identify({**claims, source.name: groups}, issuer.config.identification), basis=basis)
    except ClaimsRefusedError as error:
        return Rejected(error.code, f"issuer {issuer.config.url}: {error}")
