"""The RBAC authorizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from mooring.api.view import NamespacedName, View, ViewFollower, Views, namespaced_name
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.bounded import Bounded
from mooring.errors import NotFoundError
from mooring.identity import UserInfo, service_account_username

# RBAC rules: PolicyRules compiled so that matching a request costs well under a microsecond; builders of rules, roles, bindings.
#
# Rules kept here (docs/protocol/rbac.md#evaluation):
# 1. A verb and an API group match exactly or by `*`.
# 2. A resource matches by `*` (subresources too), exactly as `res` or `res/sub`, or as `*/sub`. `pods` does not match `pods/log`.
# 3. Empty resourceNames match any name; otherwise the name must be listed, so a request without a name never matches.
# 4. A path matches by `*`, exactly, or by a prefix before a final `*` (`/healthz/*`).

API_GROUP = "rbac.authorization.k8s.io"
ALL = "*"


def path_matches(patterns: Iterable[str], path: str) -> bool:
    """Return true when one of the patterns matches the path (rule 4)."""
    return any(
        pattern in (ALL, path) or (pattern.endswith(ALL) and path.startswith(pattern.rstrip(ALL)))
        for pattern in patterns
    )


class CompiledRule(Struct, frozen=True, gc=False):
    """One compiled PolicyRule; `source` is the PolicyRule object.

    A role may have 10 000 rules, which are compiled on the event loop: a frozen dataclass takes four times as long. No cycle can
    hold a rule.
    """

    source: Obj
    verbs: frozenset[str]
    any_verb: bool
    groups: frozenset[str]
    any_group: bool
    resources: frozenset[str]
    any_resource: bool
    names: frozenset[str]
    paths: tuple[str, ...]

    def allows(self, attributes: Attributes) -> bool:
        """Return true when this rule allows the request."""
        if not (self.any_verb or attributes.verb in self.verbs):
            return False
        if not attributes.resource:
            return path_matches(self.paths, attributes.path)
        return (
            (self.any_group or attributes.group in self.groups)
            and (self.any_resource or self._resource_matches(attributes.resource, attributes.subresource))
            and (not self.names or attributes.name in self.names)
        )

    def _resource_matches(self, resource: str, subresource: str) -> bool:
        if not subresource:
            return resource in self.resources
        return f"{resource}/{subresource}" in self.resources or f"*/{subresource}" in self.resources


def compile_rule(rule: Obj) -> CompiledRule:
    """Compile a PolicyRule object."""
    verbs = frozenset(rule.get("verbs") or ())
    groups = frozenset(rule.get("apiGroups") or ())
    resources = frozenset(rule.get("resources") or ())
    return CompiledRule(
        source=rule,
        verbs=verbs,
        any_verb=ALL in verbs,
        groups=groups,
        any_group=ALL in groups,
        resources=resources,
        any_resource=ALL in resources,
        names=frozenset(rule.get("resourceNames") or ()),
        paths=tuple(rule.get("nonResourceURLs") or ()),
    )


def compile_rules(rules: Sequence[Obj] | None) -> tuple[CompiledRule, ...]:
    return tuple(compile_rule(rule) for rule in rules or ())


def rule(verbs: str, group: str, resources: str, names: str = "") -> Obj:
    """Build a PolicyRule from comma-separated verbs, groups, resources and names, and sort each. `""` is the core group."""
    built: Obj = {name: sorted(text.split(",")) for name, text in (("verbs", verbs), ("apiGroups", group))}
    built["resources"] = sorted(resources.split(","))
    if names:
        built["resourceNames"] = sorted(names.split(","))
    return built


def path_rule(verbs: str, paths: str) -> Obj:
    """Build a PolicyRule on URL paths from comma-separated verbs and paths."""
    return {"verbs": verbs.split(","), "nonResourceURLs": paths.split(",")}


def service_account(namespace: str, name: str) -> Obj:
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def cluster_role(name: str, *rules: Obj) -> Obj:
    return _rbac_object("ClusterRole", name, rules=list(rules))


def role(namespace: str, name: str, *rules: Obj) -> Obj:
    return _rbac_object("Role", name, namespace, rules=list(rules))


def cluster_binding(name: str, role_name: str, *subjects: Obj) -> Obj:
    """Return a ClusterRoleBinding to a ClusterRole."""
    return _rbac_object(
        "ClusterRoleBinding", name, subjects=list(subjects), roleRef=_role_ref("ClusterRole", role_name)
    )


def binding(namespace: str, name: str, role_name: str, *subjects: Obj) -> Obj:
    """Return a RoleBinding to a Role of its namespace."""
    return _rbac_object("RoleBinding", name, namespace, subjects=list(subjects), roleRef=_role_ref("Role", role_name))


def _role_ref(kind: str, name: str) -> Obj:
    return {"apiGroup": API_GROUP, "kind": kind, "name": name}


def _rbac_object(kind: str, name: str, namespace: str = "", **parts: object) -> Obj:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    present = {key: value for key, value in parts.items() if value}  # empty lists are left out
    return {"kind": kind, "apiVersion": API_GROUP + "/v1", "metadata": metadata, **present}


# Index of compiled Roles by name and of bindings by subject, updated when the views change.
#
# Rules kept here:
# 1. A change among thousands of bindings compiles one binding: the view reports which objects changed.
# 2. A part is refreshed only when the revision of its view has changed; otherwise a refresh costs a comparison.
# 3. Bindings keep the view's order. The first matching subject of a binding is the one named in the reason.
# 4. A ServiceAccount subject matches by its username. In a RoleBinding an omitted namespace means the binding's own
#    (docs/protocol/rbac.md#evaluation).


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


# RBAC authorizer: decides by Roles and bindings.
#
# Rules kept here (docs/protocol/rbac.md#evaluation, docs/protocol/authorization.md#access-reviews):
# 1. ClusterRoleBindings are evaluated first, then the RoleBindings of the request's namespace. Non-resource paths match only
#    through ClusterRoleBindings.
# 2. The reason of an allow is `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to Group "g"`; a RoleBinding prints
#    `"name/namespace"`.
# 3. A binding to a missing role grants nothing, and the reason of the refusal reports it.
# 4. RBAC never denies: it has no opinion on requests that it does not allow.
# 5. Views are compiled once per revision (`mooring.authz.rbac.authorizer`). The effective rules of a user are cached until a view
#    changes, for a bounded number of users.

MAX_CACHED = (
    4096  # (user, groups, namespace) triples in the cache: as many as a busy cluster has active users; a few MiB
)

_ROLE_PLURALS = {"ClusterRole": "clusterroles", "Role": "roles"}
MAX_GROUPS_CACHED = 1000
"""Groups of a user whose rules are cached: an access review may name a hundred thousand, and a cache key holds them all."""

GrantedRule = tuple[CompiledRule, Decision]
"""A compiled rule, and the decision when it allows a request."""


@dataclass(frozen=True, slots=True)
class _EffectiveRules:
    """Rules granted to a user in one namespace, problems met while collecting them, and the decision when no rule allows."""

    resources: tuple[GrantedRule, ...]
    paths: tuple[GrantedRule, ...]
    problems: tuple[str, ...]
    otherwise: Decision


class Rbac:
    """The `RBAC` authorization mode. It caches compiled rules, so one instance serves a process."""

    name = "RBAC"

    def __init__(self, max_cached: int = MAX_CACHED) -> None:
        self._roles = Roles()
        self._cluster_roles = Roles()
        self._bindings = Bindings("RoleBinding")
        self._cluster_bindings = Bindings("ClusterRoleBinding")
        self._cache: Bounded[tuple[str, tuple[str, ...], str], _EffectiveRules] = Bounded(max_cached)
        self._last: tuple[UserInfo, str, _EffectiveRules] | None = None
        """Rules of the last user in the last namespace: an impersonation judges one user many times, and a user of thousands of
        groups is not in the cache."""

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        """Allow, or have no opinion, with the problems met while evaluating."""
        namespace = attributes.namespace if attributes.resource else ""
        effective = self._effective_rules(attributes.user, namespace, views)
        for rule, allowed in effective.resources if attributes.resource else effective.paths:
            if rule.allows(attributes):
                return allowed
        return effective.otherwise

    def rules_for(
        self, user: UserInfo, namespace: str, views: Views
    ) -> tuple[tuple[CompiledRule, ...], tuple[str, ...]]:
        """Return the rules that `user` holds in `namespace` ("": cluster-wide only), and the problems met (rule 3)."""
        effective = self._effective_rules(user, namespace, views)
        only_paths = tuple(rule for rule, _ in effective.paths if not rule.resources)
        return tuple(rule for rule, _ in effective.resources) + only_paths, effective.problems

    def role_rules(self, kind: str, role: NamespacedName, views: Views) -> tuple[CompiledRule, ...]:
        """Return the rules of one role. Raises NotFoundError."""
        self._refresh(views)
        rules = self._rules(kind, role)
        if rules is None:
            raise _role_not_found(kind, role)
        return rules

    def _refresh(self, views: Views) -> None:
        changed = self._roles.refresh(views["roles"])
        changed |= self._cluster_roles.refresh(views["clusterroles"])
        changed |= self._bindings.refresh(views["rolebindings"])
        changed |= self._cluster_bindings.refresh(views["clusterrolebindings"])
        if changed:
            self._cache.clear()
            self._last = None

    def _effective_rules(self, user: UserInfo, namespace: str, views: Views) -> _EffectiveRules:
        self._refresh(views)
        last = self._last
        if last is not None and last[0] is user and last[1] == namespace:
            return last[2]
        effective = self._known_rules(user, namespace)
        self._last = (user, namespace, effective)
        return effective

    def _known_rules(self, user: UserInfo, namespace: str) -> _EffectiveRules:
        key = (user.username, user.groups, namespace)
        effective = self._cache.get(key)
        if effective is None:
            if len(user.groups) > MAX_GROUPS_CACHED:
                return self._collect(user, namespace)
            effective = self._cache[key] = self._collect(user, namespace)
        return effective

    def _collect(self, user: UserInfo, namespace: str) -> _EffectiveRules:
        cluster = self._cluster_bindings.of(user, "")
        local = self._bindings.of(user, namespace) if namespace else []
        resources: list[GrantedRule] = []
        paths: list[GrantedRule] = []
        problems: dict[str, None] = {}
        for grant in [*cluster, *local]:
            rules = self._rules(grant.role_kind, grant.role)
            if rules is None:
                problems[_role_not_found(grant.role_kind, grant.role).message] = None
                continue
            allowed = Decision(Ruling.ALLOW, "RBAC: allowed by " + grant.description)
            for rule in rules:
                if rule.resources:
                    resources.append((rule, allowed))
                if rule.paths and _is_cluster_wide(grant):
                    paths.append((rule, allowed))
        otherwise = Decision(Ruling.NO_OPINION, "RBAC: " + _joined_problems(tuple(problems)) if problems else "")
        return _EffectiveRules(tuple(resources), tuple(paths), tuple(problems), otherwise)

    def _rules(self, kind: str, role: NamespacedName) -> tuple[CompiledRule, ...] | None:
        roles = {"Role": self._roles, "ClusterRole": self._cluster_roles}.get(kind)
        return None if roles is None else roles.rules(role)


def _is_cluster_wide(grant: Grant) -> bool:
    return not grant.order[0][0]


def _role_not_found(kind: str, role: NamespacedName) -> NotFoundError:
    return NotFoundError.of(API_GROUP, _ROLE_PLURALS.get(kind, "clusterroles"), role[1])


def _joined_problems(problems: tuple[str, ...]) -> str:
    return problems[0] if len(problems) == 1 else "[" + ", ".join(problems) + "]"
