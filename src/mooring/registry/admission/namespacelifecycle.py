"""NamespaceLifecycle: refuse creations in missing and in terminating namespaces.

Rules kept here (docs/protocol/authorization.md#access-reviews, docs/protocol/errors.md, docs/protocol/namespaces.md):
* default, kube-system and kube-public cannot be deleted: 403.
* Creating in a missing namespace is 404 for the namespace, and in a terminating one 403 with cause NamespaceTerminating.
* Updating and deleting are always possible, as in Kubernetes 1.37: after a restore an object can be in a namespace that does not
  exist, and its finalizers must be removable. An update that creates is a creation.
* Access reviews, which are not stored, do not reveal whether a namespace exists.
"""

from __future__ import annotations

from mooring.api.core.namespace import TERMINATING
from mooring.api.kind import Kind
from mooring.errors import Cause, Details, NotFoundError
from mooring.registry.admission.request import AdmissionRequest

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
