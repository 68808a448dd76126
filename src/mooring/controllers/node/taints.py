"""Taints of a Node that follow from its conditions.

Rules kept here (Kubernetes documentation "Taints and Tolerations", "Nodes"):
* Ready False taints with `not-ready`, Ready Unknown with `unreachable`, both NoSchedule and NoExecute. Pressures, a network that is
  not available, and `spec.unschedulable` taint with NoSchedule.
* Only these taints are added and removed. A Node without a Ready condition keeps its NoExecute taints.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339

PREFIX = "node.kubernetes.io/"
NOT_READY, UNREACHABLE, UNSCHEDULABLE = PREFIX + "not-ready", PREFIX + "unreachable", PREFIX + "unschedulable"
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
READY = "Ready"
_OF_CONDITION = {
    (READY, "False"): NOT_READY,
    (READY, "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): PREFIX + "memory-pressure",
    ("DiskPressure", "True"): PREFIX + "disk-pressure",
    ("PIDPressure", "True"): PREFIX + "pid-pressure",
    ("NetworkUnavailable", "True"): PREFIX + "network-unavailable",
}
_NO_SCHEDULE_KEYS = frozenset({*_OF_CONDITION.values(), UNSCHEDULABLE})
_NO_EXECUTE_KEYS = frozenset({NOT_READY, UNREACHABLE})


def tainted(node: Obj, now: datetime) -> Obj | None:
    """Return the Node with the taints of its conditions, or None when it has them."""
    spec = node.get("spec") or {}
    present = spec.get("taints") or []
    wanted = dict.fromkeys(_wanted(node))
    kept = [taint for taint in present if not _is_managed(taint, node) or _identity(taint) in wanted]
    known = {_identity(taint) for taint in kept}
    added = [
        {"key": key, "effect": effect, "timeAdded": rfc3339(now)}
        for key, effect in wanted
        if (key, effect) not in known
    ]
    if not added and len(kept) == len(present):
        return None
    changed = {name: value for name, value in spec.items() if name != "taints"}
    taints = [*kept, *added]
    return {**node, "spec": {**changed, "taints": taints} if taints else changed}


def _wanted(node: Obj) -> Iterator[tuple[str, str]]:
    for condition in (node.get("status") or {}).get("conditions") or ():
        kind = condition.get("type")
        key = _OF_CONDITION.get((kind, condition.get("status")))
        if key is not None:
            yield key, NO_SCHEDULE
            if kind == READY:
                yield key, NO_EXECUTE
    if (node.get("spec") or {}).get("unschedulable"):
        yield UNSCHEDULABLE, NO_SCHEDULE


def _is_managed(taint: Obj, node: Obj) -> bool:
    key, effect = _identity(taint)
    if effect == NO_EXECUTE:
        return key in _NO_EXECUTE_KEYS and ready_condition(node) is not None
    return effect == NO_SCHEDULE and key in _NO_SCHEDULE_KEYS


def ready_condition(node: Obj) -> Obj | None:
    """Return the Ready condition, or None."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == READY), None)


def _identity(taint: Obj) -> tuple[str, str]:
    return taint.get("key", ""), taint.get("effect", "")
