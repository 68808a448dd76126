"""Print columns of Pods, as in `kubectl get pods -o wide` (Kubernetes documentation "Pod Lifecycle")."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from tests.support.changes import LATER

COLUMNS = BY_PLURAL["pods"].resource.columns

Obj = dict[str, Any]


def printed(obj: Obj) -> str:
    """Return all cells except name and age."""
    full = {"metadata": {"name": "p"}, **obj}
    return " ".join(str(column.cell(full, LATER)) for column in COLUMNS if column.name not in ("Name", "Age"))


def spec(containers: int = 1, sidecars: int = 0, inits: int = 0) -> Obj:
    return {
        "containers": [{"name": f"c{index}"} for index in range(containers)],
        "initContainers": [
            *({"name": f"s{index}", "restartPolicy": "Always"} for index in range(sidecars)),
            *({"name": f"i{index}"} for index in range(inits)),
        ],
    }


def running(name: str = "c0", **more: Any) -> Obj:
    return {"name": name, "ready": True, "started": True, "state": {"running": {}}, **more}


def ended(name: str = "c0", **more: Any) -> Obj:
    return {"name": name, "state": {"terminated": more}}


def waiting(name: str = "c0", reason: str = "") -> Obj:
    return {"name": name, "state": {"waiting": {"reason": reason}}}


REST = "<none> <none> <none> <none>"


@pytest.mark.parametrize(
    ("obj", "cells"),
    [
        ({}, f"0/0  0 {REST}"),
        ({"spec": spec(), "status": {"phase": "Pending"}}, f"0/1 Pending 0 {REST}"),
        ({"spec": spec(), "status": {"phase": "Failed", "reason": "Evicted"}}, f"0/1 Evicted 0 {REST}"),
        (
            {
                "spec": spec(),
                "status": {
                    "phase": "Pending",
                    "conditions": [{"type": "Ready"}, {"type": "PodScheduled", "reason": "SchedulingGated"}],
                },
            },
            f"0/1 SchedulingGated 0 {REST}",
        ),
        (
            {
                "spec": {
                    **spec(2),
                    "nodeName": "n",
                    "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}],
                },
                "status": {
                    "phase": "Running",
                    "podIP": "10.0.0.1",
                    "nominatedNodeName": "m",
                    "conditions": [{"type": "a", "status": "True"}, {"type": "b", "status": "False"}],
                    "containerStatuses": [running(), waiting("c1", "CrashLoopBackOff")],
                },
            },
            "1/2 CrashLoopBackOff 0 10.0.0.1 n m 1/2",
        ),
        (
            {"spec": spec(), "status": {"phase": "Running", "containerStatuses": [ended(signal=9)]}},
            f"0/1 Signal:9 0 {REST}",
        ),
        (
            {"spec": spec(), "status": {"phase": "Running", "containerStatuses": [ended(exitCode=3)]}},
            f"0/1 ExitCode:3 0 {REST}",
        ),
        (
            {
                "spec": spec(2),
                "status": {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [ended(reason="Completed"), running("c1")],
                },
            },
            f"1/2 Running 0 {REST}",
        ),
        (
            {
                "spec": spec(2),
                "status": {"phase": "Running", "containerStatuses": [ended(reason="Completed"), running("c1")]},
            },
            f"1/2 NotReady 0 {REST}",
        ),
        (
            {"spec": spec(), "status": {"phase": "Succeeded", "containerStatuses": [ended(reason="Completed")]}},
            f"0/1 Completed 0 {REST}",
        ),
        (
            {"spec": spec(), "status": {"phase": "Running", "containerStatuses": [{"name": "c0", "state": {}}]}},
            f"0/1 Running 0 {REST}",
        ),
    ],
    ids=[
        "a pod nobody knows anything about",
        "the phase",
        "a reason says more",
        "gates say more",
        "a container that waits, and where the pod is",
        "a container that was killed",
        "a container that failed",
        "one container is done, the other serves",
        "one container is done, the other does not serve",
        "all is done",
        "a container without a state",
    ],
)
def test_print_columns(obj: Obj, cells: str) -> None:
    assert printed(obj) == cells


@pytest.mark.parametrize(
    ("statuses", "cells"),
    [
        ([ended("i0", exitCode=0), waiting("i1", "PodInitializing")], "0/1 Init:1/2"),
        ([ended("i0", exitCode=0), running("i1")], "0/1 Init:1/2"),
        ([waiting("i0", "ErrImagePull")], "0/1 Init:ErrImagePull"),
        ([ended("i0", exitCode=2)], "0/1 Init:ExitCode:2"),
        ([ended("i0", exitCode=2, signal=9)], "0/1 Init:Signal:9"),
        ([ended("i0", exitCode=2, reason="Error")], "0/1 Init:Error"),
        ([ended("i0", exitCode=0), ended("i1", exitCode=0)], "0/1 Pending"),
    ],
    ids=["the second waits", "the second runs", "no image", "failed", "killed", "failed with a reason", "all done"],
)
def test_init_containers_come_first(statuses: list[Obj], cells: str) -> None:
    obj = {"spec": spec(inits=2), "status": {"phase": "Pending", "initContainerStatuses": statuses}}
    assert printed(obj) == f"{cells} 0 {REST}"


def test_sidecars_count_as_containers() -> None:
    status = {
        "phase": "Running",
        "initContainerStatuses": [running("s0", restartCount=2)],
        "containerStatuses": [running()],
    }
    assert printed({"spec": spec(sidecars=1), "status": status}) == f"2/2 Running 2 {REST}"
    status["initContainerStatuses"] = [{"name": "s0", "started": False, "state": {"running": {}}}]
    assert printed({"spec": spec(sidecars=1), "status": status}) == f"0/2 Init:0/1 0 {REST}"


def test_a_pod_once_initialized_shows_its_containers() -> None:
    status = {
        "phase": "Running",
        "conditions": [{"type": "Initialized", "status": "True"}],
        "initContainerStatuses": [waiting("i0", "PodInitializing") | {"restartCount": 7}],
        "containerStatuses": [running(restartCount=1), waiting("c1", "Oops")],
    }
    assert printed({"spec": spec(2, inits=1), "status": status}) == f"1/2 Oops 1 {REST}"


@pytest.mark.parametrize(
    ("last", "cell"),
    [
        ([("2026-01-02T03:55:00Z", 2)], "2 (5m ago)"),
        ([("2026-01-02T03:00:00Z", 2), ("2026-01-02T03:57:00Z", 1)], "3 (3m ago)"),
        ([(None, 4)], "4"),
        ([("2026-01-02T03:55:00Z", 0)], "0"),
    ],
    ids=["when it was", "the last of all", "unknown when", "no restart at all"],
)
def test_restarts_show_the_time_of_the_last_one(last: list[tuple[str | None, int]], cell: str) -> None:
    statuses = [
        running(restartCount=count, lastState={"terminated": {"finishedAt": at}} if at else {}) for at, count in last
    ]
    (column,) = [column for column in COLUMNS if column.name == "Restarts"]
    obj = {"metadata": {}, "spec": spec(len(last)), "status": {"containerStatuses": statuses}}
    assert column.cell(obj, LATER) == cell


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ({"phase": "Running"}, "Terminating"),
        ({"phase": "Failed"}, "Failed"),
        ({"phase": "Running", "reason": "NodeLost"}, "Unknown"),
    ],
    ids=["it is going", "it is over already", "nobody knows"],
)
def test_a_deleted_pod_is_terminating(status: Obj, word: str) -> None:
    metadata = {"name": "p", "deletionTimestamp": "2026-01-02T03:00:00Z"}
    assert printed({"metadata": metadata, "spec": spec(), "status": status}) == f"0/1 {word} 0 {REST}"
