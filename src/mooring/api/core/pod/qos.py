"""Amounts of a Pod: what a quantity is worth, and the class of service that follows from requests and limits.

Rules kept here (Kubernetes documentation "Pod Quality of Service Classes" and "Quantity"):
* Guaranteed: every container limits cpu and memory, and asks for exactly its limits. BestEffort: nobody asks for or limits
  either. Burstable: everything else. Resources of the Pod as a whole, when given, are looked at instead of the containers'.
* Amounts of zero say nothing.
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
"""Larger ones than any amount of anything are read as this, so that no text makes a number of many digits."""
CLASSED = ("cpu", "memory")
"""The resources that the class of service looks at."""


def amount(text: str | int) -> Decimal:
    """What a quantity that fits the schema is worth; 0 for any other text."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found[3] not in _SUFFIXES:
        return Decimal(0)
    exponent = max(-_MAX_EXPONENT, min(int((found[2] or "e0")[1:]), _MAX_EXPONENT))
    return Decimal(found[1]).scaleb(exponent) * _SUFFIXES[found[3]]


def qos_class(spec: Obj) -> str:
    """Guaranteed, Burstable or BestEffort."""
    whole = spec.get("resources")
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    parts: list[Obj] = [whole] if whole else [container.get("resources") or {} for container in containers]
    asked = [_amounts(part.get("requests")) for part in parts]
    limits = [_amounts(part.get("limits")) for part in parts]
    if not any(asked) and not any(limits):
        return "BestEffort"
    exact = all(len(limit) == len(CLASSED) and limit == wanted for wanted, limit in zip(asked, limits, strict=True))
    return "Guaranteed" if exact else "Burstable"


def _amounts(resources: Obj | None) -> dict[str, Decimal]:
    worth = {name: amount(text) for name, text in (resources or {}).items() if name in CLASSED}
    return {name: value for name, value in worth.items() if value > 0}
