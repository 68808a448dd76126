"""K3sControllerRestriction: the user that all agents of k3s share may change the status of its own Node, and nothing that decides.

Rules kept here (docs/protocol/k3s.md#rights-of-an-agent), for the user `system:k3s-controller`:
* The Node is that of the machine to which the client certificate is bound. A certificate without a machine may change none.
* Neither labels, finalizers, owner references nor taints change, and no addresses. NodeRestriction judges users of nodes alone, and
  a patch of `/status` takes labels, too.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj
from mooring.identity import NODE_NAME
from mooring.pki.x509.supervisorsigners import K3S_CONTROLLER
from mooring.registry.admission.request import AdmissionRequest

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
