"""RBAC authorizer: decides by Roles and bindings.

Rules kept here (docs/protocol/rbac.md#evaluation, docs/protocol/authorization.md#access-reviews):
1. ClusterRoleBindings are evaluated first, then the RoleBindings of the request's namespace. Non-resource paths match only through
   ClusterRoleBindings.
2. The reason of an allow is `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to Group "g"`; a RoleBinding prints
   `"name/namespace"`.
3. A binding to a missing role grants nothing, and the reason of the refusal reports it.
4. RBAC never denies: it has no opinion on requests that it does not allow.
5. Views are compiled once per revision (`mooring.authz.rbac.index`). The effective rules of a user are cached until a view changes,
   for a bounded number of users.
"""

from __future__ import annotations

from dataclasses import dataclass

from mooring.api.view import NamespacedName, Views
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.authz.rbac.index import Bindings, Grant, Roles
from mooring.authz.rbac.rules import API_GROUP, CompiledRule
from mooring.bounded import Bounded
from mooring.errors import NotFoundError
from mooring.identity import UserInfo

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
