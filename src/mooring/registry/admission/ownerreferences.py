"""OwnerReferencesPermissionEnforcement: a change of owners needs the right to delete the object.

Rules kept here (docs/protocol/objects.md#owner-references):
* An owner that does not exist makes the garbage collector delete the object. So the right to update is not enough to change the
  owners of an object that exists. A client that creates an object chooses its owners.
* An owner reference that blocks the foreground deletion of its owner needs `update` on the subresource `finalizers` of the owner.
  An owner of a kind that this server does not serve cannot be blocked.
* Updates of `pods/status` are left out, as in kube-apiserver: old kubelets corrupt the references, and the strategy resets them.
* The right to all objects of a kind is asked for first. Without it the first owner that the caller may not block ends the check, so
  that the number of owners in a body does not multiply the work.
"""

from __future__ import annotations

from collections.abc import Iterator

from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.schema import Obj
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision
from mooring.registry.admission.request import AdmissionRequest

_LEFT_OUT = "pods/status"
_BY_API_VERSION = {(kind.resource.api_version, kind.resource.kind): kind for kind in BY_PLURAL.values()}


class OwnerReferencesPermissionEnforcement:
    name = "OwnerReferencesPermissionEnforcement"

    def admit(self, request: AdmissionRequest) -> None:
        if request.new is None or request.resource == _LEFT_OUT:
            return
        before, after = _references(request.old), _references(request.new)
        if before == after:
            return
        if request.old is not None:
            decision = request.authorize(_deletion(request))
            if not decision.allowed:
                raise request.forbidden(f"cannot set an ownerRef on a resource you can't delete: {_why(decision)}")
        allowed_kinds: set[tuple[str, str]] = set()
        for reference in _newly_blocking(before, after):
            named = (reference.get("apiVersion", ""), reference.get("kind", ""))
            if named in allowed_kinds:
                continue
            owner = _BY_API_VERSION.get(named)
            if owner is None:
                raise request.forbidden(
                    "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion "
                    f"{named[0]} Kind {named[1]}"
                )
            if request.authorize(_finalizers(request, owner, "")).allowed:
                allowed_kinds.add(named)
                continue
            decision = request.authorize(_finalizers(request, owner, reference.get("name", "")))
            if not decision.allowed:
                raise request.forbidden(
                    "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: "
                    f"{_why(decision)}"
                )


def _references(obj: Obj | None) -> list[Obj]:
    found: list[Obj] = (obj.get("metadata") or {}).get("ownerReferences") or [] if obj is not None else []
    return found


def _newly_blocking(before: list[Obj], after: list[Obj]) -> Iterator[Obj]:
    """Yield the references that block the deletion of an owner which the object did not block before."""
    blocking = {reference.get("uid") for reference in before if reference.get("blockOwnerDeletion")}
    for reference in after:
        if reference.get("blockOwnerDeletion") and reference.get("uid") not in blocking:
            yield reference


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


def _finalizers(request: AdmissionRequest, owner: Kind, name: str) -> Attributes:
    resource = owner.resource
    return Attributes(
        user=request.user,
        verb="update",
        group=resource.group,
        version=resource.version,
        resource=resource.plural,
        subresource="finalizers",
        namespace=request.namespace if resource.namespaced else "",
        name=name,
    )


def _why(decision: Decision) -> str:
    return ", ".join(filter(None, (decision.reason, decision.error))) or "not authorized"
