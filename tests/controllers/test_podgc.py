"""pod-garbage-collector-controller: terminating Pods of missing nodes (Kubernetes documentation "Pod Lifecycle")."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Requeue
from mooring.controllers.cleanup import PodGarbageCollector
from tests.support.plans import HOUR, NOW, enqueued, moment, plan, thing, views

KEY = ("x", "p")
NODE = thing("n1")
CLEANER = PodGarbageCollector()


def pod(over: timedelta | None = None, seconds: int = 30, node: str = "n1", name: str = "p") -> Obj:
    """Return a Pod; when deleted, its grace period ends `over` from now."""
    deleted = {"deletionTimestamp": moment(over), "deletionGracePeriodSeconds": seconds} if over is not None else {}
    return thing(name, "x", metadata=deleted, spec={"nodeName": node} if node else {})


@pytest.mark.parametrize(
    ("found", "nodes", "actions"),
    [
        pytest.param(
            pod(-HOUR), [], [Delete("pods", *KEY, "uid-of-p", "7", grace_seconds=0)], id="its time is over: it goes"
        ),
        pytest.param(pod(HOUR), [], [Requeue(NOW + HOUR)], id="it has time left: later"),
        pytest.param(pod(-HOUR), [NODE], [], id="its node is there: that is waited for"),
        pytest.param(pod(-HOUR, seconds=0), [], [], id="something else holds it"),
        pytest.param(pod(), [], [], id="nobody deleted it"),
        pytest.param(pod(-HOUR, name="other"), [], [], id="it is gone"),
    ],
)
def test_when_a_pod_is_deleted(found: Obj, nodes: list[Obj], actions: list[Action]) -> None:
    assert plan(CLEANER, KEY, views(pods=[found], nodes=nodes)) == actions


def test_keys_of_an_event() -> None:
    waiting, other, running = pod(HOUR), pod(HOUR, node="n2", name="q"), pod(name="r")
    seen = views(pods=[waiting, other, running], nodes=[NODE])
    assert enqueued(CLEANER, seen) == [KEY, ("x", "q")]
    assert CLEANER.keys("pods", waiting, True, seen) == ()
    assert CLEANER.keys("nodes", NODE, False, seen) == ()
    assert CLEANER.keys("nodes", NODE, True, seen) == [KEY]
