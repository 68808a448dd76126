"""Impersonation (`kubectl --as`): from headers to the grants that it needs and the user that it yields.

Rules kept here (docs/protocol/impersonation.md; KEP-5284):
1. Without an Impersonate header nothing happens. Group, uid or extra without a user is 400, and so is a name that is not UTF-8:
   replaced bytes would make two names one.
2. There are several modes, tried in this order: `associated-node` (a Pod's ServiceAccount acts as the node that the Pod runs on),
   `arbitrary-node`, `serviceaccount`, `user-info`, and the mode of every Kubernetes release, which has no name. The first mode
   with every grant wins. When all fail, the error of the first is the answer.
3. A mode with a name needs the verb `impersonate-on:<mode>:<verb>` on the object of the request, and the verb
   `impersonate:<mode>` on each part of the target, all in authentication.k8s.io: `nodes` (`*` for associated-node),
   `serviceaccounts`, or `users`, `uids`, `groups` and `userextras/<key>`.
4. The node modes and `serviceaccount` take a name and nothing else. `user-info` takes neither nodes nor service accounts. It
   never grants the group system:masters or an empty one, extra keys that are not domain-prefixed paths, or empty values. They are
   refused after the parts before them were checked, so that the first missing grant is the one that is reported.
5. The mode without a name needs the verb `impersonate` on each part: core `users` (or `serviceaccounts` in the namespace of the
   name) and `groups`; `uids` and `userextras/<key>` of authentication.k8s.io. A name that begins like a service account's, but
   holds a namespace or a name that no object can have, is an ordinary user's.
6. A service account named without groups gets its two groups; a node in a node mode gets `system:nodes`. `system:authenticated`
   is added unless the target is anonymous or carries it or its opposite; `system:anonymous` gets `system:unauthenticated`.
7. The target inherits nothing of the real user, the credential id in particular.
8. The listener bounds the number of groups and extras, as it does for a proxy and for a token: they are headers of one request.
   Each costs one authorization of about 5 µs.

This room does not know authorization attributes (`authz` is its sibling), so it describes the needed rights as `NeededGrant`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from urllib.parse import unquote

from mooring.apimachinery.names import dns1123_label_errors, dns1123_subdomain_errors
from mooring.authn.chain import with_authenticated
from mooring.errors import BadRequestError, quoted
from mooring.identity import (
    ANONYMOUS,
    MASTERS,
    NODE_NAME,
    NODE_PREFIX,
    NODES,
    SERVICE_ACCOUNT_PREFIX,
    UNAUTHENTICATED,
    UserInfo,
    service_account_groups,
)

USER = "impersonate-user"
GROUP = "impersonate-group"
UID = "impersonate-uid"
EXTRA_PREFIX = "impersonate-extra-"
VERB = "impersonate"
POD_NAME = "authentication.kubernetes.io/pod-name"
MAX_SHOWN = 16
"""Groups, keys and values that an error lists."""

_AUTHENTICATION = "authentication.k8s.io"
_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", re.ASCII)
"""Characters of a URL's path (RFC 3986 3.3)."""
_MALFORMED_ESCAPE = re.compile(r"%(?![0-9a-f]{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class NeededGrant:
    """The real user needs the verb of the mode on this object."""

    group: str
    version: str
    resource: str
    name: str
    namespace: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Impersonation:
    """One mode. When every grant is allowed, the request continues as `user`."""

    user: UserInfo
    grants: tuple[NeededGrant, ...]
    mode: str = ""
    """Name of the mode; "" for the one without a name."""
    prohibited: NeededGrant | None = None
    """Part that this mode never grants."""
    reason: str = ""
    """Reason for which `prohibited` is never granted."""

    @property
    def verb(self) -> str:
        """Verb that the real user needs on each grant."""
        return f"{VERB}:{self.mode}" if self.mode else VERB

    @property
    def constraint(self) -> str:
        """Text of the audit record (`authenticationMetadata.impersonationConstraint`); "" for the mode without a name."""
        return self.verb if self.mode else ""

    def verb_on(self, verb: str) -> str:
        """Verb that the real user needs on the object of a request with `verb`; "" when none is needed."""
        return f"{VERB}-on:{self.mode}:{verb}" if self.mode else ""


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    uid: str
    groups: tuple[str, ...]
    extra: Mapping[str, tuple[str, ...]]

    @property
    def only_named(self) -> bool:
        return not (self.uid or self.groups or self.extra)


def read_impersonation(headers: Mapping[str, Sequence[str]], requester: UserInfo) -> tuple[Impersonation, ...]:
    """Return the modes in which the impersonation of these headers (lower-case names) may be allowed, in order; none without
    such headers.

    Raises BadRequestError (rule 1).
    """
    name = _first(headers, USER)
    uid = _first(headers, UID)
    groups = tuple(headers.get(GROUP, ()))
    extra: dict[str, tuple[str, ...]] = {}
    for header in sorted(headers):
        if header.startswith(EXTRA_PREFIX):
            key = unescaped_key(header[len(EXTRA_PREFIX) :])
            extra[key] = extra.get(key, ()) + tuple(headers[header])
    # Before anything else is judged: replaced bytes would make two names one.
    unreadable = UserInfo(name, uid, groups, extra).unreadable
    if unreadable:
        raise BadRequestError(
            f"requested impersonation, but {unreadable} is not UTF-8: send the Impersonate headers in UTF-8"
        )
    if not name:
        # Without a user the request would continue as the real user, which is not what its sender wants.
        if groups or uid or extra:
            raise BadRequestError(f"requested {_go_user(uid, groups, extra)} without impersonating a user name")
        return ()
    return tuple(_ways(_Wanted(name, uid, groups, extra), requester))


def _go_user(uid: str, groups: Sequence[str], extra: Mapping[str, Sequence[str]]) -> str:
    """Return an identity without a name as Go's `%#v` writes it."""
    shown_groups, shown_extra = "[]string(nil)", "map[string][]string(nil)"
    if groups:
        shown_groups = _go_texts(groups)
    if extra:
        members = (f"{quoted(key)}:{_go_texts(extra[key])}" for key in sorted(extra)[:MAX_SHOWN])
        shown_extra = f"map[string][]string{{{', '.join(members)}}}"
    return f'&user.DefaultInfo{{Name:"", UID:{quoted(uid)}, Groups:{shown_groups}, Extra:{shown_extra}}}'


def _go_texts(texts: Sequence[str]) -> str:
    return f"[]string{{{', '.join(map(quoted, texts[:MAX_SHOWN]))}}}"


def _ways(wanted: _Wanted, requester: UserInfo) -> Iterator[Impersonation]:
    node = _node_name(wanted.name)
    account = _service_account(wanted.name)
    if node and wanted.only_named:
        user = with_authenticated(UserInfo(wanted.name, groups=(NODES,)))
        if _runs_on(requester, node):
            yield Impersonation(user, (NeededGrant(_AUTHENTICATION, "v1", "nodes", "*"),), "associated-node")
        yield Impersonation(user, (NeededGrant(_AUTHENTICATION, "v1", "nodes", node),), "arbitrary-node")
    elif account is not None and wanted.only_named:
        grant = NeededGrant(_AUTHENTICATION, "v1", "serviceaccounts", account[1], namespace=account[0])
        yield Impersonation(_target(wanted), (grant,), "serviceaccount")
    elif not wanted.name.startswith(NODE_PREFIX) and account is None:
        yield _user_info(wanted)
    if account is None:
        first = NeededGrant("", "v1", "users", wanted.name)
    else:
        first = NeededGrant("", "v1", "serviceaccounts", account[1], namespace=account[0])
    yield Impersonation(_target(wanted), (first, *_parts(wanted, "")))


def _node_name(username: str) -> str:
    """Return the node whose user this is, or ""."""
    name = username.removeprefix(NODE_PREFIX)
    return "" if name == username or dns1123_subdomain_errors(name) else name


def _service_account(username: str) -> tuple[str, str] | None:
    """Return namespace and name when both are names that such objects can have; other users may begin like one."""
    namespace, _, name = username.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    if not username.startswith(SERVICE_ACCOUNT_PREFIX) or dns1123_label_errors(namespace):
        return None
    return None if dns1123_subdomain_errors(name) else (namespace, name)


def _runs_on(requester: UserInfo, node: str) -> bool:
    """Return whether `requester` is a service account with a token bound to a Pod of that node."""
    return (
        _service_account(requester.username) is not None
        and requester.extra.get(NODE_NAME) == (node,)
        and len(requester.extra.get(POD_NAME, ())) == 1
    )


def _user_info(wanted: _Wanted) -> Impersonation:
    """Return the mode for all users who are neither nodes nor service accounts (rule 4)."""
    first, group, extra = (
        NeededGrant(_AUTHENTICATION, "v1", "users", wanted.name),
        _bad_group(wanted),
        _bad_extra(wanted),
    )
    prohibited, reason, asked = None, "", wanted
    if group is not None:
        prohibited, asked = NeededGrant(_AUTHENTICATION, "v1", "groups", group), replace(wanted, groups=(), extra={})
        reason = f"impersonating the {group or 'empty string'} group is not allowed"
    elif extra:
        prohibited, asked = NeededGrant(_AUTHENTICATION, "v1", "userextras", ""), replace(wanted, extra={})
        reason = f"impersonating {extra} in extra is not allowed"
    return Impersonation(_target(wanted), (first, *_parts(asked, _AUTHENTICATION)), "user-info", prohibited, reason)


def _bad_group(wanted: _Wanted) -> str | None:
    return next((group for group in ("", MASTERS) if group in wanted.groups), None)


def _bad_extra(wanted: _Wanted) -> str:
    """Return the first extra that is never granted, as an error names it; "" for none."""
    for key, values in wanted.extra.items():
        if not _is_path(key):
            return "an invalid key" if key else "the empty string key"
        if not all(values):
            return "the empty string value"
    return ""


def _is_path(key: str) -> bool:
    """Return whether an extra key is a domain, a slash and a path, as a grant by itself requires."""
    domain, _, path = key.partition("/")
    return not dns1123_subdomain_errors(domain) and _PATH.fullmatch(path) is not None


def _first(headers: Mapping[str, Sequence[str]], name: str) -> str:
    values = headers.get(name, ())
    return values[0] if values else ""


def unescaped_key(key: str) -> str:
    """Percent-decode a key; a malformed one is left raw, as in kube-apiserver. Bytes that are not UTF-8 become lone surrogates, so
    that they stay different from each other and from every raw key."""
    lowered = key.lower()
    if _MALFORMED_ESCAPE.search(lowered):  # one is enough: nothing is half decoded
        return lowered
    return unquote(lowered, errors="surrogateescape")


def _parts(wanted: _Wanted, group_of_groups: str) -> Iterator[NeededGrant]:
    """Yield the grants for the parts beside the name."""
    if wanted.uid:
        yield NeededGrant(_AUTHENTICATION, "v1", "uids", wanted.uid)
    for group in wanted.groups:
        yield NeededGrant(group_of_groups, "v1", "groups", group)
    for key, values in wanted.extra.items():
        for value in values:
            yield NeededGrant(_AUTHENTICATION, "v1", "userextras", value, subresource=key)


def _target(wanted: _Wanted) -> UserInfo:
    account = _service_account(wanted.name)
    groups = wanted.groups
    if account is not None and not groups:
        groups = service_account_groups(account[0])
    user = UserInfo(wanted.name, wanted.uid, groups, MappingProxyType(dict(wanted.extra)))
    if wanted.name == ANONYMOUS:
        return user.with_groups(UNAUTHENTICATED)
    return with_authenticated(user)
