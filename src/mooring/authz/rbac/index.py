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
from typing import Any

from mooring.api.view import NamespacedName, View, ViewFollower, namespaced_name
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.rules import CompiledRule, compile_rules
from mooring.identity import UserInfo, service_account_username


@dataclass(frozen=True, slots=True)
class Grant:
    """One subject of one binding. `order` sorts grants as the view orders bindings and bindings their subjects."""

    order: tuple[NamespacedName, int]
    role_kind: str
    role: NamespacedName
    binding_kind: str
    subject: str

    @property
    def description(self) -> str:
        """Reason of an allow by this grant, without the leading `RBAC: allowed by `. It is made when it is needed: names of roles
        may be long, and a binding has many subjects."""
        namespace, name = self.order[0]
        printed_name = f"{name}/{namespace}" if namespace else name
        return f'{self.binding_kind} "{printed_name}" of {self.role_kind} "{self.role[1]}" to {self.subject}'


_NONE: dict[NamespacedName, Grant] = {}


class Roles:
    """Compiled rules by the namespaced name of their role.

    Rules are compiled when a request first depends on them: 10 000 rules take 15 ms, for which the next request of any client would
    wait after each change of their role.
    """

    def __init__(self) -> None:
        self._follower = ViewFollower()
        self._rules: dict[NamespacedName, tuple[CompiledRule, ...]] = {}
        self._uncompiled: dict[NamespacedName, Any] = {}

    def refresh(self, view: View) -> bool:
        """Take over the changes of the view; return true when there may be any."""
        changes = self._follower.changes(view)
        if changes is None:
            return False
        start_over, objects = changes
        if start_over:
            self._rules, self._uncompiled = {}, {}
        for key, obj in objects:
            self._rules.pop(key, None)
            self._uncompiled.pop(key, None)
            if obj is not None:
                self._uncompiled[key] = obj.get("rules")
        return True

    def rules(self, key: NamespacedName) -> tuple[CompiledRule, ...] | None:
        """Return the rules of a role, or None when the role does not exist."""
        if key in self._uncompiled:
            self._rules[key] = compile_rules(self._uncompiled.pop(key))
        return self._rules.get(key)


class Bindings:
    """Grants by namespace and subject; those of cluster bindings have namespace ""."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._follower = ViewFollower()
        self._subjects: dict[NamespacedName, tuple[str, ...]] = {}
        self._grants: dict[tuple[str, str], dict[NamespacedName, Grant]] = {}

    def refresh(self, view: View) -> bool:
        """Take over the changes of the view; return true when there may be any."""
        changes = self._follower.changes(view)
        if changes is None:
            return False
        start_over, objects = changes
        if start_over:
            self._subjects, self._grants = {}, {}
        for key, obj in objects:
            for subject in self._subjects.pop(key, ()):
                held = self._grants[key[0], subject]
                del held[key]
                if not held:
                    del self._grants[key[0], subject]
            if obj is not None:
                first: dict[str, Grant] = {}
                for subject, grant in _grants(obj, self._kind):
                    first.setdefault(subject, grant)
                self._subjects[key] = tuple(first)
                for subject, grant in first.items():
                    self._grants.setdefault((key[0], subject), {})[key] = grant
        return True

    def of(self, user: UserInfo, namespace: str) -> list[Grant]:
        """Return the grants of `user` in `namespace` ("": cluster bindings), in order, one per binding."""
        found = [*self._grants.get((namespace, "u:" + user.username), _NONE).values()]
        for subject in self._group_keys(user, namespace):
            found += self._grants.get((namespace, subject), _NONE).values()
        if len(found) < 2:
            return found
        first: dict[NamespacedName, Grant] = {}
        for grant in sorted(found, key=_order):
            first.setdefault(grant.order[0], grant)
        return list(first.values())

    def _group_keys(self, user: UserInfo, namespace: str) -> Iterable[str]:
        """Return the subject keys for groups of `user`; the smaller side is iterated, because a review may name many groups."""
        if len(user.groups) <= len(self._grants):
            return ("g:" + group for group in user.groups)
        held = set(user.groups)
        return [key for scope, key in self._grants if scope == namespace and key[:2] == "g:" and key[2:] in held]


def role_of_binding(kind: str, name: str, namespace: str) -> NamespacedName:
    """Return the namespaced name of the role that a binding in `namespace` refers to."""
    return (namespace if kind == "Role" else "", name)


def _order(grant: Grant) -> tuple[NamespacedName, int]:
    return grant.order


def _grants(binding: Obj, kind: str) -> Iterable[tuple[str, Grant]]:
    namespace, _ = binding_name = namespaced_name(binding)
    reference = binding.get("roleRef") or {}
    role_kind = reference.get("kind", "")
    role = role_of_binding(role_kind, reference.get("name", ""), namespace)
    for index, subject in enumerate(binding.get("subjects") or ()):
        parse = _SUBJECTS.get(subject.get("kind", ""))
        if parse is None:
            continue
        key, subject_text = parse(subject, namespace)
        yield key, Grant((binding_name, index), role_kind, role, kind, subject_text)


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
