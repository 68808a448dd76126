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
from mooring.apimachinery.metav1 import CONDITION, OBJECT_META, STRING_MAP
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Field, ListOf, Message, Obj, Scalar

GROUP = "certificates.k8s.io"
PLURAL = "podcertificaterequests"
DEFAULT_SECONDS = 86_400
"""`spec.maxExpirationSeconds` of a request without it."""
PENDING = "Pending"
_RESET_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
_OLD_FIELDS = ("pkixPublicKey", "proofOfPossession")
"""Fields of v1beta1 that v1 does not have."""

_SPEC = (
    Field("signerName", 1, Scalar.STRING, "Signer that is asked, such as example.com/mesh.", required=True),
    Field("podName", 2, Scalar.STRING, "Name of the Pod that gets the certificate.", required=True),
    Field("podUID", 3, Scalar.STRING, "uid of the Pod.", required=True),
    Field("serviceAccountName", 4, Scalar.STRING, "Name of the ServiceAccount of the Pod.", required=True),
    Field("serviceAccountUID", 5, Scalar.STRING, "uid of the ServiceAccount.", required=True),
    Field("nodeName", 6, Scalar.STRING, "Name of the Node on which the Pod runs.", required=True),
    Field("nodeUID", 7, Scalar.STRING, "uid of the Node.", required=True),
    Field(
        "maxExpirationSeconds",
        8,
        Scalar.INT32,
        f"Longest lifetime of the certificate, from 3600 to 7862400 seconds; for signers of kubernetes.io at most 86400. "
        f"The default is {DEFAULT_SECONDS}. The certificate may live shorter, but not below an hour.",
        pointer=True,
    ),
)
_DEPRECATED = (
    Field("pkixPublicKey", 9, Scalar.BYTES, "Public key as SubjectPublicKeyInfo; the old form of stubPKCS10Request."),
    Field("proofOfPossession", 10, Scalar.BYTES, "Signature of the bytes of podUID, with the key of pkixPublicKey."),
)
_ANNOTATIONS = Field(
    "unverifiedUserAnnotations",
    11,
    STRING_MAP,
    "What the author of the Pod tells the signer, unverified. Keys have a domain.",
)


def _schema(version: str) -> Message:
    api = f"io.k8s.api.certificates.{version}."
    stub = Field(
        "stubPKCS10Request",
        12,
        Scalar.BYTES,
        "PKCS#10 request in DER, which proves the possession of the key. Kubelets leave it empty otherwise. The key is RSA of 3072 "
        "or 4096 bits, ECDSA with P-256, P-384 or P-521, or Ed25519.",
        required=version == "v1",
    )
    fields = (*_SPEC, *(_DEPRECATED if version != "v1" else ()), _ANNOTATIONS, stub)
    spec = Message(api + "PodCertificateRequestSpec", fields, "Which Pod asks which signer. Cannot be changed.")
    status = Message(
        api + "PodCertificateRequestStatus",
        (
            Field(
                "conditions",
                1,
                ListOf(CONDITION),
                "The decision: one of Issued, Denied and Failed, with the status True. It is final.",
                patch="merge",
                patch_key="type",
                list_keys=("type",),
            ),
            Field(
                "certificateChain",
                2,
                Scalar.STRING,
                "The issued certificate as PEM, with intermediates if there are any.",
            ),
            Field("notBefore", 4, Scalar.TIME, "Beginning of the certificate's validity.", pointer=True),
            Field("beginRefreshAt", 5, Scalar.TIME, "When the kubelet should ask for another one.", pointer=True),
            Field("notAfter", 6, Scalar.TIME, "End of the certificate's validity.", pointer=True),
        ),
        "What was decided and issued.",
    )
    return Message(
        api + "PodCertificateRequest",
        (
            Field("metadata", 1, OBJECT_META, "Standard object metadata."),
            Field("spec", 2, spec, "Which Pod asks which signer. Cannot be changed.", required=True),
            Field("status", 3, status, "What was decided and issued."),
        ),
        "Asks a signer for the certificate of a Pod. Kubelets create it for volumes with the source podCertificate.",
    )


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
        schema=_schema("v1beta1"),
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


KIND_V1 = in_version(KIND, "v1", _schema("v1"), _without_old_fields)
