"""Roles and bindings, compiled and indexed by subject, kept for as long as the views do not change.

Rules kept here:
1. Compiled parts are kept per object and reused while the view hands out the very same object (view objects are
   immutable), so one change among thousands of bindings compiles one binding.
2. A part is refreshed only when the revision of its view has changed: reading it costs a comparison.
3. Bindings keep the view's order; the first subject of a binding that matches is the one a reason names.
4. A ServiceAccount subject is its username. In a RoleBinding an omitted namespace means the binding's own
   (reference/kubernetes.md 6.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mooring.authz.rules import Rule, compile_rules
from mooring.identity import UserInfo, service_account_username
from mooring.kinds.view import View
from mooring.wire.schema import Obj

Place = tuple[str, str]
"""(namespace, name); namespace "" for cluster-scoped objects."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One subject of one binding. `order` sorts grants as the view orders bindings and bindings their subjects."""

    order: tuple[Place, int]
    role_kind: str
    role: Place
    sentence: str
    """How an allow by this grant is explained, without the leading `RBAC: allowed by `."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    source: Obj
    grants: tuple[tuple[str, Grant], ...]


@dataclass(frozen=True, slots=True)
class _Role:
    source: Obj
    rules: tuple[Rule, ...]


class Roles:
    """Compiled rules by role."""

    def __init__(self) -> None:
        self._revision = -1
        self._view: View | None = None
        self._roles: dict[Place, _Role] = {}

    def refresh(self, view: View) -> bool:
        """Follow the view; True when something may have changed."""
        if self._view is view and self._revision == view.revision:
            return False
        self._view, self._revision = view, view.revision
        known = self._roles
        roles: dict[Place, _Role] = {}
        for obj in view.list():
            place = place_of(obj)
            old = known.get(place)
            same = old is not None and old.source is obj
            roles[place] = old if old is not None and same else _Role(obj, compile_rules(obj.get("rules")))
        self._roles = roles
        return True

    def rules(self, place: Place) -> tuple[Rule, ...] | None:
        """The rules of a role, or None when there is no such role."""
        role = self._roles.get(place)
        return None if role is None else role.rules


class Bindings:
    """Grants by namespace and subject; cluster bindings live in namespace ""."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._revision = -1
        self._view: View | None = None
        self._compiled: dict[Place, _Compiled] = {}
        self._by_subject: dict[tuple[str, str], list[Grant]] = {}

    def refresh(self, view: View) -> bool:
        """Follow the view; True when something may have changed."""
        if self._view is view and self._revision == view.revision:
            return False
        self._view, self._revision = view, view.revision
        known = self._compiled
        compiled: dict[Place, _Compiled] = {}
        by_subject: dict[tuple[str, str], list[Grant]] = {}
        for obj in view.list():
            place = place_of(obj)
            old = known.get(place)
            part = old if old is not None and old.source is obj else _Compiled(obj, tuple(_grants(obj, self._kind)))
            compiled[place] = part
            for subject, grant in part.grants:
                by_subject.setdefault((place[0], subject), []).append(grant)
        self._compiled, self._by_subject = compiled, by_subject
        return True

    def of(self, user: UserInfo, namespace: str) -> list[Grant]:
        """Grants that concern `user` in `namespace` ("": cluster bindings), in order, one per binding."""
        found = list(self._by_subject.get((namespace, "u:" + user.username), ()))
        for group in user.groups:
            found += self._by_subject.get((namespace, "g:" + group), ())
        if len(found) < 2:
            return found
        first: dict[Place, Grant] = {}
        for grant in sorted(found, key=_order):
            first.setdefault(grant.order[0], grant)
        return list(first.values())


def place_of(obj: Obj) -> Place:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def role_place(kind: str, name: str, namespace: str) -> Place:
    """Where the role is that a binding in `namespace` refers to."""
    return (namespace if kind == "Role" else "", name)


def _order(grant: Grant) -> tuple[Place, int]:
    return grant.order


def _grants(binding: Obj, kind: str) -> Iterable[tuple[str, Grant]]:
    place = place_of(binding)
    namespace, name = place
    reference = binding.get("roleRef") or {}
    role_kind, role_name = reference.get("kind", ""), reference.get("name", "")
    shown = f"{name}/{namespace}" if namespace else name
    for index, subject in enumerate(binding.get("subjects") or ()):
        known = _SUBJECTS.get(subject.get("kind", ""))
        if known is None:
            continue
        key, described = known(subject, namespace)
        sentence = f'{kind} "{shown}" of {role_kind} "{role_name}" to {described}'
        yield key, Grant((place, index), role_kind, role_place(role_kind, role_name, namespace), sentence)


def _user(subject: Obj, namespace: str) -> tuple[str, str]:
    return "u:" + subject["name"], f'User "{subject["name"]}"'


def _group(subject: Obj, namespace: str) -> tuple[str, str]:
    return "g:" + subject["name"], f'Group "{subject["name"]}"'


def _service_account(subject: Obj, namespace: str) -> tuple[str, str]:
    home, name = subject.get("namespace") or namespace, subject["name"]
    key = "u:" + service_account_username(home, name) if home else ""  # without a namespace it is nobody
    return key, f'ServiceAccount "{name}/{home}"'


_SUBJECTS: dict[str, Callable[[Obj, str], tuple[str, str]]] = {
    "User": _user,
    "Group": _group,
    "ServiceAccount": _service_account,
}
