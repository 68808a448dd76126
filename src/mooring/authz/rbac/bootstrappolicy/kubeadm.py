"""RBAC objects that `kubeadm init` adds so that machines can join (docs/protocol/kubeadm-init.md).

Rules kept here: joining machines get their permissions through the group `system:bootstrappers:kubeadm:default-node-token`, never
through the bare `system:bootstrappers`. cluster-info is readable by the anonymous **user**. Certificate rotation is granted to
`system:nodes`.
"""

from __future__ import annotations

from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.bootstrappolicy.builders import (
    binding,
    cluster_binding,
    cluster_role,
    group,
    role,
    service_account,
    user,
)
from mooring.authz.rbac.bootstrappolicy.componentroles import PUBLIC, SYSTEM
from mooring.authz.rbac.bootstrappolicy.policy import NODE_CLIENT, SELF_NODE_CLIENT
from mooring.authz.rbac.rules import rule
from mooring.identity import ANONYMOUS, NODES
from mooring.pki.x509.profiles import CLUSTER_ADMINS
from mooring.trust.bootstraptoken.token import DEFAULT_GROUPS

KUBELET_CLIENT_USER = "kube-apiserver-kubelet-client"

GET_NODES = "kubeadm:get-nodes"
BOOTSTRAPPER = "system:node-bootstrapper"
KUBEADM_CONFIG = "kubeadm:nodes-kubeadm-config"
KUBELET_CONFIG = "kubeadm:kubelet-config"
KUBE_PROXY = "kube-proxy"

_JOINERS = group(*DEFAULT_GROUPS)
_MEMBERS = group(NODES)
_CLUSTER_INFO = "kubeadm:bootstrap-signer-clusterinfo"
_CERTIFICATES = "kubeadm:kubeadm-certs"

_OBJECTS: tuple[Obj, ...] = (
    cluster_role(GET_NODES, rule("get", "", "nodes")),
    cluster_binding(GET_NODES, GET_NODES, _JOINERS),
    cluster_binding("kubeadm:kubelet-bootstrap", BOOTSTRAPPER, _JOINERS),
    cluster_binding("kubeadm:node-autoapprove-bootstrap", NODE_CLIENT, _JOINERS),
    cluster_binding("kubeadm:node-autoapprove-certificate-rotation", SELF_NODE_CLIENT, _MEMBERS),
    cluster_binding("kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", user(KUBELET_CLIENT_USER)),
    cluster_binding("kubeadm:cluster-admins", "cluster-admin", group(CLUSTER_ADMINS)),
    role(PUBLIC, _CLUSTER_INFO, rule("get", "", "configmaps", "cluster-info")),
    binding(PUBLIC, _CLUSTER_INFO, _CLUSTER_INFO, user(ANONYMOUS)),
    role(SYSTEM, KUBEADM_CONFIG, rule("get", "", "configmaps", "kubeadm-config")),
    binding(SYSTEM, KUBEADM_CONFIG, KUBEADM_CONFIG, _JOINERS, _MEMBERS),
    role(SYSTEM, KUBELET_CONFIG, rule("get", "", "configmaps", "kubelet-config")),
    binding(SYSTEM, KUBELET_CONFIG, KUBELET_CONFIG, _JOINERS, _MEMBERS),
    role(SYSTEM, _CERTIFICATES, rule("get", "", "secrets", "kubeadm-certs")),
    binding(SYSTEM, _CERTIFICATES, _CERTIFICATES, _JOINERS),
    cluster_binding("kubeadm:node-proxier", "system:node-proxier", service_account(SYSTEM, KUBE_PROXY)),
    role(SYSTEM, KUBE_PROXY, rule("get", "", "configmaps", "kube-proxy")),
    binding(SYSTEM, KUBE_PROXY, KUBE_PROXY, _JOINERS),
)


def kubeadm_policy() -> tuple[Obj, ...]:
    """Return new copies of all objects; they need kube-system and kube-public to exist."""
    return tuple(deep_copy(obj) for obj in _OBJECTS)
