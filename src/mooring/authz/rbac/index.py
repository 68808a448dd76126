"""Index of compiled Roles by name and of bindings by subject, updated when the views change.

Rules kept here:
1. A change among thousands of bindings compiles one binding: the view reports which objects changed.
2. A part is refreshed only when the revision of its view has changed; otherwise a refresh costs a comparison.
3. Bindings keep the view's order. The first matching subject of a binding is the one named in the reason.
4. A ServiceAccount subject matches by its username. In a RoleBinding an omitted namespace means the binding's own
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
    description: str
    """Reason of an allow by this grant, without the leading `RBAC: allowed by `."""


_NONE: dict[Place, Grant] = {}


class _Follower:
    """Follows one view and returns the objects that changed since the last call."""

    __slots__ = ("_revision", "_view")

    def __init__(self) -> None:
        self._revision = -1
        self._view: View | None = None

    def changes(self, view: View) -> tuple[bool, Iterable[tuple[Place, Obj | None]]] | None:
        """Return None when nothing changed, else (start over, changed objects by place); None stands for a deleted object."""
        if self._view is view and self._revision == view.revision:
            return None
        changed = view.changed(self._revision) if self._view is view else None
        self._view, self._revision = view, view.revision
        if changed is None:
            return True, ((place_of(obj), obj) for obj in view.list())
        return False, ((place, view.get(place[1], place[0])) for place in changed)


class Roles:
    """Compiled rules by the place of their role."""

    def __init__(self) -> None:
        self._follower = _Follower()
        self._rules: dict[Place, tuple[Rule, ...]] = {}

    def refresh(self, view: View) -> bool:
        """Take over the changes of the view; return true when there may be any."""
        changes = self._follower.changes(view)
        if changes is None:
            return False
        start_over, objects = changes
        if start_over:
            self._rules = {}
        for place, obj in objects:
            if obj is None:
                self._rules.pop(place, None)
            else:
                self._rules[place] = compile_rules(obj.get("rules"))
        return True

    def rules(self, place: Place) -> tuple[Rule, ...] | None:
        """Return the rules of a role, or None when the role does not exist."""
        return self._rules.get(place)


class Bindings:
    """Grants by namespace and subject; those of cluster bindings have namespace ""."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._follower = _Follower()
        self._subjects: dict[Place, tuple[str, ...]] = {}
        self._grants: dict[tuple[str, str], dict[Place, Grant]] = {}

    def refresh(self, view: View) -> bool:
        """Take over the changes of the view; return true when there may be any."""
        changes = self._follower.changes(view)
        if changes is None:
            return False
        start_over, objects = changes
        if start_over:
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
        """Return the grants of `user` in `namespace` ("": cluster bindings), in order, one per binding."""
        found = [*self._grants.get((namespace, "u:" + user.username), _NONE).values()]
        for subject in self._group_keys(user, namespace):
            found += self._grants.get((namespace, subject), _NONE).values()
        if len(found) < 2:
            return found
        first: dict[Place, Grant] = {}
        for grant in sorted(found, key=_order):
            first.setdefault(grant.order[0], grant)
        return list(first.values())

    def _group_keys(self, user: UserInfo, namespace: str) -> Iterable[str]:
        """Return the subject keys for groups of `user`; the smaller side is iterated, because a review may name many groups."""
        if len(user.groups) <= len(self._grants):
            return ("g:" + group for group in user.groups)
        held = set(user.groups)
        return [name for place, name in self._grants if place == namespace and name[:2] == "g:" and name[2:] in held]


def place_of(obj: Obj) -> Place:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def role_place(kind: str, name: str, namespace: str) -> Place:
    """Return the place of the role that a binding in `namespace` refers to."""
    return (namespace if kind == "Role" else "", name)


def _order(grant: Grant) -> tuple[Place, int]:
    return grant.order


def _grants(binding: Obj, kind: str) -> Iterable[tuple[str, Grant]]:
    place = place_of(binding)
    namespace, name = place
    reference = binding.get("roleRef") or {}
    role_kind, role_name = reference.get("kind", ""), reference.get("name", "")
    printed_name = f"{name}/{namespace}" if namespace else name
    for index, subject in enumerate(binding.get("subjects") or ()):
        parse = _SUBJECTS.get(subject.get("kind", ""))
        if parse is None:
            continue
        key, subject_text = parse(subject, namespace)
        description = f'{kind} "{printed_name}" of {role_kind} "{role_name}" to {subject_text}'
        yield key, Grant((place, index), role_kind, role_place(role_kind, role_name, namespace), description)


def _user_subject(subject: Obj, namespace: str) -> tuple[str, str]:
    return "u:" + subject["name"], f'User "{subject["name"]}"'


def _group_subject(subject: Obj, namespace: str) -> tuple[str, str]:
    return "g:" + subject["name"], f'Group "{subject["name"]}"'


def _service_account_subject(subject: Obj, namespace: str) -> tuple[str, str]:
    home, name = subject.get("namespace") or namespace, subject["name"]
    key = "u:" + service_account_username(home, name) if home else ""  # without a namespace the subject matches no user
    return key, f'ServiceAccount "{name}/{home}"'


_SUBJECTS: dict[str, Callable[[Obj, str], tuple[str, str]]] = {
    "User": _user_subject,
    "Group": _group_subject,
    "ServiceAccount": _service_account_subject,
}
