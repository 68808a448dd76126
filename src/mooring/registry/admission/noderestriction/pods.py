"""NodeRestriction for Pods: a node creates mirror Pods, deletes its Pods and updates their status.

Rules kept here (docs/protocol/node-authorization.md#noderestriction):
* A node creates only mirror Pods: bound to itself, owned by its own Node as controller and by nothing else, and without any
  reference to an object of the API, by which the node could read objects that it may not.
* A node deletes Pods that are bound to it, and updates their status, but neither their labels nor the resource claims in their
  status: those would let it read other claims. It updates nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from mooring.api.core.pod.references import (
    CLAIMS,
    CONFIG_MAPS,
    RESOURCE_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    TRUST_BUNDLES,
    visit_references,
)
from mooring.api.core.pod.validation import MIRROR
from mooring.apimachinery.schema import Obj
from mooring.errors import NotFoundError
from mooring.registry.admission.request import AdmissionRequest

_BOUND = "spec.nodeName set to itself"
_FIRST = (SERVICE_ACCOUNTS, SECRETS, CONFIG_MAPS, RESOURCE_CLAIMS)
_VOLUMES = {
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistentVolumeClaim": CLAIMS,
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
}
_PROJECTED = {
    "serviceAccountToken": "serviceaccounts (via projected volumes)",
    "clusterTrustBundle": TRUST_BUNDLES,
    "podCertificate": "podcertificates",
}


def check_pod(request: AdmissionRequest, node: str) -> None:
    """Check the creation or deletion of a Pod by a node. Raises ForbiddenError, NotFoundError."""
    if request.old is not None:
        if request.new is not None:
            raise request.forbidden(
                f'unexpected operation "UPDATE", node "{node}" can only create and delete mirror pods'
            )
        if _node_of(request.old) != node:
            raise request.forbidden(f'node "{node}" can only delete pods with {_BOUND}')
    else:
        _check_mirror_pod(request, request.new or {}, node)


def check_pod_status(request: AdmissionRequest, node: str) -> None:
    """Check an update of a Pod's status by a node. Raises ForbiddenError."""
    new, old = request.new or {}, request.old or {}
    if _node_of(old) != node:
        raise request.forbidden(f'node "{node}" can only update pod status for pods with {_BOUND}')
    if (new["metadata"].get("labels") or {}) != (old["metadata"].get("labels") or {}):
        raise request.forbidden(f'node "{node}" cannot update labels through pod status')
    status, before = new.get("status") or {}, old.get("status") or {}
    if (status.get("resourceClaimStatuses") or []) != (before.get("resourceClaimStatuses") or []):
        raise request.forbidden(f'node "{node}" cannot update resource claim statues')
    if status.get("extendedResourceClaimStatus") != before.get("extendedResourceClaimStatus"):
        raise request.forbidden(f'node "{node}" cannot update extended resource claim status')


def _node_of(obj: Obj) -> str:
    name: str = (obj.get("spec") or {}).get("nodeName", "")
    return name


def _check_mirror_pod(request: AdmissionRequest, new: Obj, node: str) -> None:
    metadata = new.get("metadata") or {}
    if MIRROR not in (metadata.get("annotations") or {}):
        reason = f'pod does not have "{MIRROR}" annotation, node "{node}" can only create mirror pods'
        raise request.forbidden(reason)
    if _node_of(new) != node:
        raise request.forbidden(f'node "{node}" can only create pods with {_BOUND}')
    _check_owner(request, metadata.get("ownerReferences") or [], node)
    if resource := next(_api_references(new), ""):
        raise request.forbidden(f'node "{node}" can not create pods that reference {resource}')


def _api_references(pod: Obj) -> Iterator[str]:
    """Yield the API resources that the Pod refers to, in the order and wording of kube-apiserver."""
    found = {resource for resource, _ in visit_references(pod)}
    yield from (resource for resource in _FIRST if resource in found)
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        yield from (name for member, name in _VOLUMES.items() if member in volume)
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield from (name for member, name in _PROJECTED.items() if member in source)


def _check_owner(request: AdmissionRequest, owners: list[Obj], node: str) -> None:
    own = f'node "{node}" can only create pods with '
    if len(owners) > 1:
        raise request.forbidden(own + "a single owner reference set to itself")
    owner = owners[0] if owners else {}
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
        expected, got = owner.get("uid", ""), found["metadata"].get("uid", "")
        raise request.forbidden(f"node {node} UID mismatch: expected {expected} got {got}")
