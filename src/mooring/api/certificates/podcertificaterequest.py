"""PodCertificateRequest: a kubelet asks a signer for the certificate of a Pod; its two versions and their strategy.

Rules kept here (docs/protocol/pod-certificate-requests.md):
* v1 and v1beta1 are served. v1beta1 alone has `pkixPublicKey` and `proofOfPossession`, which v1 replaced by `stubPKCS10Request`.
  Objects are stored as v1beta1, as in Kubernetes 1.37. A client of v1 does not see the two old fields, and loses none by an update.
* spec is immutable. A new object has an empty status. `/status` changes the status alone, and no metadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from mooring.api.certificates import podrequestvalidation as validation
from mooring.api.certificates.podrequestvalidation import CONDITION_TYPES
from mooring.api.kind import Change, Kind, SubresourceStrategy, in_version, is_untracked
from mooring.api.meta.printcolumns import NAME, NONE, spec_of
from mooring.api.meta.resetfields import reset_fields
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message

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
