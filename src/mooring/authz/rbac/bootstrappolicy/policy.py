"""Default ClusterRoles, ClusterRoleBindings, Roles and RoleBindings of every cluster (docs/protocol/rbac.md#default-roles)."""

from __future__ import annotations

from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.bootstrappolicy.builders import cluster_binding, cluster_role, default, group
from mooring.authz.rbac.bootstrappolicy.componentroles import (
    COMPONENT_BINDINGS,
    COMPONENT_CLUSTER_BINDINGS,
    COMPONENT_CLUSTER_ROLES,
    COMPONENT_ROLES,
)
from mooring.authz.rbac.bootstrappolicy.noderules import NODE_RULES
from mooring.authz.rbac.bootstrappolicy.userfacingroles import READ, USER_ROLES
from mooring.authz.rbac.rules import ALL, path_rule, rule
from mooring.identity import AUTHENTICATED, MASTERS, NODES, RECOVERING_NODES, SERVICE_ACCOUNTS, UNAUTHENTICATED

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
    cluster_role(
        "mooring:recovering-node", rule("create," + READ, "certificates.k8s.io", "certificatesigningrequests")
    ),
    cluster_role("system:cluster-trust-bundle-discovery", rule(READ, "certificates.k8s.io", "clustertrustbundles")),
    cluster_role("mooring:login", path_rule("post", "/mooring/v1/login")),
    cluster_role("mooring:leave", path_rule("post", "/mooring/v1/leave")),
    cluster_role("mooring:status", path_rule("get", "/mooring/v1/status")),
    cluster_role("mooring:certificate-revocation-list", path_rule("get", "/mooring/v1/crl")),
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
    cluster_binding(
        "system:cluster-trust-bundle-discovery", "system:cluster-trust-bundle-discovery", group(SERVICE_ACCOUNTS)
    ),
    cluster_binding("mooring:recovering-node", "mooring:recovering-node", group(RECOVERING_NODES)),
    cluster_binding("mooring:login", "mooring:login", group(AUTHENTICATED)),
    cluster_binding("mooring:certificate-revocation-list", "mooring:certificate-revocation-list", group(AUTHENTICATED)),
    cluster_binding("mooring:leave", "mooring:leave", group(NODES)),
    cluster_binding("system:node", "system:node"),
)


def default_policy() -> tuple[Obj, ...]:
    """Return new copies of all objects: ClusterRoles, ClusterRoleBindings, Roles, RoleBindings.

    The namespaced ones need kube-system and kube-public to exist.
    """
    objects = (
        *map(default, _CLUSTER_ROLES),
        *USER_ROLES,
        *COMPONENT_CLUSTER_ROLES,
        *map(default, _CLUSTER_BINDINGS),
        *COMPONENT_CLUSTER_BINDINGS,
        *COMPONENT_ROLES,
        *COMPONENT_BINDINGS,
    )
    return tuple(deep_copy(obj) for obj in objects)
