"""NodeRestriction: a node may change only its own objects, its Pods, and requests for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mooring.api.certificates.podcertificaterequest import (
    account_problem,
    is_owner,
    is_pod,
    pod_problem,
    volume_signers,
)
from mooring.api.core.poddefaults import (
    CLAIMS,
    CONFIG_MAPS,
    RESOURCE_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    TRUST_BUNDLES,
    visit_references,
)
from mooring.api.core.podvalidation import MIRROR
from mooring.api.mooring import certificaterevocation
from mooring.api.mooring.membership import MAY_BE_SILENT
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes
from mooring.authz.node import node_name
from mooring.errors import ApiError, ConflictError, InternalServerError, NotFoundError, qualified, quoted
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING
from mooring.registry.admission.certificates import CSRS, GROUP, POD_REQUESTS, parse_new_request
from mooring.registry.admission.request import AdmissionRequest

# Audiences of the tokens that a node may request for the volumes of a Pod.
#
# Rules kept here (docs/protocol/node-authorization.md#noderestriction):
# * A projected volume names the audience of its token. The empty one is the API server.
# * A CSI volume has the audiences that its CSIDriver lists in `spec.tokenRequests`. The driver of a claim is that of its volume.
#   The claim of an ephemeral volume is `<pod>-<volume>`. Another server that shares the store wrote these objects.
# * A volume of an in-tree plugin belongs to the driver to which Kubernetes moved the plugin (k8s.io/csi-translation-lib).
# * An object that does not exist or cannot be read gives no audience. It does not hide those of other volumes.

VOLUMES = "persistentvolumes"
DRIVERS = "csidrivers"
_QUALIFIED = {
    CLAIMS: ("", "persistentvolumeclaim"),
    VOLUMES: ("", "persistentvolume"),
    DRIVERS: ("storage.k8s.io", "csidriver"),
}
"""Group and name of the resources in kube-apiserver's errors, which use the singular."""
_IN_TREE = {
    "awsElasticBlockStore": "ebs.csi.aws.com",
    "azureDisk": "disk.csi.azure.com",
    "azureFile": "file.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "gcePersistentDisk": "pd.csi.storage.gke.io",
    "portworxVolume": "pxd.portworx.com",
    "vsphereVolume": "csi.vsphere.vmware.com",
}
"""CSI drivers of the volume sources of in-tree plugins."""


def volume_audiences(pod: Obj, views: Views, failures: list[str]) -> Iterator[str]:
    """Yield the audiences of the Pod's volumes. The errors of failed look-ups are appended to `failures`, each once."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "serviceAccountToken" in source:
                yield (source["serviceAccountToken"] or {}).get("audience") or ""
        try:
            yield from _driver_audiences(pod, volume, views)
        except ApiError as error:
            if error.message not in failures:
                failures.append(error.message)


def _driver_audiences(pod: Obj, volume: Obj, views: Views) -> Iterator[str]:
    source = volume
    if claim := _claim_name(pod, volume):
        bound = _member(_object_of(views, CLAIMS, claim, pod["metadata"].get("namespace", "")), "spec", "volumeName")
        source = _member(_object_of(views, VOLUMES, bound or ""), "spec")
    if driver := _driver_name(source):
        for request in _member(_object_of(views, DRIVERS, driver), "spec", "tokenRequests") or ():
            yield _member(request, "audience") or ""


def _claim_name(pod: Obj, volume: Obj) -> str:
    """Return the name of the claim of a volume; "" for a volume without one."""
    if _member(volume, "ephemeral", "volumeClaimTemplate") is not None:
        return f"{pod['metadata'].get('name', '')}-{volume.get('name', '')}"
    name: str = _member(volume, "persistentVolumeClaim", "claimName") or ""
    return name


def _driver_name(source: Any) -> str:
    """Return the CSI driver of a volume of a Pod, or of the spec of a PersistentVolume; "" for one without a driver."""
    moved = (driver for plugin, driver in _IN_TREE.items() if _member(source, plugin) is not None)
    name: str = _member(source, "csi", "driver") or next(moved, "")
    return name


def _object_of(views: Views, plural: str, name: str, namespace: str = "") -> Obj:
    """Return an object. Raises ApiError when it does not exist or cannot be read."""
    found = views[plural].get(name, namespace)
    if found is not None:
        return found
    group, resource = _QUALIFIED[plural]
    if views[plural].problem(name, namespace):
        raise InternalServerError(f"{qualified(resource, group)} {quoted(name)} cannot be read")
    raise NotFoundError.of(group, resource, name)


def _member(value: Any, *path: str) -> Any:
    """Return a member of an object, None without one. The objects of another server are stored unchecked."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


# NodeRestriction for PodCertificateRequests: a node requests certificates for the Pods that run on it.
#
# Rules kept here (docs/protocol/pod-certificate-requests.md#rights):
# * A node creates requests. It changes and deletes none.
# * The request names the node and its uid, a Pod of this node that may have a certificate, and the service account of this Pod,
#   each with its uid.
# * What is not there yet, or has another uid, is a conflict: the same request may succeed later. What cannot be read is refused.
# * A volume of the Pod wants a certificate of this signer, or authorization allows the node to request one for the account: one
#   of `VERBS` on the resource that has the name of the signer with `:` for `/`, in the group certificates.k8s.io.

VERBS = ("request-podcertificate-signer", "request-serviceaccounts-podcertificate-signer")
"""Verbs that allow a signer which no volume of the Pod names. The first is that of the release notes of Kubernetes 1.37, the second
that of programs which follow its source."""


def check_request(request: AdmissionRequest, node: str) -> None:
    """Check a write of a PodCertificateRequest by a node. Raises ForbiddenError, ConflictError."""
    if request.operation != "CREATE" or request.new is None:
        raise request.forbidden(f"unexpected operation {request.operation}")
    spec = request.new.get("spec") or {}
    place = quoted(f"{request.namespace}/{spec.get('podName', '')}")
    _check_node(request, spec, node, place)
    pod = _named_object(request, "pod", "pods", spec.get("podName", ""), request.namespace)
    if problem := pod_problem(pod, spec, request.change.now):
        raise request.forbidden(problem) if is_pod(pod, spec) else ConflictError(problem)
    name = spec.get("serviceAccountName", "")
    account = _named_object(request, "service account", "serviceaccounts", name, request.namespace)
    if problem := account_problem(account, spec):
        raise ConflictError(problem)
    signer = spec.get("signerName", "")
    if signer not in volume_signers(pod) and not _is_authorized(request, signer, name):
        raise request.forbidden(
            f"pod {place} has no podCertificate volume of signer {quoted(signer)}, and user "
            f"{quoted(request.user.username)} is not authorized to request its certificates"
        )


def _check_node(request: AdmissionRequest, spec: Obj, node: str, pod: str) -> None:
    named, uid = spec.get("nodeName", ""), spec.get("nodeUID", "")
    if named != node:
        raise request.forbidden(
            f"PodCertificateRequest.Spec.NodeName={quoted(named)}, which is not the requesting node {quoted(node)}"
        )
    present = _named_object(request, "node", "nodes", node)["metadata"].get("uid", "")
    if present != uid:
        raise ConflictError(
            f"PodCertificateRequest for pod {pod} names node UID {quoted(uid)}, inconsistent with the running node "
            f"({quoted(present)})"
        )


def _named_object(request: AdmissionRequest, what: str, plural: str, name: str, namespace: str = "") -> Obj:
    """Return an object that the request names. Raises ConflictError when it does not exist, ForbiddenError when unreadable."""
    view = request.views[plural]
    found = view.get(name, namespace)
    if found is not None:
        return found
    place = quoted(f"{namespace}/{name}" if namespace else name)
    detail = f"while retrieving {what} {place} named in the PodCertificateRequest: {plural[:-1]} {quoted(name)}"
    if view.problem(name, namespace):
        raise request.forbidden(f"{detail} cannot be read")
    raise ConflictError(f"{detail} not found")


def _is_authorized(request: AdmissionRequest, signer: str, account: str) -> bool:
    """Return true when authorization allows the node to request certificates of the signer for the account."""
    return bool(signer) and any(
        request.authorize(
            Attributes(
                user=request.user,
                verb=verb,
                group=GROUP,
                version="*",
                resource=signer.replace("/", ":"),
                namespace=request.namespace,
                name=account,
            )
        ).allowed
        for verb in VERBS
    )


# NodeRestriction for Pods: a node creates mirror Pods, deletes its Pods and updates their status.
#
# Rules kept here (docs/protocol/node-authorization.md#noderestriction):
# * A node creates only mirror Pods: bound to itself, owned by its own Node as controller and by nothing else, and without any
#   reference to an object of the API, by which the node could read objects that it may not.
# * A node deletes Pods that are bound to it, and updates their status, but neither their labels nor the resource claims in their
#   status: those would let it read other claims. It updates nothing else.

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


# NodeRestriction: a node may change only its own objects.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md#admission, docs/protocol/node-authorization.md#noderestriction),
# for users in the group system:nodes:
# * Every kind: no change of finalizers, on create neither. With one on its Node a machine would decide when its membership ends.
#   An owner that a node adds is its own Node, or the Pod of a PodCertificateRequest, and does not block its deletion.
# * Node: its own only, and no change of taints, owner references, or the annotation that exempts it from removal for silence. Of
#   the labels in Kubernetes' own domains it may set only those that a kubelet reports about itself, never node-restriction labels.
# * Lease: its own in kube-node-lease only. CSINode: its own only.
# * CertificateSigningRequest for kubelet signers: its own common name only.
# * Pods: the rules of `pods`.
# * Tokens: only bound to a pod that runs on the node, and only for an audience of the volumes of this pod (`audiences`). For
#   another audience RBAC must allow the verb `request-serviceaccounts-token-audience` on the audience, as a resource of the core
#   group, with the account's name. RBAC decides also where a look-up for a volume fails, as in Kubernetes 1.38.
# * PodCertificateRequests: the rules of `podcertificates`.
# * CertificateRevocation: none. A node could otherwise lock out other machines.
# * A member of system:nodes whose username is not that of a node may write nothing.

LEASE_NAMESPACE = "kube-node-lease"
RESTRICTED = "node-restriction.kubernetes.io"
KUBELET_LABELS = frozenset(
    {
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
"""Labels that a kubelet reports about itself (k8s.io/kubelet well-known labels)."""
REQUEST_AUDIENCE = "request-serviceaccounts-token-audience"
KUBELET_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")


class NodeRestriction:
    name = "NodeRestriction"

    def admit(self, request: AdmissionRequest) -> None:
        node = node_name(request.user)
        if node is None:
            return
        if not node:
            raise request.forbidden(f'could not determine node from user "{request.user.username}"')
        check = _CHECKS.get(request.resource)
        if check is not None:
            check(request, node)
        _metadata(request, node)


def _metadata(request: AdmissionRequest, node: str) -> None:
    """Refuse changes of finalizers, and owners other than the Node itself or the Pod of a PodCertificateRequest."""
    if request.new is None:
        return
    new = request.new.get("metadata") or {}
    old = request.old["metadata"] if request.old is not None else {}
    if (new.get("finalizers") or []) != (old.get("finalizers") or []):
        raise request.forbidden(f'node "{node}" is not allowed to modify finalizers')
    before = old.get("ownerReferences") or []
    for reference in new.get("ownerReferences") or ():
        if reference not in before and not _is_own_node(reference, node) and not _is_requested_pod(reference, request):
            raise request.forbidden(f'node "{node}" is not allowed to set an owner other than its own Node')


def _is_own_node(reference: Obj, node: str) -> bool:
    owner = (reference.get("apiVersion"), reference.get("kind"), reference.get("name"))
    return owner == ("v1", "Node", node) and not reference.get("blockOwnerDeletion")


def _is_requested_pod(reference: Obj, request: AdmissionRequest) -> bool:
    return request.resource == POD_REQUESTS and is_owner(reference, (request.new or {}).get("spec") or {})


def _node(request: AdmissionRequest, node: str) -> None:
    new, old = request.new, request.old
    if request.name != node:
        raise request.forbidden(f'node "{node}" is not allowed to modify node "{request.name}"')
    if new is None:
        return
    if (new.get("spec") or {}).get("configSource") and (
        old is None or (old.get("spec") or {}).get("configSource") != new["spec"]["configSource"]
    ):
        action = (
            "create pods with a non-nil configSource"
            if old is None
            else "update configSource to a new non-nil configSource"
        )
        raise request.forbidden(f'node "{node}" is not allowed to {action}')
    before = old["metadata"].get("ownerReferences") if old is not None else None
    if (new["metadata"].get("ownerReferences") or []) != (before or []):
        raise request.forbidden(f'node "{node}" is not allowed to modify ownerReferences')
    if old is not None and _taints(new) != _taints(old):
        raise request.forbidden(f'node "{node}" is not allowed to modify taints')
    exempt = [(one["metadata"].get("annotations") or {}).get(MAY_BE_SILENT) for one in (old, new) if one is not None]
    if exempt[-1] != (exempt[0] if old is not None else None):
        raise request.forbidden(f'node "{node}" is not allowed to modify the annotation {MAY_BE_SILENT}')
    labels = (old["metadata"].get("labels") or {}) if old is not None else {}
    refused = forbidden_labels(labels, new["metadata"].get("labels") or {})
    if refused:
        problem = (
            "is not allowed to modify labels"
            if old is not None
            else f'node "{node}" is not allowed to set the following labels'
        )
        raise request.forbidden(f"{problem}: {', '.join(refused)}")


def _taints(node: Obj) -> list[Obj]:
    taints: list[Obj] = (node.get("spec") or {}).get("taints") or []
    return taints


def forbidden_labels(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the changed labels that a node may not change, sorted."""
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    return sorted(key for key in changed if not _may_set(key))


def _may_set(label: str) -> bool:
    domain = label.partition("/")[0] if "/" in label else ""
    if _within(domain, RESTRICTED):
        return False
    if not (_within(domain, "kubernetes.io") or _within(domain, "k8s.io")):
        return True
    return label in KUBELET_LABELS or any(_within(domain, own) for own in KUBELET_DOMAINS)


def _within(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith("." + parent)


def _lease(request: AdmissionRequest, node: str) -> None:
    if request.namespace != LEASE_NAMESPACE:
        raise request.forbidden(f'can only access leases in the "{LEASE_NAMESPACE}" system namespace')
    if request.name != node:
        raise request.forbidden("can only access node lease with the same name as the requesting node")


def _csi_node(request: AdmissionRequest, node: str) -> None:
    if request.name != node:
        raise request.forbidden("can only access CSINode with the same name as the requesting node")


def _csr(request: AdmissionRequest, node: str) -> None:
    if request.operation != "CREATE" or request.new is None:
        return
    signer = (request.new.get("spec") or {}).get("signerName")
    if signer not in (KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING):
        return
    parsed = parse_new_request(request)
    if parsed is not None and parsed.common_name != NODE_PREFIX + node:
        raise request.forbidden(f"can only create a node CSR with CN={NODE_PREFIX}{node}")


def _token(request: AdmissionRequest, node: str) -> None:
    bound = ((request.new or {}).get("spec") or {}).get("boundObjectRef") or {}
    if (bound.get("apiVersion"), bound.get("kind")) != ("v1", "Pod") or not bound.get("name"):
        raise request.forbidden("node requested token not bound to a pod")
    if not bound.get("uid"):
        raise request.forbidden("node requested token with a pod binding without a uid")
    pod = request.views["pods"].get(bound["name"], request.namespace)
    if pod is None:
        raise NotFoundError.of("", "pods", bound["name"])
    if pod["metadata"].get("uid") != bound["uid"]:
        raise request.forbidden(
            f"the UID in the bound object reference ({bound['uid']}) does not match the UID in record. The object might have "
            "been deleted and then recreated"
        )
    if (pod.get("spec") or {}).get("nodeName") != node:
        raise request.forbidden("node requested token bound to a pod scheduled on a different node")
    audiences = ((request.new or {}).get("spec") or {}).get("audiences") or [""]
    if len(audiences) > 1:
        raise request.forbidden("node may only request 0 or 1 audiences")
    failures: list[str] = []
    if audiences[0] in volume_audiences(pod, request.views, failures) or _audience_allowed(request, audiences[0]):
        return
    if failures:
        reason = failures[0] if len(failures) == 1 else f"[{', '.join(failures)}]"
        raise request.forbidden(f'error validating audience "{audiences[0]}": {reason}')
    raise request.forbidden(
        f'{request.user.username} is not authorized to request tokens for audience "{audiences[0]}"'
    )


def _audience_allowed(request: AdmissionRequest, audience: str) -> bool:
    attributes = Attributes(
        user=request.user,
        verb=REQUEST_AUDIENCE,
        version="v1",
        resource=audience,
        namespace=request.namespace,
        name=request.name,
    )
    return bool(audience) and request.authorize(attributes).allowed


def _certificate_revocation(request: AdmissionRequest, node: str) -> None:
    raise request.forbidden(f'node "{node}" is not allowed to change the denylist of certificates')


_CHECKS = {
    "nodes": _node,
    "nodes/status": _node,
    "leases": _lease,
    "csinodes": _csi_node,
    CSRS: _csr,
    POD_REQUESTS: check_request,
    f"{POD_REQUESTS}/status": check_request,
    certificaterevocation.PLURAL: _certificate_revocation,
    "pods": check_pod,
    "pods/status": check_pod_status,
    "serviceaccounts/token": _token,
}
