"""CertificateSigningRequest conditions: their types, and the strategies of `/approval` and `/status`.

Rules kept here (docs/protocol/certificate-signing-requests.md):
* `/approval` changes conditions only. `/status` changes the certificate and other conditions: Approved and Denied are reset when
  their number is unchanged, and refused otherwise.
* A missing lastUpdateTime becomes now. A missing lastTransitionTime becomes that of an old condition of equal type and status, or
  now.
"""

from __future__ import annotations

from mooring.api.certificates.sourceaddress import keep_source_address
from mooring.api.kind import Change
from mooring.api.meta.resetfields import reset_fields
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339

APPROVED = "Approved"
DENIED = "Denied"
FAILED = "Failed"


def conditions_of(obj: Obj) -> list[Obj]:
    """Return the conditions of a request; callers do not change them."""
    found: list[Obj] = (obj.get("status") or {}).get("conditions") or []
    return found


def indexes_of_type(conditions: list[Obj], kind: str) -> list[int]:
    return [index for index, condition in enumerate(conditions) if condition.get("type") == kind]


def prepare_approval(new: Obj, old: Obj, change: Change) -> None:
    """Reset `new` except its conditions, and fill in their times."""
    conditions = _with_times(conditions_of(new), old, change)
    status = {name: value for name, value in (old.get("status") or {}).items() if name != "conditions"}
    new["status"] = {"conditions": conditions, **status} if conditions else status
    reset_fields(new, old, "spec")
    keep_source_address(new, old)


def prepare_status(new: Obj, old: Obj, change: Change) -> None:
    """Reset `new` except its status, reset Approved and Denied in it, and fill in the times of its conditions."""
    conditions, old_conditions = list(conditions_of(new)), conditions_of(old)
    for kind in (APPROVED, DENIED):
        here, there = indexes_of_type(conditions, kind), indexes_of_type(old_conditions, kind)
        if len(here) == len(there):
            for index, old_index in zip(here, there, strict=True):
                conditions[index] = old_conditions[old_index]
    status = dict(new.get("status") or {})
    if conditions:
        status["conditions"] = _with_times(conditions, old, change)
    new["status"] = status
    reset_fields(new, old, "spec")
    keep_source_address(new, old)


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
