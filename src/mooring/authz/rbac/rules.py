"""RBAC rules: PolicyRules compiled so that matching a request costs well under a microsecond; builders of rules, roles, bindings.

Rules kept here (docs/protocol/rbac.md#evaluation):
1. A verb and an API group match exactly or by `*`.
2. A resource matches by `*` (subresources too), exactly as `res` or `res/sub`, or as `*/sub`. `pods` does not match `pods/log`.
3. Empty resourceNames match any name; otherwise the name must be listed, so a request without a name never matches.
4. A path matches by `*`, exactly, or by a prefix before a final `*` (`/healthz/*`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from mooring.apimachinery.schema import Obj
from mooring.authz.attributes import Attributes

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
