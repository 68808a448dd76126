"""Print columns of Pod: ready containers, status word, restarts; with `-o wide` IP, node and readiness gates.

Rules kept here (Kubernetes documentation "Pod Lifecycle"; words as kubectl prints them):
* The status word is the phase, unless something more specific applies: a reason, scheduling gates, an init container that is not
  done (`Init:…`), a waiting or terminated container, and Terminating for a deleted Pod.
* Restartable init containers count as containers. While init containers run, only their restarts are counted.
* The time since the last restart is printed with the count; a missing value prints `<none>`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from mooring.api.meta.printcolumns import NAME, NONE, spec_of
from mooring.apimachinery.resource import Column
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.table import AGE, age

FINAL_PHASES = ("Failed", "Succeeded")
"""Phases that never change again."""


def _status(obj: Obj) -> Obj:
    status: Obj = obj.get("status") or {}
    return status


def _is_true(obj: Obj, condition: str) -> bool:
    conditions = _status(obj).get("conditions") or ()
    return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)


def _sidecars(obj: Obj) -> set[str]:
    """Return the names of restartable init containers, which run as long as the Pod."""
    return {
        one.get("name", "") for one in spec_of(obj).get("initContainers") or () if one.get("restartPolicy") == "Always"
    }


def _ready(obj: Obj, now: datetime) -> str:
    sidecars, status = _sidecars(obj), _status(obj)
    total = len(spec_of(obj).get("containers") or ()) + len(sidecars)
    running = [one for one in status.get("containerStatuses") or () if "running" in (one.get("state") or {})]
    started = [
        one for one in status.get("initContainerStatuses") or () if one.get("name") in sidecars and one.get("started")
    ]
    if _init_status(obj) and not _is_true(obj, "Initialized"):
        running = []
    return f"{sum(bool(one.get('ready')) for one in (*running, *started))}/{total}"


def _init_status(obj: Obj) -> str:
    """Return the status word of the first unfinished init container; "" when all are done."""
    sidecars = _sidecars(obj)
    for index, one in enumerate(_status(obj).get("initContainerStatuses") or ()):
        state = one.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None:
            if not terminated.get("exitCode"):
                continue
            return "Init:" + _termination_word(terminated)
        if one.get("name") in sidecars and one.get("started"):
            continue
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(spec_of(obj).get('initContainers') or ())}"
    return ""


def _termination_word(terminated: Obj) -> str:
    reason: str = terminated.get("reason", "")
    if reason:
        return reason
    return f"Signal:{terminated['signal']}" if terminated.get("signal") else f"ExitCode:{terminated.get('exitCode', 0)}"


def _status_word(obj: Obj, now: datetime) -> str:
    status = _status(obj)
    word: str = status.get("reason") or status.get("phase") or ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            word = "SchedulingGated"
    init_status = _init_status(obj)
    word = init_status or word
    if not init_status or _is_true(obj, "Initialized"):
        word = _container_status(obj, word)
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in FINAL_PHASES:
            return "Terminating"
    return word


def _container_status(obj: Obj, word: str) -> str:
    any_running = False
    for one in reversed(_status(obj).get("containerStatuses") or ()):
        state = one.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if waiting.get("reason"):
            word = waiting["reason"]
        elif terminated is not None:
            word = _termination_word(terminated)
        elif one.get("ready") and "running" in state:
            any_running = True
    if word == "Completed" and any_running:
        return "Running" if _is_true(obj, "Ready") else "NotReady"
    return word


def _restarts(obj: Obj, now: datetime) -> str:
    sidecars, status = _sidecars(obj), _status(obj)
    counted = list(status.get("initContainerStatuses") or ())
    if not _init_status(obj) or _is_true(obj, "Initialized"):
        counted = [one for one in counted if one.get("name") in sidecars]
        counted += status.get("containerStatuses") or ()
    total = sum(one.get("restartCount", 0) for one in counted)
    last = max(_restart_times(counted), default="")
    return f"{total} ({age(last, now)} ago)" if total and last else str(total)


def _restart_times(statuses: Iterable[Obj]) -> list[str]:
    """Return the times when containers last terminated before a restart. RFC 3339 texts of equal form sort like times."""
    times = [((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for one in statuses]
    return [text for text in times if text]


def _ip(obj: Obj, now: datetime) -> str:
    address: str = _status(obj).get("podIP") or NONE
    return address


def _node(obj: Obj, now: datetime) -> str:
    node: str = spec_of(obj).get("nodeName") or NONE
    return node


def _nominated(obj: Obj, now: datetime) -> str:
    node: str = _status(obj).get("nominatedNodeName") or NONE
    return node


def _gates(obj: Obj, now: datetime) -> str:
    gates = spec_of(obj).get("readinessGates") or ()
    if not gates:
        return NONE
    return f"{sum(_is_true(obj, gate.get('conditionType', '')) for gate in gates)}/{len(gates)}"


COLUMNS = (
    NAME,
    Column("Ready", _ready, description="Containers that are ready, of all."),
    Column("Status", _status_word, description="One word about the state of the Pod."),
    Column("Restarts", _restarts, description="How often containers were started again, and when last."),
    AGE,
    Column("IP", _ip, description="Address of the Pod.", priority=1),
    Column("Node", _node, description="The node it runs on.", priority=1),
    Column("Nominated Node", _nominated, description="The node that is being cleared for it.", priority=1),
    Column("Readiness Gates", _gates, description="Readiness gates that are true, of all.", priority=1),
)
