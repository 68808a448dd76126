"""OwnerReferencesPermissionEnforcement: a change of owners needs the right to delete the object.

Rules kept here (docs/protocol/objects.md#owner-references):
* An owner that does not exist makes the garbage collector delete the object. So the right to update is not enough to change the
  owners of an object that exists. A client that creates an object chooses its owners.
* An owner reference that blocks the foreground deletion of its owner needs no right to the owner, as in kube-apiserver without the
  plugin: operators with narrow Roles set it (docs/adr/0078-block-owner-deletion-needs-no-right.md).
* Updates of `pods/status` are left out, as in kube-apiserver: old kubelets corrupt the references, and the strategy resets them.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision
from mooring.registry.admission.request import AdmissionRequest

_LEFT_OUT = "pods/status"


class OwnerReferencesPermissionEnforcement:
    name = "OwnerReferencesPermissionEnforcement"

    def admit(self, request: AdmissionRequest) -> None:
        if request.new is None or request.resource == _LEFT_OUT:
            return
        if request.old is None or _references(request.old) == _references(request.new):
            return
        decision = request.authorize(_deletion(request))
        if not decision.allowed:
            raise request.forbidden(f"cannot set an ownerRef on a resource you can't delete: {_why(decision)}")


def _references(obj: Obj) -> list[Obj]:
    found: list[Obj] = (obj.get("metadata") or {}).get("ownerReferences") or []
    return found


def _deletion(request: AdmissionRequest) -> Attributes:
    resource = request.kind.resource
    return Attributes(
        user=request.user,
        verb="delete",
        group=resource.group,
        version=resource.version,
        resource=resource.plural,
        subresource=request.subresource,
        namespace=request.namespace,
        name=request.name,
    )


def _why(decision: Decision) -> str:
    return ", ".join(filter(None, (decision.reason, decision.error))) or "not authorized"
