"""What of Pods a node may change: it shows the ones it runs from files, and reports on those that run on it.

Rules kept here (reference/kubernetes.md 6.7):
* It creates mirror Pods only: bound to itself, owned by its own Node as controller and by nothing else, and without any
  reference to a service account, Secret, ConfigMap, trust bundle, claim or device; otherwise a node could read what it should not.
* It deletes Pods that are bound to it, and updates their status, but not their labels. It updates nothing else.
"""

from __future__ import annotations

from mooring.errors import NotFoundError
from mooring.kinds.podreferences import SERVICE_ACCOUNTS, walk
from mooring.kinds.podvalidation import MIRROR
from mooring.registry.admission.request import AdmissionRequest
from mooring.wire.schema import Obj

_BOUND = "spec.nodeName set to itself"


def pod(request: AdmissionRequest, node: str) -> None:
    """A node creates or deletes a Pod."""
    if request.old is not None:
        if request.new is not None:
            raise request.forbidden(f'node "{node}" can update only the status of pods')
        if _node_of(request.old) != node:
            raise request.forbidden(f'node "{node}" can only delete pods with {_BOUND}')
    else:
        _create(request, request.new or {}, node)


def pod_status(request: AdmissionRequest, node: str) -> None:
    """A node reports on a Pod."""
    new, old = request.new or {}, request.old or {}
    if _node_of(old) != node:
        raise request.forbidden(f'node "{node}" can only update pod status for pods with {_BOUND}')
    if (new["metadata"].get("labels") or {}) != (old["metadata"].get("labels") or {}):
        raise request.forbidden(f'node "{node}" cannot update labels through pod status')


def _node_of(obj: Obj) -> str:
    name: str = (obj.get("spec") or {}).get("nodeName", "")
    return name


def _create(request: AdmissionRequest, new: Obj, node: str) -> None:
    metadata = new.get("metadata") or {}
    if MIRROR not in (metadata.get("annotations") or {}):
        why = f'pod does not have "{MIRROR}" annotation, node "{node}" can only create mirror pods'
        raise request.forbidden(why)
    if _node_of(new) != node:
        raise request.forbidden(f'node "{node}" can only create pods with {_BOUND}')
    _check_owner(request, metadata.get("ownerReferences") or [], node)
    for resource, _ in walk(new):
        resource = "a service account" if resource == SERVICE_ACCOUNTS else resource
        raise request.forbidden(f'node "{node}" can not create pods that reference {resource}')


def _check_owner(request: AdmissionRequest, owners: list[Obj], node: str) -> None:
    own = f'node "{node}" can only create pods with '
    if len(owners) != 1:
        raise request.forbidden(own + "exactly one owner reference, set to itself")
    (owner,) = owners
    if (owner.get("apiVersion"), owner.get("kind"), owner.get("name")) != ("v1", "Node", node):
        raise request.forbidden(own + "an owner reference set to itself")
    if not owner.get("controller"):
        raise request.forbidden(own + "a controller owner reference set to itself")
    if owner.get("blockOwnerDeletion"):
        raise request.forbidden(f'node "{node}" must not set blockOwnerDeletion on an owner reference')
    found = request.views["nodes"].get(node)
    if found is None:
        raise NotFoundError.of("", "nodes", node)
    if owner.get("uid") != found["metadata"].get("uid"):
        raise request.forbidden(f"node {node} UID mismatch: the owner reference is not of the present Node")
