"""The RBAC objects every cluster has, as data, and how they are reconciled at start.

Rules kept here (docs/protocol/rbac.md#default-roles):
1. Reconciling only adds: missing rules, missing subjects, missing labels and annotations. What an administrator added stays.
2. An object whose autoupdate annotation is `"false"` is left alone.
3. An aggregated role keeps its rules (the controller's), and gets missing selectors; a role that should not aggregate stops.
4. A binding to another role cannot be changed (roleRef is immutable): the wanted object comes back without uid and
   resourceVersion, to be created after the old one is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooring.apimachinery.patch.merge import copied
from mooring.apimachinery.schema import Obj
from mooring.authz.node.rules import NODE_RULES
from mooring.authz.rbac.bootstrappolicy.components import (
    COMPONENT_BINDINGS,
    COMPONENT_CLUSTER_BINDINGS,
    COMPONENT_CLUSTER_ROLES,
    COMPONENT_ROLES,
)
from mooring.authz.rbac.bootstrappolicy.objects import AUTOUPDATE, cluster_binding, cluster_role, default, group
from mooring.authz.rbac.bootstrappolicy.users import READ, USER_ROLES
from mooring.authz.rbac.escalation import covers
from mooring.authz.rbac.rules import ALL, compile_rule, compile_rules, path_rule, rule
from mooring.identity import AUTHENTICATED, MASTERS, SERVICE_ACCOUNTS, UNAUTHENTICATED

_CSRS = "system:certificates.k8s.io:certificatesigningrequests:"
NODE_CLIENT = _CSRS + "nodeclient"
SELF_NODE_CLIENT = _CSRS + "selfnodeclient"

_PUBLIC_PATHS = "/healthz,/livez,/readyz,/version,/version/"
_DISCOVERY_PATHS = "/api,/api/*,/apis,/apis/*,/healthz,/livez,/openapi,/openapi/*,/readyz,/version,/version/"
_MONITORING_PATHS = "/flagz,/healthz,/healthz/*,/livez,/livez/*,/metrics,/metrics/slis,/readyz,/readyz/*,/statusz"
_ISSUER_PATHS = "/.well-known/openid-configuration,/.well-known/openid-configuration/,/openid/v1/jwks,/openid/v1/jwks/"


def _approver(signer: str) -> Obj:
    return cluster_role(
        f"system:certificates.k8s.io:{signer}-approver",
        rule("approve", "certificates.k8s.io", "signers", f"kubernetes.io/{signer}"),
    )


_CLUSTER_ROLES = (
    cluster_role("cluster-admin", rule(ALL, ALL, ALL), path_rule(ALL, ALL)),
    cluster_role("system:discovery", path_rule("get", _DISCOVERY_PATHS)),
    cluster_role("system:public-info-viewer", path_rule("get", _PUBLIC_PATHS)),
    cluster_role(
        "system:basic-user",
        rule("create", "authorization.k8s.io", "selfsubjectaccessreviews,selfsubjectrulesreviews"),
        rule("create", "authentication.k8s.io", "selfsubjectreviews"),
    ),
    cluster_role("system:monitoring", path_rule("get", _MONITORING_PATHS), rule("get", "", "nodes/metrics")),
    cluster_role(
        "system:node-bootstrapper", rule("create," + READ, "certificates.k8s.io", "certificatesigningrequests")
    ),
    cluster_role(NODE_CLIENT, rule("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient")),
    cluster_role(SELF_NODE_CLIENT, rule("create", "certificates.k8s.io", "certificatesigningrequests/selfnodeclient")),
    _approver("legacy-unknown"),
    _approver("kubelet-serving"),
    _approver("kube-apiserver-client"),
    _approver("kube-apiserver-client-kubelet"),
    cluster_role("system:service-account-issuer-discovery", path_rule("get", _ISSUER_PATHS)),
    cluster_role("mooring:login", path_rule("post", "/mooring/v1/login")),
    cluster_role(
        "system:auth-delegator",
        rule("create", "authentication.k8s.io", "tokenreviews"),
        rule("create", "authorization.k8s.io", "subjectaccessreviews"),
    ),
    cluster_role(
        "system:kubelet-api-admin",
        rule(READ, "", "nodes"),
        rule("proxy", "", "nodes"),
        rule(ALL, "", "nodes/log,nodes/metrics,nodes/proxy,nodes/stats"),
        rule(ALL, "", "nodes/configz,nodes/healthz,nodes/pods"),
    ),
    cluster_role("system:node", *NODE_RULES),
)

_CLUSTER_BINDINGS = (
    cluster_binding("cluster-admin", "cluster-admin", group(MASTERS)),
    cluster_binding("system:discovery", "system:discovery", group(AUTHENTICATED)),
    cluster_binding(
        "system:public-info-viewer", "system:public-info-viewer", group(AUTHENTICATED), group(UNAUTHENTICATED)
    ),
    cluster_binding("system:basic-user", "system:basic-user", group(AUTHENTICATED)),
    cluster_binding("system:monitoring", "system:monitoring", group("system:monitoring")),
    cluster_binding(
        "system:service-account-issuer-discovery", "system:service-account-issuer-discovery", group(SERVICE_ACCOUNTS)
    ),
    cluster_binding("mooring:login", "mooring:login", group(AUTHENTICATED)),
    cluster_binding("system:node", "system:node"),
)


def default_policy() -> tuple[Obj, ...]:
    """Fresh copies of all objects: ClusterRoles, ClusterRoleBindings, Roles, RoleBindings. Namespaced ones need
    kube-system and kube-public to exist."""
    objects = (
        *map(default, _CLUSTER_ROLES),
        *USER_ROLES,
        *COMPONENT_CLUSTER_ROLES,
        *map(default, _CLUSTER_BINDINGS),
        *COMPONENT_CLUSTER_BINDINGS,
        *COMPONENT_ROLES,
        *COMPONENT_BINDINGS,
    )
    return tuple(copied(obj) for obj in objects)


def reconciled(existing: Obj | None, wanted: Obj) -> Obj | None:
    """What to write so that `existing` grants at least `wanted`; None when nothing is to be done."""
    if existing is None:
        return copied(wanted)
    if (existing["metadata"].get("annotations") or {}).get(AUTOUPDATE) == "false":
        return None
    if "roleRef" in wanted and existing.get("roleRef") != wanted["roleRef"]:
        return copied(wanted)
    result = copied(existing)
    for marks in ("labels", "annotations"):
        merged = {**wanted["metadata"].get(marks, {}), **(existing["metadata"].get(marks) or {})}
        if merged:
            result["metadata"][marks] = merged
    if "roleRef" in wanted:
        _add(result, "subjects", wanted.get("subjects", ()))
    elif "aggregationRule" in wanted:
        _add(result.setdefault("aggregationRule", {}), "clusterRoleSelectors", _selectors(wanted))
    else:
        result.pop("aggregationRule", None)
        held = compile_rules(existing.get("rules"))
        missing = [one for one in wanted.get("rules", ()) if covers(held, (compile_rule(one),))]
        _add(result, "rules", missing)
    return None if result == existing else result


def _selectors(role: Obj) -> Sequence[Obj]:
    selectors: Sequence[Obj] = role["aggregationRule"]["clusterRoleSelectors"]
    return selectors


def _add(holder: Obj, key: str, wanted: Sequence[Obj]) -> None:
    """Append to the list `holder[key]` what is not there yet; leave an absent list absent when nothing is missing."""
    present = holder.get(key) or []
    missing = [copied(one) for one in wanted if one not in present]
    if missing:
        holder[key] = [*present, *missing]
