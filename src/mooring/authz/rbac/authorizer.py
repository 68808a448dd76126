"""Role-based access control.

Rules kept here (docs/protocol/rbac.md#evaluation, docs/protocol/authorization.md#access-reviews):
1. ClusterRoleBindings are looked at first, then the RoleBindings of the request's namespace. Paths only ever match
   through cluster bindings.
2. An allow is explained as `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to Group "g"`; a RoleBinding prints
   `"name/namespace"`.
3. A binding to a missing role grants nothing and is told in the reason of the refusal.
4. RBAC never denies: what it does not allow it has no opinion on.
5. Views are compiled once per revision (`rbacindex`); who is granted what is remembered until a view changes, for a
   bounded number of users.
"""

from __future__ import annotations

from dataclasses import dataclass

from mooring.api.view import Views
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.authz.rbac.index import Bindings, Grant, Place, Roles
from mooring.authz.rbac.rules import Rule
from mooring.errors import NotFoundError
from mooring.identity import UserInfo

API_GROUP = "rbac.authorization.k8s.io"
MAX_REMEMBERED = 4096  # (user, groups, namespace) triples: as many as a busy cluster has active callers; a few MiB

_ROLE_PLURALS = {"ClusterRole": "clusterroles", "Role": "roles"}
MAX_GROUPS_REMEMBERED = 1000
"""Groups of a user whose rules are remembered: an access review may name a hundred thousand, and a key holds them all."""

Granted = tuple[Rule, Decision]
"""A compiled rule, and what is decided when it allows."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What somebody is granted in one namespace, the problems met, and what is decided when nothing allows."""

    resources: tuple[Granted, ...]
    paths: tuple[Granted, ...]
    problems: tuple[str, ...]
    otherwise: Decision


class Rbac:
    """The RBAC authorizer. One per process: it keeps what it compiled."""

    name = "RBAC"

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._roles = Roles()
        self._cluster_roles = Roles()
        self._bindings = Bindings("RoleBinding")
        self._cluster_bindings = Bindings("ClusterRoleBinding")
        self._held: dict[tuple[str, tuple[str, ...], str], _Held] = {}
        self._max_remembered = max_remembered

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        """Allow, or no opinion with the problems met while looking."""
        namespace = attributes.namespace if attributes.resource else ""
        held = self._held_by(attributes.user, namespace, views)
        for rule, allowed in held.resources if attributes.resource else held.paths:
            if rule.allows(attributes):
                return allowed
        return held.otherwise

    def rules_for(self, user: UserInfo, namespace: str, views: Views) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
        """Every rule `user` holds in `namespace` ("": cluster-wide only), and the problems met (rule 3)."""
        held = self._held_by(user, namespace, views)
        only_paths = tuple(rule for rule, _ in held.paths if not rule.resources)
        return tuple(rule for rule, _ in held.resources) + only_paths, held.problems

    def role_rules(self, kind: str, place: Place, views: Views) -> tuple[Rule, ...]:
        """The rules of one role. Raises NotFoundError."""
        self._refresh(views)
        rules = self._rules(kind, place)
        if rules is None:
            raise _missing(kind, place)
        return rules

    def _refresh(self, views: Views) -> None:
        changed = self._roles.refresh(views["roles"])
        changed |= self._cluster_roles.refresh(views["clusterroles"])
        changed |= self._bindings.refresh(views["rolebindings"])
        changed |= self._cluster_bindings.refresh(views["clusterrolebindings"])
        if changed:
            self._held.clear()

    def _held_by(self, user: UserInfo, namespace: str, views: Views) -> _Held:
        self._refresh(views)
        key = (user.username, user.groups, namespace)
        held = self._held.get(key)
        if held is None:
            if len(user.groups) > MAX_GROUPS_REMEMBERED:
                return self._collect(user, namespace)
            if len(self._held) >= self._max_remembered:
                self._held.pop(next(iter(self._held)))
            held = self._held[key] = self._collect(user, namespace)
        return held

    def _collect(self, user: UserInfo, namespace: str) -> _Held:
        cluster = self._cluster_bindings.of(user, "")
        local = self._bindings.of(user, namespace) if namespace else []
        resources: list[Granted] = []
        paths: list[Granted] = []
        problems: dict[str, None] = {}
        for grant in [*cluster, *local]:
            rules = self._rules(grant.role_kind, grant.role)
            if rules is None:
                problems[_missing(grant.role_kind, grant.role).message] = None
                continue
            allowed = Decision(Ruling.ALLOW, "RBAC: allowed by " + grant.sentence)
            for rule in rules:
                if rule.resources:
                    resources.append((rule, allowed))
                if rule.paths and _cluster_wide(grant):
                    paths.append((rule, allowed))
        otherwise = Decision(Ruling.NO_OPINION, "RBAC: " + _together(tuple(problems)) if problems else "")
        return _Held(tuple(resources), tuple(paths), tuple(problems), otherwise)

    def _rules(self, kind: str, place: Place) -> tuple[Rule, ...] | None:
        roles = {"Role": self._roles, "ClusterRole": self._cluster_roles}.get(kind)
        return None if roles is None else roles.rules(place)


def _cluster_wide(grant: Grant) -> bool:
    return not grant.order[0][0]


def _missing(kind: str, place: Place) -> NotFoundError:
    return NotFoundError.of(API_GROUP, _ROLE_PLURALS.get(kind, "clusterroles"), place[1])


def _together(problems: tuple[str, ...]) -> str:
    return problems[0] if len(problems) == 1 else "[" + ", ".join(problems) + "]"
