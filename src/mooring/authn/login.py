"""Logins at this server: the tokens that it gives to people, and their verification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, ClassVar, TypeGuard

from mooring.api.view import Views
from mooring.authn.claims import ClaimsRefusedError
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.reasons import MALFORMED_CLAIMS, WRONG_AUDIENCE
from mooring.authn.signedtokens import SignedTokens
from mooring.authn.verdict import Accepted, Rejected, Verdict
from mooring.identity import AUTHENTICATED, CREDENTIAL_ID, UserInfo
from mooring.pki.jwt.keyset import KeySet
from mooring.pki.jwt.token import Claims
from mooring.settings.declaration import BOOLEAN, DURATION, Settings, duration_within, setting

MIN_TTL = timedelta(minutes=1)
MAX_TTL = timedelta(hours=24)


def _parse_ttl(ttl: timedelta, key: str) -> timedelta:
    return duration_within(MIN_TTL, MAX_TTL)(ttl, key) if ttl else ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings(Settings):
    """Logins."""

    heading: ClassVar[str] = "Logins"

    login_ttl: timedelta = setting(
        DURATION,
        default=timedelta(hours=1),
        meaning="How long the credential lives that `mooring login` gets; 0: no login.",
        parse=_parse_ttl,
    )
    login_from_request_header: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Whether users whom an authenticating proxy names may log in: their credential goes past the proxy.",
    )


# User tokens, which `mooring login` gets unless it requests a certificate.
#
# Rules kept here:
# 1. They are JWTs signed with the cluster's service account key, but of the issuer `ISSUER`. No issuer of service account tokens
#    can have this name, because it holds a space. So neither this server nor a service that trusts that issuer confuses the two.
# 2. A bearer token that is not a JWT, or of another issuer, is not mine.
# 3. Signature, algorithm, key id and times are judged once (`mooring.authn.signedtokens`).
# 4. The token must be valid for one of the requested audiences.
# 5. It restores user name, uid, groups and extra as they were at login. The credential id is its own, `JTI=<jti>`. No name in it
#    begins with `system:`, because no such token is issued (`mooring.authn.login`).

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


# Rules for a login, which trades a provider's credential for a short-lived one of the cluster.
#
# Rules kept here (docs/adr/0020):
# 1. A login begins at the provider each time. A caller with a credential that a cluster issued (a client certificate, a service
#    account token, a bootstrap token, an earlier login), or without one, is refused. Otherwise a stolen hour could be renewed for
#    ever.
# 2. An impersonating caller is refused: impersonation is granted for a request, not for the hour after it.
# 3. A user that an authenticating proxy names (`request-header`) is refused unless the operator allows it. The proxy judges every
#    request, and may require a second factor or end a session; a credential of the cluster bypasses it.
# 4. A user name or group that begins with `system:` is refused, except `system:authenticated`, which the chain adds and which is
#    left out. These names belong to components of the cluster; RBAC takes no right from a certificate in `system:masters`.
# 5. The credential id of the provider's credential is left out: the issued one has its own.
# 6. A certificate or token must carry every name unchanged, or it is not issued. A certificate carries no extra.

RENEWED = "not-from-a-provider"
PROXIED = "behind-a-proxy"
IMPERSONATED = "impersonated"
SYSTEM_NAME = "system-name"
UNFIT = "does-not-fit"

ISSUED_BY_A_CLUSTER = frozenset(
    {"client-certificate", "service-account", "legacy-service-account", "bootstrap-token", "user-token", "anonymous"}
)
"""Authenticators whose credentials do not come from a provider outside (rule 1)."""

REQUEST_HEADER = "request-header"
MAX_NAMES = 16 * 1024
"""Bytes of all names together in a certificate. With more, TLS handshakes fail at some clients and servers."""

_SYSTEM = "system:"


@dataclass(frozen=True, slots=True)
class LoginRefusal:
    """`code` for the operator's record, `message` for the caller, who has been authenticated."""

    code: str
    message: str


def refusal(user: UserInfo, authenticator: str, *, impersonating: bool, proxied_allowed: bool) -> LoginRefusal | None:
    """Return the reason for which `user`, accepted by `authenticator`, gets no credential of the cluster, None when it does."""
    if impersonating:
        return LoginRefusal(IMPERSONATED, "a login is for oneself: leave out impersonation")
    if authenticator in ISSUED_BY_A_CLUSTER:
        return LoginRefusal(
            RENEWED,
            f"what was shown ({authenticator}) is a credential of a cluster already: a login begins with a password or a token "
            "of an identity provider",
        )
    if authenticator == REQUEST_HEADER and not proxied_allowed:
        return LoginRefusal(
            PROXIED,
            "an authenticating proxy named you, and this server issues no credential that goes past it "
            "(login-from-request-header is false): go on through the proxy",
        )
    for what, name in (("user", user.username), *(("group", group) for group in traded(user).groups)):
        if name.startswith(_SYSTEM):
            return LoginRefusal(
                SYSTEM_NAME, f'the {what} "{name}" is one of the system\'s own: a login is for people and programs'
            )
    return None


def traded(user: UserInfo) -> UserInfo:
    """Return the user of the credential: without what the chain adds and without the id of the offered credential."""
    groups = tuple(group for group in user.groups if group != AUTHENTICATED)
    extra = MappingProxyType({key: values for key, values in user.extra.items() if key != CREDENTIAL_ID})
    return replace(user, groups=groups, extra=extra)


def certificate_refusal(user: UserInfo) -> LoginRefusal | None:
    """Return the reason for which a certificate cannot name `user`, None when it can."""
    for what, name in (("user name", user.username), *(("group", group) for group in user.groups)):
        if not name or not name.isprintable():
            return LoginRefusal(
                UNFIT, f"a {what} of yours is empty or not printable, which no certificate says: ask for a token"
            )
    if not user.uid.isprintable():
        return LoginRefusal(UNFIT, "your uid is not printable, which no certificate says: ask for a token")
    if sum(len(name.encode()) for name in (user.username, user.uid, *user.groups)) > MAX_NAMES:
        return LoginRefusal(
            UNFIT, f"your names and groups have more than {MAX_NAMES} bytes: ask for a token, or join fewer groups"
        )
    return None


def token_refusal(user: UserInfo) -> LoginRefusal | None:
    """Return the reason for which a token cannot name `user`, None when it can."""
    extra = [text for key, values in user.extra.items() for text in (key, *values)]
    try:
        "".join((user.username, user.uid, *user.groups, *extra)).encode()
    except UnicodeEncodeError:
        return LoginRefusal(UNFIT, "a name of yours is not text in UTF-8, which no token says")
    return None
