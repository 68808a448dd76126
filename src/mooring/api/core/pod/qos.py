"""Quality of service class of a Pod, from the requests and limits of its containers.

Rules kept here (Kubernetes documentation "Pod Quality of Service Classes"):
* Guaranteed: every container limits cpu and memory, and its requests equal its limits. BestEffort: no container requests or limits
  either. Burstable: everything else. Resources of the Pod as a whole, when given, replace those of the containers.
* Amounts of zero count as absent.
"""

from __future__ import annotations

from decimal import Decimal

from mooring.apimachinery.quantity import decimal_value
from mooring.apimachinery.schema import Obj

QOS_RESOURCES = ("cpu", "memory")
"""Resources that determine the class."""


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
    amounts = {name: decimal_value(text) for name, text in (resources or {}).items() if name in QOS_RESOURCES}
    return {name: value for name, value in amounts.items() if value > 0}
