"""Default roles and bindings of cluster components: kube-controller-manager, kube-scheduler, kube-proxy, each controller.

Rules kept here (docs/protocol/bootstrap-tokens.md#token-cleaner, docs/protocol/cluster-info.md#bootstrap-signer,
docs/protocol/rbac.md#default-roles):
* A controller acts as ServiceAccount kube-system/<name> and has the role `system:controller:<name>`, which allows what that
  controller does and nothing else.
* The token cleaner and the bootstrap signer need only their namespaces, so their roles are namespaced.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.bootstrappolicy.builders import (
    binding,
    cluster_binding,
    cluster_role,
    default,
    role,
    service_account,
    user,
)
from mooring.authz.rbac.bootstrappolicy.userfacingroles import READ, READ_WRITE
from mooring.authz.rbac.rules import rule

SYSTEM = "kube-system"
PUBLIC = "kube-public"

_EVENTS = rule("create,patch,update", ",events.k8s.io", "events")
_CSR_GROUP = "certificates.k8s.io"
_BUILTIN_SIGNERS = (
    "kubernetes.io/kube-apiserver-client,kubernetes.io/kube-apiserver-client-kubelet,"
    "kubernetes.io/kubelet-serving,kubernetes.io/legacy-unknown"
)

_CONTROLLERS: dict[str, tuple[Obj, ...]] = {
    "certificate-controller": (
        rule("delete," + READ, _CSR_GROUP, "certificatesigningrequests"),
        rule("update", _CSR_GROUP, "certificatesigningrequests/approval,certificatesigningrequests/status"),
        rule("approve", _CSR_GROUP, "signers", "kubernetes.io/kube-apiserver-client-kubelet"),
        rule("sign", _CSR_GROUP, "signers", _BUILTIN_SIGNERS),
        rule("create", "authorization.k8s.io", "subjectaccessreviews"),
        _EVENTS,
    ),
    "kubelet-serving-approver": (
        rule(READ, _CSR_GROUP, "certificatesigningrequests"),
        rule("update", _CSR_GROUP, "certificatesigningrequests/approval"),
        rule("approve", _CSR_GROUP, "signers", "kubernetes.io/kubelet-serving"),
        rule(READ, "", "configmaps,endpoints,nodes,services"),
    ),
    "machine-inventory-approver": (
        rule(READ, _CSR_GROUP, "certificatesigningrequests"),
        rule("update", _CSR_GROUP, "certificatesigningrequests/approval"),
        rule("approve", _CSR_GROUP, "signers", "kubernetes.io/kube-apiserver-client-kubelet"),
        rule("update," + READ, "mooring.dev", "authorizedmachines"),
    ),
    "root-ca-cert-publisher": (rule("create,update", "", "configmaps"), _EVENTS),
    "kube-apiserver-serving-clustertrustbundle-publisher": (
        rule("attest", _CSR_GROUP, "signers", "kubernetes.io/kube-apiserver-serving"),
        rule("create,delete,list,update,watch", _CSR_GROUP, "clustertrustbundles"),
        _EVENTS,
    ),
    "podcertificaterequestcleaner": (rule("delete," + READ, _CSR_GROUP, "podcertificaterequests"),),
    "service-account-controller": (rule("create", "", "serviceaccounts"), _EVENTS),
    "legacy-service-account-token-cleaner": (
        rule("get", "", "configmaps", "kube-apiserver-legacy-service-account-token-tracking"),
        rule("delete,patch", "", "secrets"),
    ),
    "revocation-cleaner": (rule("delete," + READ, "mooring.dev", "certificaterevocations"),),
    "clusterrole-aggregation-controller": (
        rule("escalate,patch,update," + READ, "rbac.authorization.k8s.io", "clusterroles"),
    ),
    "namespace-controller": (
        rule("delete," + READ, "", "namespaces"),
        rule("update", "", "namespaces/finalize,namespaces/status"),
        rule("delete,deletecollection," + READ, "*", "*"),
    ),
    "generic-garbage-collector": (rule("delete,get,list,patch,update,watch", "*", "*"), _EVENTS),
}

_LEADER = "coordination.k8s.io"
_DEVICES = "resource.k8s.io"

_MANAGER = cluster_role(
    "system:kube-controller-manager",
    _EVENTS,
    rule("create", _LEADER, "leases"),
    rule("get,update", _LEADER, "leases", "kube-controller-manager"),
    rule("create", "", "secrets,serviceaccounts"),
    rule("delete", "", "secrets"),
    rule("get", "", "configmaps,namespaces,secrets,serviceaccounts"),
    rule("update", "", "secrets,serviceaccounts"),
    rule("create", "authentication.k8s.io", "tokenreviews"),
    rule("create", "authorization.k8s.io", "subjectaccessreviews"),
    rule("list,watch", "*", "*"),
    rule("create", "", "serviceaccounts/token"),
)

_SCHEDULER = cluster_role(
    "system:kube-scheduler",
    _EVENTS,
    rule("create", _LEADER, "leases"),
    rule("get,list,update,watch", _LEADER, "leases", "kube-scheduler"),
    rule(READ_WRITE, _LEADER, "leasecandidates"),
    rule(READ, "", "nodes"),
    rule("delete," + READ, "", "pods"),
    rule("create", "", "bindings,pods/binding"),
    rule("patch,update", "", "pods/status"),
    rule(READ, "", "replicationcontrollers,services"),
    rule(READ, "apps,extensions", "replicasets"),
    rule(READ, "apps", "statefulsets"),
    rule(READ, "policy", "poddisruptionbudgets"),
    rule(READ, "", "persistentvolumeclaims,persistentvolumes"),
    rule("create", "authentication.k8s.io", "tokenreviews"),
    rule("create", "authorization.k8s.io", "subjectaccessreviews"),
    rule(READ, "storage.k8s.io", "csinodes"),
    rule(READ, "storage.k8s.io", "volumeattachments"),
    rule(READ, "", "namespaces"),
    rule(READ, "storage.k8s.io", "csidrivers"),
    rule(READ, "storage.k8s.io", "csistoragecapacities"),
    rule(READ, _DEVICES, "deviceclasses"),
    rule("patch,update," + READ, _DEVICES, "resourceclaims"),
    rule("patch,update," + READ, _DEVICES, "resourceclaims/status"),
    rule("update", "", "pods/finalizers"),
    rule(READ, _DEVICES, "resourceslices"),
    rule("create,delete", _DEVICES, "resourceclaims"),
    rule("patch,update", _DEVICES, "resourceclaims/binding"),
)

_VOLUME_SCHEDULER = cluster_role(
    "system:volume-scheduler",
    rule("patch,update," + READ, "", "persistentvolumes"),
    rule(READ, "storage.k8s.io", "storageclasses"),
    rule("patch,update," + READ, "", "persistentvolumeclaims"),
)

_PROXIER = cluster_role(
    "system:node-proxier",
    rule("list,watch", "", "endpoints,services"),
    rule("get,list,watch", "", "nodes"),
    _EVENTS,
    rule("list,watch", "networking.k8s.io", "servicecidrs"),
    rule("list,watch", "discovery.k8s.io", "endpointslices"),
)

_ADD_ONS = (
    cluster_role(
        "system:heapster", rule(READ, "", "events,namespaces,nodes,pods"), rule(READ, "extensions", "deployments")
    ),
    cluster_role("system:kube-aggregator", rule(READ, "", "endpoints,services")),
    cluster_role("system:kube-dns", rule("list,watch", "", "endpoints,services")),
    cluster_role("system:node-problem-detector", rule("get", "", "nodes"), rule("patch", "", "nodes/status"), _EVENTS),
    cluster_role(
        "system:persistent-volume-provisioner",
        rule("create,delete," + READ, "", "persistentvolumes"),
        rule("update," + READ, "", "persistentvolumeclaims"),
        rule(READ, "storage.k8s.io", "storageclasses"),
        rule("watch", "", "events"),
        _EVENTS,
    ),
)
"""Roles that manifests of common add-ons bind without defining them."""

COMPONENT_CLUSTER_ROLES: tuple[Obj, ...] = (
    *map(default, (_MANAGER, _SCHEDULER, _VOLUME_SCHEDULER, _PROXIER, *_ADD_ONS)),
    *(default(cluster_role(f"system:controller:{name}", *rules)) for name, rules in _CONTROLLERS.items()),
)

COMPONENT_CLUSTER_BINDINGS: tuple[Obj, ...] = (
    default(
        cluster_binding(
            "system:kube-controller-manager", "system:kube-controller-manager", user("system:kube-controller-manager")
        )
    ),
    default(cluster_binding("system:kube-scheduler", "system:kube-scheduler", user("system:kube-scheduler"))),
    default(cluster_binding("system:volume-scheduler", "system:volume-scheduler", user("system:kube-scheduler"))),
    default(cluster_binding("system:node-proxier", "system:node-proxier", user("system:kube-proxy"))),
    default(cluster_binding("system:kube-dns", "system:kube-dns", service_account(SYSTEM, "kube-dns"))),
    *(
        default(
            cluster_binding(f"system:controller:{name}", f"system:controller:{name}", service_account(SYSTEM, name))
        )
        for name in _CONTROLLERS
    ),
)

_AUTHENTICATION_READER = "extension-apiserver-authentication-reader"
_SIGNER = "system:controller:bootstrap-signer"
_CLEANER = "system:controller:token-cleaner"
_CLOUD = "system:controller:cloud-provider"
_CANDIDATES = "leader-election-controller"
"""Service account of the controller that chooses the leader among LeaseCandidates; kube-controller-manager's binding names it."""


def _leader_role(component: str) -> Obj:
    name = f"system::leader-locking-{component}"
    return role(
        SYSTEM,
        name,
        rule("create,update," + READ, _LEADER, "leases"),
        rule("create,update," + READ, _LEADER, "leasecandidates"),
    )


def _leader_binding(component: str, *others: str) -> Obj:
    name = f"system::leader-locking-{component}"
    accounts = (service_account(SYSTEM, account) for account in (component, *others))
    return binding(SYSTEM, name, name, user(f"system:{component}"), *accounts)


COMPONENT_ROLES: tuple[Obj, ...] = tuple(
    map(
        default,
        (
            role(SYSTEM, _AUTHENTICATION_READER, rule(READ, "", "configmaps", "extension-apiserver-authentication")),
            role(SYSTEM, _SIGNER, rule(READ, "", "secrets")),
            role(SYSTEM, _CLOUD, rule("create," + READ, "", "configmaps")),
            role(SYSTEM, _CLEANER, rule("delete," + READ, "", "secrets"), _EVENTS),
            role(
                PUBLIC, _SIGNER, rule(READ, "", "configmaps"), rule("update", "", "configmaps", "cluster-info"), _EVENTS
            ),
            _leader_role("kube-controller-manager"),
            _leader_role("kube-scheduler"),
        ),
    )
)

COMPONENT_BINDINGS: tuple[Obj, ...] = tuple(
    map(
        default,
        (
            binding(
                SYSTEM,
                f"system::{_AUTHENTICATION_READER}",
                _AUTHENTICATION_READER,
                user("system:kube-controller-manager"),
                user("system:kube-scheduler"),
            ),
            binding(SYSTEM, _SIGNER, _SIGNER, service_account(SYSTEM, "bootstrap-signer")),
            binding(SYSTEM, _CLOUD, _CLOUD, service_account(SYSTEM, "cloud-provider")),
            binding(SYSTEM, _CLEANER, _CLEANER, service_account(SYSTEM, "token-cleaner")),
            binding(PUBLIC, _SIGNER, _SIGNER, service_account(SYSTEM, "bootstrap-signer")),
            _leader_binding("kube-controller-manager", _CANDIDATES),
            _leader_binding("kube-scheduler"),
        ),
    )
)
