"""CertificateSigningRequest `/approval` and `/status`: strategies and validation of conditions and certificate.

Rules kept here (docs/protocol/certificate-signing-requests.md):
* `/approval` changes conditions only. `/status` changes the certificate and other conditions: Approved and Denied are reset when
  their number is unchanged, and refused otherwise.
* A missing lastUpdateTime becomes now. A missing lastTransitionTime becomes that of an old condition of equal type and status, or
  now.
* Approved, Denied and Failed are never removed and can only be True. Types are unique; Approved and Denied exclude each other.
  Errors that the stored object has already are tolerated, so that it can still be approved or denied.
* A certificate is one or more CERTIFICATE blocks, and is immutable once set.
"""

from __future__ import annotations

import base64
import binascii

from mooring.api.kind import Change
from mooring.api.meta.resetfields import reset_fields
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.errors import FieldError, duplicate, forbidden, invalid, not_supported, required
from mooring.pki.errors import PemError
from mooring.pki.pem import NO_CERTIFICATE, certificates

APPROVED = "Approved"
DENIED = "Denied"
FAILED = "Failed"
_PERMANENT = (APPROVED, DENIED, FAILED)
_STATUSES = ("False", "True", "Unknown")
_PATH = "status.conditions"


def conditions_of(obj: Obj) -> list[Obj]:
    """Return the conditions of a request; callers do not change them."""
    found: list[Obj] = (obj.get("status") or {}).get("conditions") or []
    return found


def _indexes_of_type(conditions: list[Obj], kind: str) -> list[int]:
    return [index for index, condition in enumerate(conditions) if condition.get("type") == kind]


def prepare_approval(new: Obj, old: Obj, change: Change) -> None:
    """Reset `new` except its conditions, and fill in their times."""
    conditions = _with_times(conditions_of(new), old, change)
    status = {name: value for name, value in (old.get("status") or {}).items() if name != "conditions"}
    new["status"] = {"conditions": conditions, **status} if conditions else status
    reset_fields(new, old, "spec")


def prepare_status(new: Obj, old: Obj, change: Change) -> None:
    """Reset `new` except its status, reset Approved and Denied in it, and fill in the times of its conditions."""
    conditions, old_conditions = list(conditions_of(new)), conditions_of(old)
    for kind in (APPROVED, DENIED):
        here, there = _indexes_of_type(conditions, kind), _indexes_of_type(old_conditions, kind)
        if len(here) == len(there):
            for index, old_index in zip(here, there, strict=True):
                conditions[index] = old_conditions[old_index]
    status = dict(new.get("status") or {})
    if conditions:
        status["conditions"] = _with_times(conditions, old, change)
    new["status"] = status
    reset_fields(new, old, "spec")


def _with_times(conditions: list[Obj], old: Obj, change: Change) -> list[Obj]:
    now = rfc3339(change.now)
    before = {
        (condition.get("type"), condition.get("status")): condition.get("lastTransitionTime") or now
        for condition in reversed(conditions_of(old))
    }
    return [
        {
            **condition,
            "lastUpdateTime": condition.get("lastUpdateTime") or now,
            "lastTransitionTime": condition.get("lastTransitionTime")
            or before.get((condition.get("type"), condition.get("status")), now),
        }
        for condition in conditions
    ]


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
        if len(_indexes_of_type(conditions, kind)) > len(_indexes_of_type(old_conditions, kind))
    ]
    return errors


def _removal_errors(new: Obj, old: Obj) -> list[FieldError]:
    conditions, old_conditions = conditions_of(new), conditions_of(old)
    return [
        forbidden(_PATH, f'updates may not remove a condition of type "{kind}"')
        for kind in _PERMANENT
        if len(_indexes_of_type(conditions, kind)) < len(_indexes_of_type(old_conditions, kind))
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
    if before:
        return [forbidden(path, "updates may not modify existing certificate content")]
    try:
        certificates(base64.b64decode(certificate))
    except (PemError, binascii.Error) as error:
        detail = "must contain at least one CERTIFICATE PEM block" if str(error) == NO_CERTIFICATE else str(error)
        return [invalid(path, "<certificate data>", detail)]
    return []
