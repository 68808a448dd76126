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

_JOINERS = group(*DEFAULT_GROUPS)
_MEMBERS = group(NODES)
_CLUSTER_INFO = "kubeadm:bootstrap-signer-clusterinfo"
_KUBEADM_CONFIG = "kubeadm:nodes-kubeadm-config"
_KUBELET_CONFIG = "kubeadm:kubelet-config"
_CERTIFICATES = "kubeadm:kubeadm-certs"
_KUBE_PROXY = "kube-proxy"

_OBJECTS: tuple[Obj, ...] = (
    cluster_role("kubeadm:get-nodes", rule("get", "", "nodes")),
    cluster_binding("kubeadm:get-nodes", "kubeadm:get-nodes", _JOINERS),
    cluster_binding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", _JOINERS),
    cluster_binding("kubeadm:node-autoapprove-bootstrap", NODE_CLIENT, _JOINERS),
    cluster_binding("kubeadm:node-autoapprove-certificate-rotation", SELF_NODE_CLIENT, _MEMBERS),
    cluster_binding("kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", user(KUBELET_CLIENT_USER)),
    cluster_binding("kubeadm:cluster-admins", "cluster-admin", group(CLUSTER_ADMINS)),
    role(PUBLIC, _CLUSTER_INFO, rule("get", "", "configmaps", "cluster-info")),
    binding(PUBLIC, _CLUSTER_INFO, _CLUSTER_INFO, user(ANONYMOUS)),
    role(SYSTEM, _KUBEADM_CONFIG, rule("get", "", "configmaps", "kubeadm-config")),
    binding(SYSTEM, _KUBEADM_CONFIG, _KUBEADM_CONFIG, _JOINERS, _MEMBERS),
    role(SYSTEM, _KUBELET_CONFIG, rule("get", "", "configmaps", "kubelet-config")),
    binding(SYSTEM, _KUBELET_CONFIG, _KUBELET_CONFIG, _JOINERS, _MEMBERS),
    role(SYSTEM, _CERTIFICATES, rule("get", "", "secrets", "kubeadm-certs")),
    binding(SYSTEM, _CERTIFICATES, _CERTIFICATES, _JOINERS),
    cluster_binding("kubeadm:node-proxier", "system:node-proxier", service_account(SYSTEM, _KUBE_PROXY)),
    role(SYSTEM, _KUBE_PROXY, rule("get", "", "configmaps", "kube-proxy")),
    binding(SYSTEM, _KUBE_PROXY, _KUBE_PROXY, _JOINERS),
)


def kubeadm_policy() -> tuple[Obj, ...]:
    """Return new copies of all objects; they need kube-system and kube-public to exist."""
    return tuple(deep_copy(obj) for obj in _OBJECTS)
