"""CertificateSigningRequest: strategy, print columns.

Rules kept here (docs/protocol/certificate-signing-requests.md):
* The server sets username, uid, groups and extra to those of the request's user, whatever the client sends. Keys of extra that
  begin with `mooring.io/k3s-` come from no user, however it was authenticated or impersonated: only the supervisor states them.
* spec is immutable. status changes only through `/approval` (conditions) and `/status` (certificate and other conditions). A new
  object has an empty status.
* spec is validated only while the object has neither a condition nor a certificate: create empties status, and later every
  update resets spec. So the costly check of the signature is not repeated on approval and issue.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from mooring.api.certificates import conditions, validation
from mooring.api.certificates.knownrevocations import keep_known_revocations
from mooring.api.certificates.requestercertificate import keep_requester_certificate, record_requester_certificate
from mooring.api.certificates.sourceaddress import keep_source_address, record_source_address
from mooring.api.kind import Change, Kind, SubresourceStrategy, is_untracked
from mooring.api.meta.printcolumns import NAME, NONE, spec_of
from mooring.api.meta.resetfields import reset_fields
from mooring.apimachinery.names import path_segment_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.clock import human_duration
from mooring.errors import FieldError
from mooring.pki.x509.signers import RESERVED


def _prepare_for_create(obj: Obj, change: Change) -> None:
    user = change.user
    spec = obj.setdefault("spec", {})
    for name, value in (
        ("username", user.username),
        ("uid", user.uid),
        ("groups", list(user.groups)),
        ("extra", _extra(change)),
    ):
        if value:
            spec[name] = value
        else:
            spec.pop(name, None)
    obj["status"] = {}
    record_source_address(obj, change)
    record_requester_certificate(obj, change)


def _extra(change: Change) -> dict[str, list[str]]:
    """Return the extra attributes of the user, with those that the server states about it."""
    own = {key: list(values) for key, values in change.user.extra.items() if not key.startswith(RESERVED)}
    return own | {key: list(values) for key, values in change.attested.items()}


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "spec", "status")
    keep_source_address(new, old)
    keep_requester_certificate(new, old)
    keep_known_revocations(new, old)


def _validate(obj: Obj) -> list[FieldError]:
    return [] if obj.get("status") else validation.spec_errors(obj.get("spec") or {})


def _condition(obj: Obj, now: datetime) -> str:
    status = obj.get("status") or {}
    types = {condition.get("type") for condition in status.get("conditions") or []}
    text = "Denied" if "Denied" in types else "Approved" if "Approved" in types else "Pending"
    return text + (",Failed" if "Failed" in types else "") + (",Issued" if status.get("certificate") else "")


def _duration(obj: Obj, now: datetime) -> str:
    seconds = spec_of(obj).get("expirationSeconds")
    return NONE if seconds is None else human_duration(timedelta(seconds=seconds))


KIND = Kind(
    resource=Resource(
        group="certificates.k8s.io",
        version="v1",
        kind="CertificateSigningRequest",
        plural="certificatesigningrequests",
        namespaced=False,
        schema=message("io.k8s.api.certificates.v1.CertificateSigningRequest"),
        short_names=("csr",),
        subresources=(
            Subresource("approval", ("get", "patch", "update")),
            Subresource("status", ("get", "patch", "update")),
        ),
        columns=(
            NAME,
            AGE,
            Column(
                "SignerName", lambda obj, now: spec_of(obj).get("signerName") or NONE, description="Who is to sign."
            ),
            Column("Requestor", lambda obj, now: spec_of(obj).get("username", ""), description="Who asked."),
            Column("RequestedDuration", _duration, description="Wanted validity."),
            Column("Condition", _condition, description="Whether it was decided and issued."),
        ),
    ),
    storage="/registry/certificatesigningrequests",
    tracks_creator=is_untracked,
    name_errors=path_segment_errors,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    validate=_validate,
    selectable_fields=lambda obj: {"spec.signerName": (obj.get("spec") or {}).get("signerName", "")},
    field_labels=("spec.signerName",),
    subresources={
        "approval": SubresourceStrategy(
            prepare_for_update=conditions.prepare_approval, validate_update=validation.validate_approval
        ),
        "status": SubresourceStrategy(
            prepare_for_update=conditions.prepare_status, validate_update=validation.validate_status
        ),
    },
)
