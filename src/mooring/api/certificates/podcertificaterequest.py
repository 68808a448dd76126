"""PodCertificateRequest: its two versions and their strategy, and the Pods that may have a certificate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from mooring.api.certificates import podrequestvalidation as validation
from mooring.api.certificates.podrequestvalidation import CONDITION_TYPES
from mooring.api.core.pod import FINAL_PHASES
from mooring.api.core.podvalidation import MIRROR
from mooring.api.kind import Change, Kind, SubresourceStrategy, in_version, is_untracked
from mooring.api.objectmeta import NAME, NONE, reset_fields, spec_of
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.clock import parse_rfc3339
from mooring.errors import quoted

# Pods that may have a certificate, compared with the spec of a PodCertificateRequest.
#
# Rules kept here (docs/protocol/pod-certificate-requests.md#rights):
# * A request is for one Pod: the one with the uid that it names, on the node and with the service account that it names. A request
#   that leaves one of them out is for none.
# * A mirror Pod gets no certificate: its node wrote it.
# * The identity of a Pod ends with the Pod: one in a final phase gets no certificate, nor one whose grace period is over, even if
#   its node has not removed it. A Pod in its grace period still runs.
# * Reasons have the words of kube-apiserver where it has some.

_HEAD = "PodCertificateRequest for pod"


def pod_problem(pod: Obj, spec: Obj, now: datetime) -> str:
    """Return why this Pod gets no certificate by a request with this spec; "" for a Pod that may get one."""
    metadata, pod_spec = pod["metadata"], pod.get("spec") or {}
    name, uid, account = _place(pod), metadata.get("uid", ""), pod_spec.get("serviceAccountName", "")
    # First, and by the uid: another Pod may have taken the name.
    if not is_pod(pod, spec):
        return (
            f"{_HEAD} {name} contains pod UID ({_member(spec, 'podUID')}) which differs from running pod {quoted(uid)}"
        )
    if not _is_same(pod_spec.get("nodeName"), spec.get("nodeName")):
        return f"pod {name} is not running on node {_member(spec, 'nodeName')} named in the PodCertificateRequest"
    if MIRROR in (metadata.get("annotations") or {}):
        return f"pod {name} is a mirror pod"
    if not _is_same(account, spec.get("serviceAccountName")):
        named = _member(spec, "serviceAccountName")
        return f"{_HEAD} {name} contains serviceAccountName ({named}) that differs from running pod ({quoted(account)})"
    return f"pod {name} has ended" if _has_ended(pod, now) else ""


def account_problem(account: Obj, spec: Obj) -> str:
    """Return why a request with this spec is not for this service account; "" where it is."""
    metadata = account["metadata"]
    uid = metadata.get("uid", "")
    if _is_same(uid, spec.get("serviceAccountUID")):
        return ""
    pod, named = (
        quoted(f"{metadata.get('namespace', '')}/{spec.get('podName', '')}"),
        _member(spec, "serviceAccountUID"),
    )
    return f"{_HEAD} {pod} names service account UID {named}, which differs from the running service account ({quoted(uid)})"


def is_pod(pod: Obj, spec: Obj) -> bool:
    """Return true for the Pod that a request with this spec names, by its uid."""
    return _is_same(pod["metadata"].get("uid"), spec.get("podUID"))


def is_owner(reference: Obj, spec: Obj) -> bool:
    """Return true for an owner reference to the Pod that a request with this spec names. A kubelet sets it."""
    owner = tuple(reference.get(name) for name in ("apiVersion", "kind", "name", "uid"))
    return owner == ("v1", "Pod", spec.get("podName"), spec.get("podUID")) and not reference.get("blockOwnerDeletion")


def volume_signers(pod: Obj) -> Iterator[str]:
    """Yield the signers from which the volumes of the Pod want a certificate."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            if signer := (source.get("podCertificate") or {}).get("signerName"):
                yield signer


def _is_same(present: str | None, named: str | None) -> bool:
    return bool(named) and present == named


def _has_ended(pod: Obj, now: datetime) -> bool:
    # The end of the grace period.
    deleted = pod["metadata"].get("deletionTimestamp")
    return (pod.get("status") or {}).get("phase") in FINAL_PHASES or bool(deleted and parse_rfc3339(deleted) <= now)


def _place(pod: Obj) -> str:
    return quoted(f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}")


def _member(spec: Obj, name: str) -> str:
    return quoted(spec.get(name, ""))


# PodCertificateRequest: a kubelet asks a signer for the certificate of a Pod; its two versions and their strategy.
#
# Rules kept here (docs/protocol/pod-certificate-requests.md):
# * v1 and v1beta1 are served. v1beta1 alone has `pkixPublicKey` and `proofOfPossession`, which v1 replaced by
#   `stubPKCS10Request`. Objects are stored as v1beta1, as in Kubernetes 1.37. A client of v1 does not see the two old fields, and
#   loses none by an update.
# * spec is immutable. A new object has an empty status. `/status` changes the status alone, and no metadata.

GROUP = "certificates.k8s.io"
PLURAL = "podcertificaterequests"
DEFAULT_SECONDS = 86_400
"""`spec.maxExpirationSeconds` of a request without it."""
PENDING = "Pending"
_RESET_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
_OLD_FIELDS = ("pkixPublicKey", "proofOfPossession")
"""Fields of v1beta1 that v1 does not have."""


def state_of(obj: Obj) -> str:
    """Return `Issued`, `Denied` or `Failed`, and `Pending` for a request that is not decided."""
    found = PENDING
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") in CONDITION_TYPES:
            found = condition["type"]
    return found


def _default(obj: Obj) -> None:
    obj.setdefault("spec", {}).setdefault("maxExpirationSeconds", DEFAULT_SECONDS)


def _prepare_for_create(obj: Obj, change: Change) -> None:
    obj["status"] = {}


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "status")
    # A client of v1 has not seen them, so that its update must not remove them.
    _keep_old_fields(new, old)


def _keep_old_fields(new: Obj, old: Obj) -> None:
    """Restore what a client of v1 does not see. Those of v1beta1 cannot change it, as nothing of the spec."""
    before = spec_of(old)
    kept = {name: before[name] for name in _OLD_FIELDS if name in before}
    if kept and not any(name in spec_of(new) for name in _OLD_FIELDS):
        new["spec"] = {**spec_of(new), **kept}


def _prepare_status(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "spec")
    reset_fields(new["metadata"], old["metadata"], *_RESET_METADATA)


def _fields(obj: Obj) -> dict[str, str]:
    spec = spec_of(obj)
    return {f"spec.{name}": spec.get(name) or "" for name in ("signerName", "podName", "nodeName")}


def _spec_column(title: str, name: str, description: str) -> Column:
    return Column(title, lambda obj, now: spec_of(obj).get(name) or "", description=description)


def _annotations(obj: Obj, now: datetime) -> str:
    return _joined((spec_of(obj).get("unverifiedUserAnnotations") or {}).items()) or NONE


def _joined(pairs: Iterable[tuple[str, str]]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(pairs))


KIND = Kind(
    resource=Resource(
        group=GROUP,
        version="v1beta1",
        kind="PodCertificateRequest",
        plural=PLURAL,
        namespaced=True,
        schema=message("io.k8s.api.certificates.v1beta1.PodCertificateRequest"),
        subresources=(Subresource("status", ("get", "patch", "update")),),
        columns=(
            NAME,
            _spec_column("PodName", "podName", "Pod that gets the certificate."),
            _spec_column("ServiceAccountName", "serviceAccountName", "ServiceAccount of the Pod."),
            _spec_column("NodeName", "nodeName", "Node on which the Pod runs."),
            _spec_column("SignerName", "signerName", "Signer that is asked."),
            Column("State", lambda obj, now: state_of(obj), description="Pending, Issued, Denied or Failed."),
            Column(
                "UnverifiedUserAnnotations", _annotations, priority=1, description="What the author of the Pod says."
            ),
        ),
    ),
    storage="/registry/podcertificaterequests",
    tracks_creator=is_untracked,
    name_errors=dns1123_subdomain_errors,
    default=_default,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    validate_create=validation.spec_errors,
    validate_update=validation.update_errors,
    selectable_fields=_fields,
    field_labels=("spec.signerName", "spec.podName", "spec.nodeName"),
    subresources={
        "status": SubresourceStrategy(prepare_for_update=_prepare_status, validate_at=validation.status_errors)
    },
    allow_unconditional_update=False,
)
"""The kind in the form in which it is stored."""


def _without_old_fields(obj: Obj) -> Obj:
    spec = spec_of(obj)
    if not any(name in spec for name in _OLD_FIELDS):
        return obj
    return {**obj, "spec": {name: value for name, value in spec.items() if name not in _OLD_FIELDS}}


KIND_V1 = in_version(KIND, "v1", message("io.k8s.api.certificates.v1.PodCertificateRequest"), _without_old_fields)
