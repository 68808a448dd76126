"""CertificateSigningRequest: strategy, validation of its spec, `/approval` and `/status`, and print columns."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime, timedelta

from mooring.api.certificates import requestrecords
from mooring.api.certificates.requestrecords import (
    APPROVED,
    DENIED,
    FAILED,
    conditions_of,
    indexes_of_type,
    keep_known_revocations,
    keep_requester_certificate,
    keep_source_address,
    record_requester_certificate,
    record_source_address,
)
from mooring.api.kind import Change, Kind, SubresourceStrategy, is_untracked
from mooring.api.objectmeta import NAME, NONE, reset_fields, spec_of
from mooring.api.signername import signer_name_errors
from mooring.apimachinery.names import path_segment_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.clock import human_duration
from mooring.errors import MAX_FIELD_ERRORS, FieldError, duplicate, forbidden, invalid, not_supported, required
from mooring.pki.errors import PkiError, RequestError
from mooring.pki.x509.bundles import NO_CERTIFICATE, certificates
from mooring.pki.x509.profiles import USAGES
from mooring.pki.x509.requests import parse_request
from mooring.pki.x509.signers import LEGACY_UNKNOWN, RESERVED

# Validation of CertificateSigningRequests: spec, and updates of `/approval` and `/status`.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md#validation):
# * `request` is one PEM block CERTIFICATE REQUEST with a valid signature. An error quotes it only when it cannot be a private key,
#   because clients have sent those by mistake.
# * `usages`: at least one, known, without duplicates. `expirationSeconds`: at least 600.
# * `signerName` is never the legacy signer.
# * Approved, Denied and Failed are never removed and can only be True. Types are unique; Approved and Denied exclude each other.
#   Errors that the stored object has already are tolerated, so that it can still be approved or denied.
# * A certificate is one or more CERTIFICATE blocks, and is immutable once set.

_PERMANENT = (APPROVED, DENIED, FAILED)
_STATUSES = ("False", "True", "Unknown")
_PATH = "status.conditions"
MIN_SECONDS = 600
MAX_QUOTED_REQUEST = 4096
"""Characters of a request that an error quotes, twice in a response: one for an RSA key of 8192 bits has as many."""

_KNOWN_USAGES = frozenset(USAGES)
_SORTED_USAGES = tuple(sorted(USAGES))
"""Known usages, in the order in which an error lists them."""


def spec_errors(spec: Obj) -> list[FieldError]:
    """Validate `spec`."""
    errors = _request_errors(spec.get("request"))
    usages = spec.get("usages") or []
    if not usages:
        errors.append(required("spec.usages"))
    seen: set[str] = set()
    for index, usage in enumerate(usages):
        # Further errors are not reported, and a body may list a hundred thousand usages.
        if len(errors) > MAX_FIELD_ERRORS:
            break
        if usage not in _KNOWN_USAGES:
            errors.append(not_supported(f"spec.usages[{index}]", usage, _SORTED_USAGES))
        if usage in seen:
            errors.append(duplicate(f"spec.usages[{index}]", usage))
        seen.add(usage)
    signer = spec.get("signerName", "")
    if signer == LEGACY_UNKNOWN:
        errors.append(invalid("spec.signerName", signer, "the legacy signerName is not allowed via this API version"))
    else:
        errors += signer_name_errors(signer, "spec.signerName")
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < MIN_SECONDS:
        errors.append(
            invalid(
                "spec.expirationSeconds",
                seconds,
                f"may not specify a duration less than {MIN_SECONDS} seconds (10 minutes)",
            )
        )
    return errors


def _request_errors(request: str | None) -> list[FieldError]:
    decoded = b""
    try:
        decoded = base64.b64decode(request or "")
        parse_request(decoded)
    except (RequestError, binascii.Error) as error:
        # A person may have pasted a private key in place of the request: it must not come back in an error, which logs
        # keep.
        quoted = request if not request or _is_public(decoded) else "<certificate request>"
        if quoted and len(quoted) > MAX_QUOTED_REQUEST:
            quoted = quoted[:MAX_QUOTED_REQUEST] + "..."
        return [invalid("spec.request", quoted, str(error))]
    return []


def _is_public(decoded: bytes) -> bool:
    """Return true when an error may quote the text: it is PEM without a private key block."""
    return decoded.startswith(b"-----BEGIN ") and b"PRIVATE" not in decoded


def validate_approval(new: Obj, old: Obj) -> list[FieldError]:
    """Validate an update of `/approval`."""
    return _condition_errors(conditions_of(new), conditions_of(old)) + _removal_errors(new, old)


def validate_status(new: Obj, old: Obj) -> list[FieldError]:
    """Validate an update of `/status`."""
    conditions, old_conditions = conditions_of(new), conditions_of(old)
    errors = _condition_errors(conditions, old_conditions) + _certificate_errors(new, old) + _removal_errors(new, old)
    errors += [
        forbidden(_PATH, f'updates may not add a condition of type "{kind}"')
        for kind in (APPROVED, DENIED)
        if len(indexes_of_type(conditions, kind)) > len(indexes_of_type(old_conditions, kind))
    ]
    return errors


def _removal_errors(new: Obj, old: Obj) -> list[FieldError]:
    conditions, old_conditions = conditions_of(new), conditions_of(old)
    return [
        forbidden(_PATH, f'updates may not remove a condition of type "{kind}"')
        for kind in _PERMANENT
        if len(indexes_of_type(conditions, kind)) < len(indexes_of_type(old_conditions, kind))
    ]


def _condition_errors(conditions: list[Obj], old_conditions: list[Obj]) -> list[FieldError]:
    errors: list[FieldError] = []
    old_types = {condition.get("type", "") for condition in old_conditions}
    old_has_duplicates = len(old_types) != len(old_conditions)
    old_has_both = APPROVED in old_types and DENIED in old_types
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        at, kind, status = f"{_PATH}[{index}]", condition.get("type", ""), condition.get("status", "")
        if not kind and "" not in old_types:
            errors.append(required(f"{at}.type"))
        allowed = ("True",) if kind in _PERMANENT else _STATUSES
        if not status:
            errors.append(required(f"{at}.status"))
        elif status not in allowed:
            errors.append(not_supported(f"{at}.status", status, allowed))
        other = {APPROVED: DENIED, DENIED: APPROVED}.get(kind)
        if other in seen and not old_has_both:
            errors.append(invalid(_PATH, kind, "Approved and Denied conditions are mutually exclusive"))
        if kind in seen and not old_has_duplicates:
            errors.append(duplicate(f"{at}.type", kind))
        seen.add(kind)
    return errors


def _certificate_errors(new: Obj, old: Obj) -> list[FieldError]:
    path = "status.certificate"
    certificate, before = new["status"].get("certificate", ""), (old.get("status") or {}).get("certificate", "")
    if certificate == before:
        return []
    errors: list[FieldError] = []
    try:
        if certificate:
            # Only where it has changed: an older server may have stored one that this parser refuses.
            certificates(base64.b64decode(certificate))
    except (PkiError, binascii.Error) as error:
        detail = "must contain at least one CERTIFICATE PEM block" if str(error) == NO_CERTIFICATE else str(error)
        errors.append(invalid(path, "<certificate data>", detail))
    if before:
        errors.append(forbidden(path, "updates may not modify existing certificate content"))
    return errors


# CertificateSigningRequest: strategy, print columns.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md):
# * The server sets username, uid, groups and extra to those of the request's user, whatever the client sends. Keys of extra that
#   begin with `mooring.io/k3s-` come from no user, however it was authenticated or impersonated: only the supervisor states them.
# * spec is immutable. status changes only through `/approval` (conditions) and `/status` (certificate and other conditions). A
#   new object has an empty status.


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
    # A client that brings an approval with the request would approve itself.
    obj["status"] = {}
    record_source_address(obj, change)
    record_requester_certificate(obj, change)


def _extra(change: Change) -> dict[str, list[str]]:
    """Return the extra attributes of the user, with those that the server states about it."""
    # Anyone who may impersonate could send such keys otherwise.
    own = {key: list(values) for key, values in change.user.extra.items() if not key.startswith(RESERVED)}
    return own | {key: list(values) for key, values in change.attested.items()}


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "spec", "status")
    keep_source_address(new, old)
    keep_requester_certificate(new, old)
    keep_known_revocations(new, old)


def _validate(obj: Obj) -> list[FieldError]:
    # The check of the signature costs much. Create empties status, and every update resets spec: it is checked once.
    return [] if obj.get("status") else spec_errors(obj.get("spec") or {})


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
            prepare_for_update=requestrecords.prepare_approval, validate_update=validate_approval
        ),
        "status": SubresourceStrategy(
            prepare_for_update=requestrecords.prepare_status, validate_update=validate_status
        ),
    },
)
