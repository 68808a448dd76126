"""NodeRestriction for PodCertificateRequests: a node requests certificates for the Pods that run on it.

Rules kept here (docs/protocol/pod-certificate-requests.md#rights):
* A node creates requests. It changes and deletes none.
* The request names the node and its uid, a Pod of this node that may have a certificate, and the service account of this Pod, each
  with its uid.
* What is not there yet, or has another uid, is a conflict: the same request may succeed later. What cannot be read is refused.
* A volume of the Pod wants a certificate of this signer, or authorization allows the node to request one for the account: one of
  `VERBS` on the resource that has the name of the signer with `:` for `/`, in the group certificates.k8s.io.
"""

from __future__ import annotations

from mooring.api.certificates.podcertificates import account_problem, is_pod, pod_problem, volume_signers
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes
from mooring.errors import ConflictError, quoted
from mooring.registry.admission.certificates import GROUP
from mooring.registry.admission.request import AdmissionRequest

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
    pod = _find(request, "pod", "pods", spec.get("podName", ""), request.namespace)
    if problem := pod_problem(pod, spec, request.change.now):
        raise request.forbidden(problem) if is_pod(pod, spec) else ConflictError(problem)
    name = spec.get("serviceAccountName", "")
    account = _find(request, "service account", "serviceaccounts", name, request.namespace)
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
    present = _find(request, "node", "nodes", node)["metadata"].get("uid", "")
    if present != uid:
        raise ConflictError(
            f"PodCertificateRequest for pod {pod} names node UID {quoted(uid)}, inconsistent with the running node "
            f"({quoted(present)})"
        )


def _find(request: AdmissionRequest, what: str, plural: str, name: str, namespace: str = "") -> Obj:
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
