"""RBAC objects for k3s's way: what joins with a token of its format, and what its agents do afterwards.

Rules kept here (docs/protocol/k3s.md#token-commands):
* The group `system:bootstrappers:k3s:default-node-token` gets the roles that kubeadm's group has, by bindings of their own, so that
  a cluster gets them whose kubeadm objects exist or were edited.
* It does not get `kubeadm:kubeadm-certs`, with which a machine becomes a control plane: k3s lets no server join with such a token.
* Joining k3s's way needs none of them except those for certificate requests.
* An agent of k3s reads as `system:k3s-controller`, and writes the status of its Node, for the network
  (docs/protocol/k3s.md#rights-of-an-agent). Without these rights it ends itself after 15 minutes. K3sControllerRestriction says
  what it may change there.
"""

from __future__ import annotations

from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.bootstrappolicy import kubeadm
from mooring.authz.rbac.bootstrappolicy.builders import binding, cluster_binding, cluster_role, group, user
from mooring.authz.rbac.bootstrappolicy.componentroles import SYSTEM
from mooring.authz.rbac.bootstrappolicy.policy import NODE_CLIENT
from mooring.authz.rbac.bootstrappolicy.userfacingroles import READ
from mooring.authz.rbac.rules import rule
from mooring.pki.x509.supervisorsigners import K3S_CONTROLLER
from mooring.trust.k3s.token import DEFAULT_GROUPS

_JOINERS = group(*DEFAULT_GROUPS)

_CONTROLLER_RULES = (
    rule(READ, "", "nodes"),
    rule("patch", "", "nodes/status"),
    rule(READ, "", "namespaces,pods,endpoints"),
    rule(READ, "discovery.k8s.io", "endpointslices"),
    rule("list,watch", "networking.k8s.io", "networkpolicies"),
)

_OBJECTS: tuple[Obj, ...] = (
    cluster_binding("mooring:k3s:get-nodes", kubeadm.GET_NODES, _JOINERS),
    cluster_binding("mooring:k3s:kubelet-bootstrap", kubeadm.BOOTSTRAPPER, _JOINERS),
    cluster_binding("mooring:k3s:node-autoapprove-bootstrap", NODE_CLIENT, _JOINERS),
    binding(SYSTEM, "mooring:k3s:nodes-kubeadm-config", kubeadm.KUBEADM_CONFIG, _JOINERS),
    binding(SYSTEM, "mooring:k3s:kubelet-config", kubeadm.KUBELET_CONFIG, _JOINERS),
    binding(SYSTEM, "mooring:k3s:kube-proxy", kubeadm.KUBE_PROXY, _JOINERS),
    cluster_role(K3S_CONTROLLER, *_CONTROLLER_RULES),
    cluster_binding(K3S_CONTROLLER, K3S_CONTROLLER, user(K3S_CONTROLLER)),
)


def k3s_policy() -> tuple[Obj, ...]:
    """Return new copies of all objects; they need kube-system to exist."""
    return tuple(deep_copy(obj) for obj in _OBJECTS)
