"""Admission of every kind: the life of namespaces, the rights that owners need, and the escalation of rights."""

from __future__ import annotations

from mooring.api.core.namespace import TERMINATING
from mooring.api.kind import Kind
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision
from mooring.authz.rbac.authorizer import API_GROUP, Rbac
from mooring.authz.rbac.escalation import check_binding, check_role
from mooring.errors import Cause, Details, NotFoundError
from mooring.registry.admission.request import AdmissionRequest

# NamespaceLifecycle: refuse creations in missing and in terminating namespaces.
#
# Rules kept here (docs/protocol/authorization.md#access-reviews, docs/protocol/errors.md, docs/protocol/namespaces.md):
# * default, kube-system and kube-public cannot be deleted: 403.
# * Creating in a missing namespace is 404 for the namespace, and in a terminating one 403 with cause NamespaceTerminating.
# * Updating and deleting are always possible, as in Kubernetes 1.37: after a restore an object can be in a namespace that does
#   not exist, and its finalizers must be removable. An update that creates is a creation.
# * Access reviews, which are not stored, do not reveal whether a namespace exists.

IMMORTAL = frozenset({"default", "kube-system", "kube-public"})
CAUSE = "NamespaceTerminating"


def is_namespace(kind: Kind) -> bool:
    """Return True for the kind Namespace of the core group."""
    return kind.resource.plural == "namespaces" and not kind.resource.group


class NamespaceLifecycle:
    name = "NamespaceLifecycle"

    def admit(self, request: AdmissionRequest) -> None:
        if is_namespace(request.kind):
            if request.operation == "DELETE" and request.name in IMMORTAL:
                raise request.forbidden("this namespace may not be deleted")
            return
        namespace = request.namespace
        if not namespace or request.operation != "CREATE" or (request.kind.virtual and not request.subresource):
            return
        found = request.views["namespaces"].get(namespace)
        if found is None:
            raise NotFoundError.of("", "namespaces", namespace)
        if (found.get("status") or {}).get("phase") == TERMINATING:
            error = request.forbidden(
                f"unable to create new content in namespace {namespace} because it is being terminated"
            )
            cause = Cause(CAUSE, f"namespace {namespace} is being terminated", "metadata.namespace")
            known = error.details
            error.details = Details(known.name, known.group, known.kind, known.uid, (*known.causes, cause))
            raise error


# OwnerReferencesPermissionEnforcement: a change of owners needs the right to delete the object.
#
# Rules kept here (docs/protocol/objects.md#owner-references):
# * An owner that does not exist makes the garbage collector delete the object. So the right to update is not enough to change the
#   owners of an object that exists. A client that creates an object chooses its owners.
# * An owner reference that blocks the foreground deletion of its owner needs no right to the owner, as in kube-apiserver without
#   the plugin: operators with narrow Roles set it (docs/adr/0078-block-owner-deletion-needs-no-right.md).
# * Updates of `pods/status` are left out, as in kube-apiserver: old kubelets corrupt the references, and the strategy resets
#   them.

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


# RBACEscalation: refuse roles and bindings that grant rights which their author does not hold.
#
# Rules kept here (docs/protocol/rbac.md#escalation): creates and updates of roles and bindings are checked before they are
# validated, as kube-apiserver does. The RBAC rules are read from the same views as every other decision.

_CHECKS = {
    "roles": check_role,
    "clusterroles": check_role,
    "rolebindings": check_binding,
    "clusterrolebindings": check_binding,
}


class RbacEscalation:
    name = "RBACEscalation"

    def __init__(self) -> None:
        self._rbac = Rbac()

    def admit(self, request: AdmissionRequest) -> None:
        check = _CHECKS.get(request.resource)
        if check is None or request.new is None or request.kind.resource.group != API_GROUP:
            return
        check(request.new, request.old, request.user, self._rbac, request.views, request.authorize)
