"""How decisions about a CertificateSigningRequest are written: `/approval` and `/status`.

Rules kept here (docs/protocol/certificate-signing-requests.md):
* `/approval` changes conditions and nothing else. `/status` changes the certificate and other conditions; Approved and Denied
  are put back when their number fits, and refused when it does not.
* A missing lastUpdateTime becomes now; a missing lastTransitionTime that of an old condition of equal type and status, else now.
* Approved, Denied and Failed never go away and can only be True. Types are unique; Approved and Denied exclude each other. What
  is wrong in the stored object already is tolerated, so that old data can still be decided on.
* A certificate is one or more CERTIFICATE blocks, and once set it stays.
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
_FINAL = (APPROVED, DENIED, FAILED)
_STATUSES = ("False", "True", "Unknown")
_PATH = "status.conditions"


def conditions_of(obj: Obj) -> list[Obj]:
    """The conditions of a request; do not change them."""
    found: list[Obj] = (obj.get("status") or {}).get("conditions") or []
    return found


def _of_type(conditions: list[Obj], kind: str) -> list[int]:
    return [index for index, condition in enumerate(conditions) if condition.get("type") == kind]


def prepare_approval(new: Obj, old: Obj, change: Change) -> None:
    """Keep of `new` only the conditions, with their times filled in."""
    conditions = _timed(conditions_of(new), old, change)
    status = {name: value for name, value in (old.get("status") or {}).items() if name != "conditions"}
    new["status"] = {"conditions": conditions, **status} if conditions else status
    reset_fields(new, old, "spec")


def prepare_status(new: Obj, old: Obj, change: Change) -> None:
    """Keep of `new` the status, but for Approved and Denied, with the times of its conditions filled in."""
    conditions, kept = list(conditions_of(new)), conditions_of(old)
    for kind in (APPROVED, DENIED):
        here, there = _of_type(conditions, kind), _of_type(kept, kind)
        if len(here) == len(there):
            for index, old_index in zip(here, there, strict=True):
                conditions[index] = kept[old_index]
    status = dict(new.get("status") or {})
    if conditions:
        status["conditions"] = _timed(conditions, old, change)
    new["status"] = status
    reset_fields(new, old, "spec")


def _timed(conditions: list[Obj], old: Obj, change: Change) -> list[Obj]:
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
    """What is wrong with the conditions that an approver writes."""
    return _condition_errors(conditions_of(new), conditions_of(old)) + _removals(new, old)


def validate_status(new: Obj, old: Obj) -> list[FieldError]:
    """What is wrong with the status that a signer writes."""
    conditions, kept = conditions_of(new), conditions_of(old)
    errors = _condition_errors(conditions, kept) + _certificate_errors(new, old) + _removals(new, old)
    errors += [
        forbidden(_PATH, f'updates may not add a condition of type "{kind}"')
        for kind in (APPROVED, DENIED)
        if len(_of_type(conditions, kind)) > len(_of_type(kept, kind))
    ]
    return errors


def _removals(new: Obj, old: Obj) -> list[FieldError]:
    conditions, kept = conditions_of(new), conditions_of(old)
    return [
        forbidden(_PATH, f'updates may not remove a condition of type "{kind}"')
        for kind in _FINAL
        if len(_of_type(conditions, kind)) < len(_of_type(kept, kind))
    ]


def _condition_errors(conditions: list[Obj], kept: list[Obj]) -> list[FieldError]:
    errors: list[FieldError] = []
    old_types = {condition.get("type", "") for condition in kept}
    old_has_duplicates = len(old_types) != len(kept)
    old_has_both = APPROVED in old_types and DENIED in old_types
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        at, kind, status = f"{_PATH}[{index}]", condition.get("type", ""), condition.get("status", "")
        if not kind and "" not in old_types:
            errors.append(required(f"{at}.type"))
        allowed = ("True",) if kind in _FINAL else _STATUSES
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
        why = "must contain at least one CERTIFICATE PEM block" if str(error) == NO_CERTIFICATE else str(error)
        return [invalid(path, "<certificate data>", why)]
    return []
