"""JWTs that the cluster signed itself: the checks that all of them share.

Rules kept here (docs/protocol/service-account-tokens.md#bound-tokens):
1. A bearer token that names no issuer of this cluster is not mine. The issuer is read unverified for this only, and once, because
   each foreign JWT passes every authenticator of this kind. A token that names an issuer of this cluster is judged here in any
   form, so that none reaches the webhook: without a signature, with the algorithm `none`, with an unreadable header.
2. `mooring.pki.jwt.token` judges signature, algorithm, key id and times. Claims with wrong content are rejected, and so is a
   registered claim of a wrong type, even one that is not read.
3. A verified token is remembered until it ends, or until the keys change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Generic, TypeVar

from mooring.authn.claims import ClaimsRefusedError
from mooring.authn.verdict import NotMine, Rejected
from mooring.authn.verdictcache import MAX_REMEMBERED, VerifiedTokens
from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt.keyset import KeySet
from mooring.pki.jwt.token import Claims, audiences, check_texts, claimed_issuer, verify_token
from mooring.secret import Secret

T = TypeVar("T")

_NOT_MINE = NotMine()


class SignedTokens(Generic[T]):
    """Verifies bearer tokens of some issuers.

    `read` turns verified claims into content, with the time until which it may be remembered (None: not at all). It raises
    ClaimsRefusedError for claims with wrong content.
    """

    def __init__(
        self,
        issuers: Collection[str],
        keys: KeySet,
        read: Callable[[Claims], tuple[T, datetime | None]],
        *,
        require_expiry: bool = True,
        max_remembered: int = MAX_REMEMBERED,
    ) -> None:
        self._issuers = tuple(issuers)
        self._keys = keys
        self._read = read
        self._require_expiry = require_expiry
        self._verified: VerifiedTokens[T] = VerifiedTokens(max_remembered)
        self._strangers: VerifiedTokens[NotMine] = VerifiedTokens(max_remembered)

    def replace(self, keys: KeySet) -> None:
        """Verify with these keys from now on, and no others."""
        self._keys = keys
        self._verified.clear()

    def judge(self, bearer: Secret | None, now: datetime) -> T | NotMine | Rejected:
        """Return the content of a bearer token, or a verdict without content."""
        if bearer is None:
            return _NOT_MINE
        raw = bearer.reveal()
        return self._verified.get(raw, now) or self._strangers.get(raw, now) or self._verify(raw, now)

    def _verify(self, raw: bytes, now: datetime) -> T | NotMine | Rejected:
        text = raw.decode("utf-8", "surrogateescape")
        if "." not in text:
            return _NOT_MINE
        if claimed_issuer(text) not in self._issuers:
            self._strangers.put(raw, _NOT_MINE, now)
            return _NOT_MINE
        try:
            claims = verify_token(text, self._keys, now, issuers=self._issuers, require_expiry=self._require_expiry)
            says, until = self._read(claims)
            audiences(claims)
            check_texts(claims, "sub", "jti")
        except (TokenRefusedError, ClaimsRefusedError) as error:
            return Rejected(error.code, str(error))
        if until is not None:
            self._verified.put(raw, says, now, until)
        return says
