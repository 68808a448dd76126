"""How a Pod prints (kubectl get pods): ready containers, one word about its state, restarts; wide also where it is.

Rules kept here (Kubernetes documentation "Pod Lifecycle"; words as kubectl shows them):
* The word is the phase, unless something says more: a reason, waiting gates, an init container that is not done (`Init:…`), a
  container that waits or ended, and Terminating for a Pod that is being deleted.
* Init containers that always restart count as containers; while others run only theirs are counted.
* The last restart is told by how long ago it was; what is missing prints `<none>`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from mooring.api.meta.printcolumns import AGE, NAME, NONE, since, spec_of
from mooring.apimachinery.resource import Column
from mooring.apimachinery.schema import Obj

ENDED = ("Failed", "Succeeded")
"""Phases that a Pod does not leave."""


def _status(obj: Obj) -> Obj:
    status: Obj = obj.get("status") or {}
    return status


def _is_true(obj: Obj, condition: str) -> bool:
    conditions = _status(obj).get("conditions") or ()
    return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)


def _sidecars(obj: Obj) -> set[str]:
    """Init containers that run as long as the Pod."""
    return {
        one.get("name", "") for one in spec_of(obj).get("initContainers") or () if one.get("restartPolicy") == "Always"
    }


def _ready(obj: Obj, now: datetime) -> str:
    sidecars, status = _sidecars(obj), _status(obj)
    total = len(spec_of(obj).get("containers") or ()) + len(sidecars)
    running = [one for one in status.get("containerStatuses") or () if "running" in (one.get("state") or {})]
    up = [
        one for one in status.get("initContainerStatuses") or () if one.get("name") in sidecars and one.get("started")
    ]
    if _unfinished(obj) and not _is_true(obj, "Initialized"):
        running = []
    return f"{sum(bool(one.get('ready')) for one in (*running, *up))}/{total}"


def _unfinished(obj: Obj) -> str:
    """What the first init container that is not done is doing; "" when all are."""
    sidecars = _sidecars(obj)
    for index, one in enumerate(_status(obj).get("initContainerStatuses") or ()):
        state = one.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None:
            if not ended.get("exitCode"):
                continue
            return "Init:" + _end(ended)
        if one.get("name") in sidecars and one.get("started"):
            continue
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(spec_of(obj).get('initContainers') or ())}"
    return ""


def _end(ended: Obj) -> str:
    reason: str = ended.get("reason", "")
    if reason:
        return reason
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _word(obj: Obj, now: datetime) -> str:
    status = _status(obj)
    word: str = status.get("reason") or status.get("phase") or ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            word = "SchedulingGated"
    unfinished = _unfinished(obj)
    word = unfinished or word
    if not unfinished or _is_true(obj, "Initialized"):
        word = _of_containers(obj, word)
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ENDED:
            return "Terminating"
    return word


def _of_containers(obj: Obj, word: str) -> str:
    some_run = False
    for one in reversed(_status(obj).get("containerStatuses") or ()):
        state = one.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if waiting.get("reason"):
            word = waiting["reason"]
        elif ended is not None:
            word = _end(ended)
        elif one.get("ready") and "running" in state:
            some_run = True
    if word == "Completed" and some_run:
        return "Running" if _is_true(obj, "Ready") else "NotReady"
    return word


def _restarts(obj: Obj, now: datetime) -> str:
    sidecars, status = _sidecars(obj), _status(obj)
    counted = list(status.get("initContainerStatuses") or ())
    if not _unfinished(obj) or _is_true(obj, "Initialized"):
        counted = [one for one in counted if one.get("name") in sidecars]
        counted += status.get("containerStatuses") or ()
    total = sum(one.get("restartCount", 0) for one in counted)
    last = max(_ends(counted), default="")
    return f"{total} ({since(last, now)} ago)" if total and last else str(total)


def _ends(statuses: Iterable[Obj]) -> list[str]:
    """When containers last ended before they were started again. RFC 3339 texts of equal form sort as times do."""
    ended = [((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for one in statuses]
    return [text for text in ended if text]


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
    Column("Status", _word, description="One word about the state of the Pod."),
    Column("Restarts", _restarts, description="How often containers were started again, and when last."),
    AGE,
    Column("IP", _ip, description="Address of the Pod.", priority=1),
    Column("Node", _node, description="The node it runs on.", priority=1),
    Column("Nominated Node", _nominated, description="The node that is being cleared for it.", priority=1),
    Column("Readiness Gates", _gates, description="Readiness gates that are true, of all.", priority=1),
)
