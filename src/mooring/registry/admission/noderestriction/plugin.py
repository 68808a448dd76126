"""NodeRestriction: a node may change only its own objects.

Rules kept here (docs/protocol/certificate-signing-requests.md#admission, docs/protocol/node-authorization.md#noderestriction), for
users in the group system:nodes:
* Every kind: no change of finalizers, on create neither. With one on its Node a machine would decide when its membership ends. An
  owner that a node adds is its own Node, or the Pod of a PodCertificateRequest, and does not block its deletion.
* Node: its own only, and no change of taints or owner references. Of the labels in Kubernetes' own domains it may set only those
  that a kubelet reports about itself, never node-restriction labels.
* Lease: its own in kube-node-lease only. CSINode: its own only.
* CertificateSigningRequest for kubelet signers: its own common name only.
* Pods: the rules of `pods`.
* Tokens: only bound to a pod that runs on the node, and only for an audience of the volumes of this pod (`audiences`). For
  another audience RBAC must allow the verb `request-serviceaccounts-token-audience` on the audience, as a resource of the core
  group, with the account's name. RBAC decides also where a look-up for a volume fails, as in Kubernetes 1.38.
* PodCertificateRequests: the rules of `podcertificates`.
* CertificateRevocation: none. A node could otherwise lock out other machines.
* A member of system:nodes whose username is not that of a node may write nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from mooring.api.certificates.podcertificates import is_owner
from mooring.api.mooring import certificaterevocation
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes
from mooring.authz.node import node_name
from mooring.errors import NotFoundError
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING
from mooring.registry.admission.certificates import CSRS, POD_REQUESTS, parse_new_request
from mooring.registry.admission.noderestriction import podcertificates, pods
from mooring.registry.admission.noderestriction.audiences import volume_audiences
from mooring.registry.admission.request import AdmissionRequest

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
    POD_REQUESTS: podcertificates.check_request,
    f"{POD_REQUESTS}/status": podcertificates.check_request,
    certificaterevocation.PLURAL: _certificate_revocation,
    "pods": pods.check_pod,
    "pods/status": pods.check_pod_status,
    "serviceaccounts/token": _token,
}
