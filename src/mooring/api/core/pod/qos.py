"""Quality of service class of a Pod, from the requests and limits of its containers.

Rules kept here (Kubernetes documentation "Pod Quality of Service Classes" and "Quantity"):
* Guaranteed: every container limits cpu and memory, and its requests equal its limits. BestEffort: no container requests or limits
  either. Burstable: everything else. Resources of the Pod as a whole, when given, replace those of the containers.
* Amounts of zero count as absent.
"""

from __future__ import annotations

import re
from decimal import Decimal

from mooring.apimachinery.schema import Obj

_SUFFIXES = {
    "": Decimal(1),
    **{
        sign: Decimal(1000) ** power
        for power, sign in zip(range(-3, 7), ("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), strict=True)
    },
    **{sign: Decimal(1024) ** power for power, sign in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d+)?([a-zA-Z]*)", re.ASCII)
_MAX_EXPONENT = 64
"""Largest exponent that is computed; larger ones count as this, so that no text makes a number of many digits."""
QOS_RESOURCES = ("cpu", "memory")
"""Resources that determine the class."""


def amount(text: str | int) -> Decimal:
    """Return the value of a quantity, or 0 for an invalid text."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found[3] not in _SUFFIXES:
        return Decimal(0)
    exponent = max(-_MAX_EXPONENT, min(int((found[2] or "e0")[1:]), _MAX_EXPONENT))
    return Decimal(found[1]).scaleb(exponent) * _SUFFIXES[found[3]]


def qos_class(spec: Obj) -> str:
    """Return Guaranteed, Burstable or BestEffort."""
    pod_resources = spec.get("resources")
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    parts: list[Obj] = (
        [pod_resources] if pod_resources else [container.get("resources") or {} for container in containers]
    )
    requests = [_amounts(part.get("requests")) for part in parts]
    limits = [_amounts(part.get("limits")) for part in parts]
    if not any(requests) and not any(limits):
        return "BestEffort"
    exact = all(
        len(limit) == len(QOS_RESOURCES) and limit == request for request, limit in zip(requests, limits, strict=True)
    )
    return "Guaranteed" if exact else "Burstable"


def _amounts(resources: Obj | None) -> dict[str, Decimal]:
    amounts = {name: amount(text) for name, text in (resources or {}).items() if name in QOS_RESOURCES}
    return {name: value for name, value in amounts.items() if value > 0}
