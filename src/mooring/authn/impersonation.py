"""Acting as somebody else (`kubectl --as`): from headers to what must be allowed, then to who it becomes.

Rules kept here (reference/kubernetes.md 5.13, the checks every Kubernetes release knows; constrained impersonation has its
own issue):
1. Without an Impersonate header nothing happens. Group, uid or extra without a user is 400.
2. Each part wants its own grant of verb `impersonate` to the real user: `users` (or `serviceaccounts` in the namespace the
   name says), `groups`, `uids` and `userextras/<key>` of authentication.k8s.io. One refusal refuses the request.
3. A service account named without groups gets its two groups. `system:authenticated` is added unless the target is
   anonymous or carries it or its opposite; `system:anonymous` gets `system:unauthenticated`.
4. Nothing of the real user is carried over, its credential id least of all.

This room does not know authorization attributes (`authz` is its sibling), so what must be allowed is told as `Grant`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import unquote

from mooring.authn.chain import with_authenticated
from mooring.errors import BadRequestError
from mooring.identity import (
    ANONYMOUS,
    UNAUTHENTICATED,
    UserInfo,
    parse_service_account,
    service_account_groups,
)

USER = "impersonate-user"
GROUP = "impersonate-group"
UID = "impersonate-uid"
EXTRA_PREFIX = "impersonate-extra-"
VERB = "impersonate"
MAX_PARTS = 256  # each costs one authorization; no real user has as many groups and extras


@dataclass(frozen=True, slots=True)
class Grant:
    """The real user must be allowed to `impersonate` this."""

    group: str
    version: str
    resource: str
    name: str
    namespace: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Ask for every grant; when all are allowed the request continues as `user`."""

    user: UserInfo
    grants: tuple[Grant, ...]


def read_impersonation(headers: Mapping[str, Sequence[str]]) -> Impersonation | None:
    """What these headers (lower-case names) ask for, or None. Raises BadRequestError (rule 1)."""
    name = _first(headers, USER)
    uid = _first(headers, UID)
    groups = tuple(headers.get(GROUP, ()))
    extra: dict[str, tuple[str, ...]] = {}
    for header in sorted(headers):
        if header.startswith(EXTRA_PREFIX):
            key = _unescaped(header[len(EXTRA_PREFIX) :])
            extra[key] = extra.get(key, ()) + tuple(headers[header])
    if not name:
        if groups or uid or extra:
            raise BadRequestError("requested impersonation of a group, uid or extra without impersonating a user")
        return None
    if len(groups) + sum(len(values) for values in extra.values()) > MAX_PARTS:
        raise BadRequestError(f"requested impersonation of more than {MAX_PARTS} groups and extras")
    return Impersonation(_target(name, uid, groups, extra), tuple(_grants(name, uid, groups, extra)))


def _first(headers: Mapping[str, Sequence[str]], name: str) -> str:
    values = headers.get(name, ())
    return values[0] if values else ""


def _unescaped(key: str) -> str:
    """Percent-decoded; left raw when that is malformed, as the API server does."""
    lowered = key.lower()
    try:
        return unquote(lowered, errors="strict")
    except UnicodeDecodeError:
        return lowered


def _grants(name: str, uid: str, groups: Sequence[str], extra: Mapping[str, Sequence[str]]) -> list[Grant]:
    account = parse_service_account(name)
    if account is None:
        grants = [Grant("", "v1", "users", name)]
    else:
        grants = [Grant("", "v1", "serviceaccounts", account[1], namespace=account[0])]
    grants += [Grant("", "v1", "groups", group) for group in groups]
    for key, values in extra.items():
        grants += [Grant("authentication.k8s.io", "v1", "userextras", value, subresource=key) for value in values]
    if uid:
        grants.append(Grant("authentication.k8s.io", "v1", "uids", uid))
    return grants


def _target(name: str, uid: str, groups: tuple[str, ...], extra: Mapping[str, tuple[str, ...]]) -> UserInfo:
    account = parse_service_account(name)
    if account is not None and not groups:
        groups = service_account_groups(account[0])
    user = UserInfo(name, uid, groups, MappingProxyType(dict(extra)))
    if name == ANONYMOUS:
        return user.with_groups(UNAUTHENTICATED)
    return with_authenticated(user)
