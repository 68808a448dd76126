"""The JWTs that the cluster signed itself: the part of judging one that is the same whatever the token says.

Rules kept here (docs/protocol/service-account-tokens.md#bound-tokens):
1. A bearer that names no issuer of ours is not mine. The issuer is read unverified for that only, and once: most JWTs are of
   somebody else, because each of them passes every authenticator of this kind. A bearer that names an issuer of ours is judged here
   whatever its form, so that none of them reaches the webhook: without a signature, with `none` as its algorithm, with an
   unreadable header.
2. Signature, algorithm, key id and times are judged by `mooring.pki.jwt.token`; claims that do not say what they must are
refused. So is a registered claim of a wrong type, also one that nobody reads here.
3. What was verified is remembered until the end of the token, or until the keys are others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Generic, TypeVar

from mooring.authn.claims.mapping import ClaimsRefusedError
from mooring.authn.verdict import NotMine, Rejected
from mooring.authn.verifiedtokens import MAX_REMEMBERED, VerifiedTokens
from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt.claims import audiences, check_texts
from mooring.pki.jwt.compact import Claims, claimed_issuer
from mooring.pki.jwt.keyset import KeySet
from mooring.pki.jwt.token import verify_token

T = TypeVar("T")

_NOT_MINE = NotMine()


class SignedTokens(Generic[T]):
    """What bearers of some issuers say.

    `read` makes that of verified claims, with the moment until which it may be remembered (None: not at all); it raises
    ClaimsRefusedError when they do not say it right.
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
        """Believe these keys from now on, and no others."""
        self._keys = keys
        self._verified.clear()

    def judge(self, raw: bytes, now: datetime) -> T | NotMine | Rejected:
        """What a bearer says, or why it says nothing here."""
        return self._verified.get(raw, now) or self._strangers.get(raw, now) or self._verify(raw, now)

    def _verify(self, raw: bytes, now: datetime) -> T | NotMine | Rejected:
        text = raw.decode("utf-8", "replace")
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
