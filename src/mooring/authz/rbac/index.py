"""Roles and bindings, compiled and indexed by subject, kept for as long as the views do not change.

Rules kept here:
1. A change among thousands of bindings compiles one binding: the view tells which places changed.
2. A part is refreshed only when the revision of its view has changed: reading it costs a comparison.
3. Bindings keep the view's order; the first subject of a binding that matches is the one a reason names.
4. A ServiceAccount subject is its username. In a RoleBinding an omitted namespace means the binding's own
   (docs/protocol/rbac.md#evaluation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mooring.api.view import View
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.rules import Rule, compile_rules
from mooring.identity import UserInfo, service_account_username

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


_NONE: dict[Place, Grant] = {}


class _Followed:
    """Objects of one view that have changed since the last look."""

    __slots__ = ("_revision", "_view")

    def __init__(self) -> None:
        self._revision = -1
        self._view: View | None = None

    def changes(self, view: View) -> tuple[bool, Iterable[tuple[Place, Obj | None]]] | None:
        """None when nothing changed; else whether to begin anew, and the objects to take over by their places (None: gone)."""
        if self._view is view and self._revision == view.revision:
            return None
        changed = view.changed(self._revision) if self._view is view else None
        self._view, self._revision = view, view.revision
        if changed is None:
            return True, ((place_of(obj), obj) for obj in view.list())
        return False, ((place, view.get(place[1], place[0])) for place in changed)


class Roles:
    """Compiled rules by role."""

    def __init__(self) -> None:
        self._followed = _Followed()
        self._rules: dict[Place, tuple[Rule, ...]] = {}

    def refresh(self, view: View) -> bool:
        """Follow the view; True when something may have changed."""
        changes = self._followed.changes(view)
        if changes is None:
            return False
        anew, objects = changes
        if anew:
            self._rules = {}
        for place, obj in objects:
            if obj is None:
                self._rules.pop(place, None)
            else:
                self._rules[place] = compile_rules(obj.get("rules"))
        return True

    def rules(self, place: Place) -> tuple[Rule, ...] | None:
        """The rules of a role, or None when there is no such role."""
        return self._rules.get(place)


class Bindings:
    """Grants by namespace and subject; cluster bindings live in namespace ""."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._followed = _Followed()
        self._subjects: dict[Place, tuple[str, ...]] = {}
        self._grants: dict[tuple[str, str], dict[Place, Grant]] = {}

    def refresh(self, view: View) -> bool:
        """Follow the view; True when something may have changed."""
        changes = self._followed.changes(view)
        if changes is None:
            return False
        anew, objects = changes
        if anew:
            self._subjects, self._grants = {}, {}
        for place, obj in objects:
            for subject in self._subjects.pop(place, ()):
                held = self._grants[place[0], subject]
                del held[place]
                if not held:
                    del self._grants[place[0], subject]
            if obj is not None:
                first: dict[str, Grant] = {}
                for subject, grant in _grants(obj, self._kind):
                    first.setdefault(subject, grant)
                self._subjects[place] = tuple(first)
                for subject, grant in first.items():
                    self._grants.setdefault((place[0], subject), {})[place] = grant
        return True

    def of(self, user: UserInfo, namespace: str) -> list[Grant]:
        """Grants that concern `user` in `namespace` ("": cluster bindings), in order, one per binding."""
        found = [*self._grants.get((namespace, "u:" + user.username), _NONE).values()]
        for subject in self._groups(user, namespace):
            found += self._grants.get((namespace, subject), _NONE).values()
        if len(found) < 2:
            return found
        first: dict[Place, Grant] = {}
        for grant in sorted(found, key=_order):
            first.setdefault(grant.order[0], grant)
        return list(first.values())

    def _groups(self, user: UserInfo, namespace: str) -> Iterable[str]:
        """Subjects that may be groups of `user`: an access review may name more groups than there are subjects."""
        if len(user.groups) <= len(self._grants):
            return ("g:" + group for group in user.groups)
        held = set(user.groups)
        return [name for place, name in self._grants if place == namespace and name[:2] == "g:" and name[2:] in held]


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
