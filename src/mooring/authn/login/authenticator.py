"""User tokens, which `mooring login` gets unless it requests a certificate.

Rules kept here:
1. They are JWTs signed with the cluster's service account key, but of the issuer `ISSUER`. No issuer of service account tokens
   can have this name, because it holds a space. So neither this server nor a service that trusts that issuer confuses the two.
2. A bearer token that is not a JWT, or of another issuer, is not mine.
3. Signature, algorithm, key id and times are judged once (`mooring.authn.signedtokens`).
4. The token must be valid for one of the requested audiences.
5. It restores user name, uid, groups and extra as they were at login. The credential id is its own, `JTI=<jti>`. No name in it
   begins with `system:`, because no such token is issued (`mooring.authn.login.exchange`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeGuard

from mooring.api.view import Views
from mooring.authn.authenticator import SECRET
from mooring.authn.claims.mapping import ClaimsRefusedError
from mooring.authn.credentials import Credentials
from mooring.authn.reasons import MALFORMED_CLAIMS, WRONG_AUDIENCE
from mooring.authn.signedtokens import SignedTokens
from mooring.authn.verdict import Accepted, Rejected, Verdict
from mooring.identity import CREDENTIAL_ID, UserInfo
from mooring.pki.jwt.compact import Claims
from mooring.pki.jwt.keyset import KeySet

ISSUER = "mooring login"
CLAIM = "mooring.dev"


def claims_of(user: UserInfo, *, audiences: Iterable[str], now: datetime, lifetime: timedelta, token_id: str) -> Claims:
    """Return the claims of a token for `user`, issued at `now`."""
    issued = int(now.timestamp())
    return {
        "aud": list(audiences),
        "exp": issued + int(lifetime.total_seconds()),
        "iat": issued,
        "iss": ISSUER,
        "jti": token_id,
        "nbf": issued,
        "sub": user.username,
        CLAIM: {
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra.items()},
        },
    }


@dataclass(frozen=True, slots=True)
class _Token:
    """Content of a verified token."""

    user: UserInfo
    audiences: tuple[str, ...]


class UserTokenAuthenticator:
    """Judges bearers that are tokens of a login here."""

    name = "user-token"
    judges = SECRET

    def __init__(self, keys: KeySet) -> None:
        self._tokens = SignedTokens((ISSUER,), keys, _read_claims)

    def replace(self, keys: KeySet) -> None:
        """Verify with these keys from now on, and no others."""
        self._tokens.replace(keys)

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        token = self._tokens.judge(credentials.bearer, now)
        if not isinstance(token, _Token):
            return token
        valid_for = tuple(one for one in token.audiences if one in audiences) if audiences else token.audiences
        return Accepted(token.user, valid_for) if valid_for else Rejected(WRONG_AUDIENCE, token.user.username)


def _read_claims(claims: Claims) -> tuple[_Token, datetime]:
    """Return the content of the claims, and the time until which it may be remembered. Raises ClaimsRefusedError."""
    private = claims.get(CLAIM)
    name, token_id, audiences = claims.get("sub"), claims.get("jti"), claims.get("aud")
    if not isinstance(private, dict) or not isinstance(name, str) or not name or not isinstance(token_id, str):
        raise _malformed_error()
    uid, groups, extra = private.get("uid"), private.get("groups"), private.get("extra")
    if (
        not isinstance(uid, str)
        or not _is_text_list(groups)
        or not _is_text_list(audiences)
        or not isinstance(extra, dict)
    ):
        raise _malformed_error()
    if not all(_is_text_list(values) for values in extra.values()):
        raise _malformed_error()
    if any(one.startswith("system:") for one in (name, *groups)):
        raise _malformed_error()
    extra_values = {key: tuple(values) for key, values in extra.items()} | {CREDENTIAL_ID: (f"JTI={token_id}",)}
    token = _Token(UserInfo(name, uid, tuple(groups), MappingProxyType(extra_values)), tuple(audiences))
    return token, datetime.fromtimestamp(claims["exp"], UTC)  # the minute of leeway after it is verified each time


def _malformed_error() -> ClaimsRefusedError:
    return ClaimsRefusedError(MALFORMED_CLAIMS, "")


def _is_text_list(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
