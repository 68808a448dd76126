"""Admission of writes of machines besides NodeRestriction: Nodes, requests of recovering nodes, the user of k3s's agents."""

from __future__ import annotations

from mooring.api.mooring.membership import lapse
from mooring.apimachinery.schema import Obj
from mooring.authz.node import node_name
from mooring.errors import ServiceUnavailableError
from mooring.identity import NODE_NAME, NODE_PREFIX, RECOVERING_NODE_PREFIX, RECOVERING_NODES
from mooring.pki.x509.signers import K3S_CONTROLLER, KUBE_APISERVER_CLIENT_KUBELET
from mooring.registry.admission.certificates import CSRS, parse_new_request
from mooring.registry.admission.request import AdmissionRequest

# NodeMembership: a machine whose Node was deleted does not create it again by itself.
#
# Rules kept here: the certificate of such a machine is rejected before admission (`mooring.authn.revocations`). This plugin
# refuses the Node when the machine authenticates in another way, such as by a bearer token or as an impersonated user. While the
# membership cannot be read, the machine waits. An administrator may create the Node.


class NodeMembership:
    name = "NodeMembership"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "CREATE" or request.resource != "nodes" or node_name(request.user) != request.name:
            return
        found = lapse(request.name, request.views)
        if found is not None and found.is_undecided:
            raise ServiceUnavailableError(f"whether this machine is a member cannot be read now: {found.detail}")
        if found is not None:
            raise request.forbidden(
                "the Node was deleted, which ended the membership of this machine; let it join again with a valid token "
                "(mooring join)"
            )


# RecoveringNodeRestriction: a recovering node may request a client certificate of its own node, and write nothing else.
#
# Rules kept here (docs/come-back-after-expiry.md): for users in the group system:recovering-nodes, whatever RBAC grants them:
# * A CertificateSigningRequest is for the signer kube-apiserver-client-kubelet, and its common name is that of the node.
# * No other stored object may be written. Access reviews about itself are not stored objects.


class RecoveringNodeRestriction:
    name = "RecoveringNodeRestriction"

    def admit(self, request: AdmissionRequest) -> None:
        if RECOVERING_NODES not in request.user.groups or request.kind.virtual:
            return
        if request.operation != "CREATE" or request.resource != CSRS or request.new is None:
            raise request.forbidden("a recovering node may only create certificate signing requests")
        if (request.new.get("spec") or {}).get("signerName") != KUBE_APISERVER_CLIENT_KUBELET:
            raise request.forbidden(f"a recovering node may only use the signer {KUBE_APISERVER_CLIENT_KUBELET}")
        own = NODE_PREFIX + request.user.username.removeprefix(RECOVERING_NODE_PREFIX)
        parsed = parse_new_request(request)
        if parsed is not None and parsed.common_name != own:
            raise request.forbidden(f'"{request.user.username}" may only request a certificate of "{own}"')


# K3sControllerRestriction: the user that all agents of k3s share may change the status of its own Node, and nothing that decides.
#
# Rules kept here (docs/protocol/k3s.md#rights-of-an-agent), for the user `system:k3s-controller`:
# * The Node is that of the machine to which the client certificate is bound. A certificate without a machine may change none.
# * Neither labels, finalizers, owner references nor taints change, and no addresses. NodeRestriction judges users of nodes alone,
#   and a patch of `/status` takes labels, too.

RESOURCES = ("nodes", "nodes/status")
_METADATA = ("labels", "finalizers", "ownerReferences")


class K3sControllerRestriction:
    name = "K3sControllerRestriction"

    def admit(self, request: AdmissionRequest) -> None:
        if request.user.username != K3S_CONTROLLER or request.resource not in RESOURCES:
            return
        machines = request.user.extra.get(NODE_NAME) or ()
        if not machines:
            raise request.forbidden("the certificate names no machine: restart the agent, which requests another one")
        if request.name not in machines:
            raise request.forbidden(
                f'the certificate of node "{machines[0]}" is not allowed to modify node "{request.name}"'
            )
        if request.new is None or request.old is None:
            raise request.forbidden(
                f"{K3S_CONTROLLER} may change the status of its Node, and may neither create nor delete it"
            )
        for part in _changed(request.new, request.old):
            raise request.forbidden(f"{K3S_CONTROLLER} is not allowed to modify {part}")


def _changed(new: Obj, old: Obj) -> list[str]:
    """Return the protected parts that differ; what is missing is the same as what is empty."""
    parts = [(f"metadata.{key}", new["metadata"].get(key), old["metadata"].get(key)) for key in _METADATA]
    parts.append(("spec", new.get("spec"), old.get("spec")))
    parts.append(("status.addresses", _addresses(new), _addresses(old)))
    return [name for name, after, before in parts if (after or None) != (before or None)]


def _addresses(node: Obj) -> list[Obj]:
    addresses: list[Obj] = (node.get("status") or {}).get("addresses") or []
    return addresses
