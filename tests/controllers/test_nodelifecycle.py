"""node-lifecycle-controller: silent Nodes become Unknown, and taints follow conditions (Kubernetes documentation "Nodes")."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.api.view import FixedView, Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Requeue, Update
from mooring.controllers.node import (
    EVERY,
    GRACE_PERIOD,
    MAX_UPDATES,
    MONITOR_PERIOD,
    STARTUP_GRACE_PERIOD,
    NodeLifecycle,
)
from tests.support.plans import NOW, moment, plan, thing, views

SECOND = timedelta(seconds=1)


def condition(kind: str, status: str, **more: Any) -> Obj:
    return {"type": kind, "status": status, "lastHeartbeatTime": "h0", "lastTransitionTime": "t0", **more}


def node(*conditions: Obj, name: str = "n", uid: str = "", taints: tuple[str, ...] = (), **spec: Any) -> Obj:
    """Return a Node; `taints` are `key:effect`."""
    metadata = {"creationTimestamp": moment(timedelta(0))} | ({"uid": uid} if uid else {})
    listed = [dict(zip(("key", "effect"), taint.split(":"), strict=True)) for taint in taints]
    return thing(
        name,
        metadata=metadata,
        spec=spec | ({"taints": listed} if taints else {}),
        status={"conditions": list(conditions), "nodeInfo": {}} if conditions else {},
    )


def lease(renewed: str, name: str = "n") -> Obj:
    return thing(name, "kube-node-lease", spec={"renewTime": renewed})


def seen(*nodes: Obj, leases: tuple[Obj, ...] = ()) -> Views:
    return views(nodes=nodes, leases=leases)


READY = node(condition("Ready", "True", message="kubelet is ready"))
OVER = GRACE_PERIOD + MONITOR_PERIOD


class Watched:
    """A controller that judges every `MONITOR_PERIOD`, as the loop lets it."""

    def __init__(self, grace_period: timedelta = GRACE_PERIOD) -> None:
        self.controller = NodeLifecycle(grace_period)
        self.now = NOW

    def judge(self, found: Views, after: timedelta = timedelta(0)) -> list[Action]:
        """Return the actions for Nodes that stay as they are for `after`, without the repetition of the plan."""
        ends = self.now + after
        while True:
            actions = plan(self.controller, EVERY, found, self.now)
            if self.now >= ends or len(actions) > 1:
                return [action for action in actions if not isinstance(action, Requeue)]
            self.now = min(ends, self.now + MONITOR_PERIOD)


def test_a_node_without_a_heartbeat_becomes_unknown_after_the_grace_period() -> None:
    watched = Watched()
    found = seen(READY, leases=(lease("r0"),))
    assert watched.judge(found, GRACE_PERIOD) == []
    (update,) = watched.judge(found, MONITOR_PERIOD)
    assert isinstance(update, Update)
    assert (update.plural, update.subresource) == ("nodes", "status")
    assert update.obj["status"]["nodeInfo"] == {}
    assert update.obj["status"]["conditions"] == [
        {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "kubelet is ready; no heartbeat for 50 s",
            "lastHeartbeatTime": "h0",
            "lastTransitionTime": moment(OVER),
        }
    ]


def test_pressures_become_unknown_as_well_and_conditions_of_others_stay() -> None:
    network = condition("NetworkUnavailable", "False")
    found = node(condition("Ready", "False"), condition("DiskPressure", "False"), network)
    (update,) = Watched().judge(seen(found), OVER)
    assert isinstance(update, Update)
    ready, disk, other = update.obj["status"]["conditions"]
    assert [(one["type"], one["status"], one["message"]) for one in (ready, disk)] == [
        ("Ready", "Unknown", "no heartbeat for 50 s"),
        ("DiskPressure", "Unknown", "no heartbeat for 50 s"),
    ]
    assert other == network


def test_a_condition_that_is_unknown_keeps_its_transition() -> None:
    pid = condition("PIDPressure", "Unknown")
    (update,) = Watched().judge(seen(node(condition("Ready", "True"), pid)), OVER)
    assert isinstance(update, Update)
    assert update.obj["status"]["conditions"][1] == pid


@pytest.mark.parametrize(
    "heartbeat",
    [
        pytest.param(seen(READY, leases=(lease("r1"),)), id="a renewed Lease"),
        pytest.param(seen(READY, leases=(lease("an earlier time"),)), id="a Lease whose clock went back"),
        pytest.param(seen(node(condition("Ready", "True", lastHeartbeatTime="h1"))), id="a new status"),
        pytest.param(seen(node(condition("Ready", "True"), uid="of another Node"), leases=(lease("r0"),)), id="a new Node"),
    ],
)  # fmt: skip
def test_the_grace_period_counts_from_the_observation_of_a_heartbeat(heartbeat: Views) -> None:
    watched = Watched()
    watched.judge(seen(READY, leases=(lease("r0"),)), GRACE_PERIOD)
    assert watched.judge(heartbeat, MONITOR_PERIOD + GRACE_PERIOD) == [], "it is observed at the next judgement"
    assert len(watched.judge(heartbeat, MONITOR_PERIOD)) == 1


def test_the_clock_of_the_node_does_not_count() -> None:
    found = seen(READY, leases=(lease(moment(-timedelta(days=365))),))
    assert Watched().judge(found, GRACE_PERIOD) == []


def test_a_node_that_never_had_a_status_has_the_startup_period_from_its_creation() -> None:
    watched = Watched()
    assert watched.judge(seen(node()), STARTUP_GRACE_PERIOD) == []
    (update,) = watched.judge(seen(node()), MONITOR_PERIOD)
    assert isinstance(update, Update)
    conditions = update.obj["status"]["conditions"]
    assert [one["type"] for one in conditions] == ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"]
    assert {(one["status"], one["reason"], one["lastHeartbeatTime"]) for one in conditions} == {
        ("Unknown", "NodeStatusNeverUpdated", moment(timedelta(0)))
    }
    later = Watched()
    later.now += STARTUP_GRACE_PERIOD + SECOND
    assert len(later.judge(seen(node()))) == 1, "a new leader counts from the creation as well"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(seen(thing("n", status={}), leases=()), id="a Node without a creation time"),
        pytest.param(seen(node(), leases=(lease("r0"),)), id="a Node that renewed its Lease and has no status"),
    ],
)
def test_other_nodes_without_a_status_have_the_period_from_their_observation(found: Views) -> None:
    watched = Watched()
    watched.now += timedelta(hours=1)
    assert watched.judge(found, STARTUP_GRACE_PERIOD) == []
    assert len(watched.judge(found, MONITOR_PERIOD)) == 1


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(node(condition("Ready", "Unknown")), id="an unknown Node is not written again"),
        pytest.param(thing("n", metadata={"deletionTimestamp": "d"}), id="a deleted Node is left alone"),
    ],
)
def test_some_nodes_are_not_written(found: Obj) -> None:
    assert Watched().judge(seen(found), timedelta(minutes=5)) == []


@pytest.mark.parametrize(
    "jump",
    [
        pytest.param(timedelta(hours=1), id="the process was stopped, or the clock was set forward"),
        pytest.param(-timedelta(hours=1), id="the clock was set back"),
    ],
)
def test_all_nodes_have_a_new_grace_period_after_a_time_without_judgements(jump: timedelta) -> None:
    watched = Watched()
    watched.judge(seen(READY), GRACE_PERIOD)
    watched.now += jump
    assert watched.judge(seen(READY), GRACE_PERIOD) == []
    assert len(watched.judge(seen(READY), MONITOR_PERIOD)) == 1


def test_the_grace_period_can_be_set() -> None:
    (update,) = Watched(timedelta(seconds=10)).judge(seen(READY), timedelta(seconds=15))
    assert isinstance(update, Update)
    assert update.obj["status"]["conditions"][0]["message"].endswith("no heartbeat for 10 s")


def test_nodes_are_judged_every_five_seconds_while_there_are_any() -> None:
    controller = NodeLifecycle()
    assert plan(controller, EVERY, seen()) == []
    controller = NodeLifecycle()
    assert plan(controller, EVERY, seen(READY)) == [Requeue(NOW + MONITOR_PERIOD)]
    early = NOW + SECOND
    assert plan(controller, EVERY, seen(READY), early) == [Requeue(NOW + MONITOR_PERIOD)], "an event judges nobody"
    assert plan(controller, EVERY, seen(), NOW + MONITOR_PERIOD) == [], "without Nodes nothing is repeated"


def test_many_silent_nodes_are_written_in_portions() -> None:
    watched = Watched()
    found = [node(condition("Ready", "True"), name=f"n{number}") for number in range(MAX_UPDATES + 1)]
    assert len(watched.judge(seen(*found), OVER)) == MAX_UPDATES
    assert plan(watched.controller, EVERY, seen(*found), watched.now)[-1] == Requeue(watched.now)
    assert len(watched.judge(seen(found[-1]))) == 1


READY_TAINTS = ("node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute")
UNREACHABLE_TAINTS = ("node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(node(condition("Ready", "False")), READY_TAINTS, id="not ready"),
        pytest.param(node(condition("Ready", "Unknown")), UNREACHABLE_TAINTS, id="unreachable"),
        pytest.param(
            node(condition("Ready", "Unknown"), taints=READY_TAINTS), UNREACHABLE_TAINTS, id="no longer only not ready"
        ),
        pytest.param(node(condition("Ready", "True"), taints=UNREACHABLE_TAINTS), (), id="ready again"),
        pytest.param(
            node(condition("Ready", "True"), taints=("dedicated:NoSchedule", *READY_TAINTS)),
            ("dedicated:NoSchedule",),
            id="taints of others stay",
        ),
        pytest.param(
            node(condition("Ready", "False"), taints=READY_TAINTS[:1]), READY_TAINTS, id="a taint that is there stays"
        ),
        pytest.param(
            node(condition("MemoryPressure", "True"), condition("DiskPressure", "True"), condition("PIDPressure", "True")),
            tuple(f"node.kubernetes.io/{kind}-pressure:NoSchedule" for kind in ("memory", "disk", "pid")),
            id="pressures",
        ),
        pytest.param(
            node(condition("NetworkUnavailable", "True")),
            ("node.kubernetes.io/network-unavailable:NoSchedule",),
            id="no network",
        ),
        pytest.param(
            node(condition("Ready", "True"), unschedulable=True),
            ("node.kubernetes.io/unschedulable:NoSchedule",),
            id="cordoned",
        ),
        pytest.param(
            node(condition("Ready", "True"), taints=("node.kubernetes.io/unschedulable:NoSchedule",)),
            (),
            id="no longer cordoned",
        ),
        pytest.param(
            node(unschedulable=True, taints=(*READY_TAINTS, UNREACHABLE_TAINTS[1])),
            (READY_TAINTS[1], UNREACHABLE_TAINTS[1], "node.kubernetes.io/unschedulable:NoSchedule"),
            id="a Node without a status keeps its NoExecute taints",
        ),
    ],
)  # fmt: skip
def test_taints_follow_the_conditions(found: Obj, expected: tuple[str, ...]) -> None:
    (update,) = plan(NodeLifecycle(), ("", "n"), seen(found))
    assert isinstance(update, Update)
    assert (update.plural, update.subresource) == ("nodes", "")
    taints = update.obj["spec"].get("taints", [])
    assert tuple(f"{taint['key']}:{taint['effect']}" for taint in taints) == expected
    new = [taint for taint in taints if "timeAdded" in taint]
    assert {taint["timeAdded"] for taint in new} <= {moment(timedelta(0))}
    settled = {**found, "spec": update.obj["spec"]}
    assert plan(NodeLifecycle(), ("", "n"), seen(settled)) == [], "then nothing is left to do"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(seen(), id="a missing Node"),
        pytest.param(seen(READY), id="a Node whose taints are right"),
        pytest.param(
            seen(thing("n", metadata={"deletionTimestamp": "d"}, spec={"unschedulable": True})), id="a deleted Node"
        ),
    ],
)
def test_nothing_is_done_about_the_taints_of(found: Views) -> None:
    assert plan(NodeLifecycle(), ("", "n"), found) == []


def test_events_of_nodes_plan_and_renewals_do_not() -> None:
    controller, found = NodeLifecycle(), seen()
    assert list(controller.keys("nodes", READY, False, found)) == [("", "n"), EVERY]
    assert list(controller.keys("nodes", READY, True, found)) == []
    assert list(controller.keys("leases", lease("r0"), False, found)) == []


def test_a_deleted_node_is_forgotten() -> None:
    controller = NodeLifecycle()
    plan(controller, EVERY, {"nodes": FixedView([READY]), "leases": FixedView(())})
    plan(controller, EVERY, seen(), NOW + MONITOR_PERIOD)
    assert controller._heartbeats == {}
