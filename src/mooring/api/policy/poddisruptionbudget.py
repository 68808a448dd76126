"""PodDisruptionBudget: strategy and validation. This server stores budgets; what evicts Pods observes them.

Rules kept here (Kubernetes API reference, policy/v1; wording as kube-apiserver's):
* `minAvailable` and `maxUnavailable` are numbers or percentages of at most 100 %, and never both set.
* The main resource changes all but status, `/status` status only, whose counts are not negative. PUT needs a resourceVersion.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

from mooring.api.kind import Change, Kind, SubresourceStrategy
from mooring.api.meta.conditions import condition_list_errors
from mooring.api.meta.labelselector import label_selector_errors
from mooring.api.meta.printcolumns import NAME
from mooring.api.meta.resetfields import reset_fields
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, invalid, not_supported

POLICIES = ("AlwaysAllow", "IfHealthyBudget")
NOT_A_PERCENTAGE = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)
_PERCENTAGE = re.compile("[0-9]+%", re.ASCII)
_COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


def _validate(obj: Obj) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors: list[FieldError] = []
    given = [name for name in ("minAvailable", "maxUnavailable") if spec.get(name) is not None]
    if len(given) > 1:
        fields = ("minAvailable", "selector", "maxUnavailable", "unhealthyPodEvictionPolicy")
        shown = {f"{name[0].upper()}{name[1:]}": spec.get(name) for name in fields}  # Go shows its struct
        errors.append(invalid("spec", shown, "minAvailable and maxUnavailable cannot be both set"))
    for name in given:
        errors += _amount_errors(spec[name], f"spec.{name}")
    errors += label_selector_errors(spec.get("selector") or {}, "spec.selector")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in POLICIES:
        errors.append(not_supported("spec.unhealthyPodEvictionPolicy", policy, POLICIES))
    return errors


def _amount_errors(amount: int | str, path: str) -> list[FieldError]:
    if isinstance(amount, int):
        return [invalid(path, amount, "must be greater than or equal to 0")] if amount < 0 else []
    if not _PERCENTAGE.fullmatch(amount):
        return [invalid(path, amount, NOT_A_PERCENTAGE)]
    digits = amount[:-1].lstrip("0")
    too_much = len(digits) > len("100") or int(digits or "0") > 100
    return [invalid(path, amount, "must not be greater than 100%")] if too_much else []


def _validate_status(new: Obj, old: Obj) -> list[FieldError]:
    status = new.get("status") or {}
    return condition_list_errors(status.get("conditions") or [], "status.conditions") + [
        invalid(f"status.{name}", status[name], "must be greater than or equal to 0")
        for name in _COUNTS
        if status.get(name, 0) < 0
    ]


def _prepare_for_create(obj: Obj, change: Change) -> None:
    obj["status"] = dict.fromkeys(_COUNTS, 0)


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "status")


def _prepare_status(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "spec")


def _amount(name: str) -> Callable[[Obj, datetime], str]:
    def printed(obj: Obj, now: datetime) -> str:
        amount = (obj.get("spec") or {}).get(name)
        return "N/A" if amount is None else str(amount)

    return printed


def _allowed(obj: Obj, now: datetime) -> int:
    count: int = (obj.get("status") or {}).get("disruptionsAllowed", 0)
    return count


KIND = Kind(
    resource=Resource(
        group="policy",
        version="v1",
        kind="PodDisruptionBudget",
        plural="poddisruptionbudgets",
        namespaced=True,
        schema=message("io.k8s.api.policy.v1.PodDisruptionBudget"),
        short_names=("pdb",),
        subresources=(Subresource("status", ("get", "patch", "update")),),
        columns=(
            NAME,
            Column("Min Available", _amount("minAvailable"), description="Pods that must stay."),
            Column("Max Unavailable", _amount("maxUnavailable"), description="Pods that may be away."),
            Column("Allowed Disruptions", _allowed, type="integer", description="Evictions that are allowed now."),
            AGE,
        ),
    ),
    storage="/registry/poddisruptionbudgets",
    name_errors=dns1123_subdomain_errors,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    validate=_validate,
    subresources={"status": SubresourceStrategy(prepare_for_update=_prepare_status, validate_update=_validate_status)},
    has_generation=True,
    allow_unconditional_update=False,
)
