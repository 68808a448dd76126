"""Rules for a login, which trades a provider's credential for a short-lived one of the cluster.

Rules kept here (docs/adr/0020):
1. A login begins at the provider each time. A caller with a credential that a cluster issued (a client certificate, a service
   account token, a bootstrap token, an earlier login), or without one, is refused. Otherwise a stolen hour could be renewed for
   ever.
2. An impersonating caller is refused: impersonation is granted for a request, not for the hour after it.
3. A user that an authenticating proxy names (`request-header`) is refused unless the operator allows it. The proxy judges every
   request, and may require a second factor or end a session; a credential of the cluster bypasses it.
4. A user name or group that begins with `system:` is refused, except `system:authenticated`, which the chain adds and which is
   left out. These names belong to components of the cluster; RBAC takes no right from a certificate in `system:masters`.
5. The credential id of the provider's credential is left out: the issued one has its own.
6. A certificate or token must carry every name unchanged, or it is not issued. A certificate carries no extra.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from mooring.identity import AUTHENTICATED, CREDENTIAL_ID, UserInfo

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
