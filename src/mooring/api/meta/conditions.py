"""Validation of conditions of the common form (Condition of meta/v1).

Rules kept here (k8s.io/apimachinery, `ValidateConditions`; wording as kube-apiserver's): types are label names and unique, the
status is True, False or Unknown, reason and lastTransitionTime are set, and reason and message have a greatest length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mooring.apimachinery.names import qualified_name_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, duplicate, invalid, not_supported, required, too_long

STATUSES = ("False", "True", "Unknown")
MAX_REASON = 1 << 10
"""Bytes of a reason."""
MAX_MESSAGE = 32 << 10
"""Bytes of a message."""
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", re.ASCII)
_NOT_A_REASON = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or "
    "'_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or "
    "'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
)


def condition_list_errors(conditions: list[Obj], path: str) -> list[FieldError]:
    """Return the errors of the conditions at `path`."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        kind = condition.get("type", "")
        if kind in seen:
            errors.append(duplicate(f"{path}[{index}].type", kind))
        seen.add(kind)
        errors += _condition_errors(condition, f"{path}[{index}]")
    return errors


def _condition_errors(condition: Obj, at: str) -> Iterator[FieldError]:
    kind, status = condition.get("type", ""), condition.get("status", "")
    for detail in qualified_name_errors(kind):
        yield invalid(f"{at}.type", kind, detail)
    if status not in STATUSES:
        yield not_supported(f"{at}.status", status, STATUSES)
    generation = condition.get("observedGeneration", 0)
    if generation < 0:
        yield invalid(f"{at}.observedGeneration", generation, "must be greater than or equal to zero")
    if not condition.get("lastTransitionTime"):
        yield required(f"{at}.lastTransitionTime")
    yield from _reason_errors(condition.get("reason", ""), f"{at}.reason")
    if len(condition.get("message", "").encode("utf-8", "surrogatepass")) > MAX_MESSAGE:
        yield too_long(f"{at}.message", MAX_MESSAGE)


def _reason_errors(reason: str, path: str) -> Iterator[FieldError]:
    if not reason:
        yield required(path)
        return
    if not _REASON.fullmatch(reason):
        yield invalid(path, reason, _NOT_A_REASON)
    if len(reason.encode("utf-8", "surrogatepass")) > MAX_REASON:
        yield too_long(path, MAX_REASON)
