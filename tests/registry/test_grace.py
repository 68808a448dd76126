"""Test deletion with a grace period: Pods that run on a node (Kubernetes documentation "Pod Lifecycle", termination)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import DeleteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.errors import NotFoundError
from mooring.registry.write.deletion import MAX_GRACE, mark_deleted
from tests.support.manualclock import EPOCH
from tests.support.registryroom import Room, in_room

POD = BY_PLURAL["pods"]
BOUND: Obj = {"nodeName": "n1"}


async def run(room: Room, metadata: Obj | None = None, **spec: Any) -> Obj:
    """Create a Pod `p` and its account."""
    await room.create("serviceaccounts", {"metadata": {"name": "default"}})
    containers = [{"name": "c", "image": "i"}]
    pod = {"metadata": {"name": "p", **(metadata or {})}, "spec": {"containers": containers, **spec}}
    return (await room.create("pods", pod)).obj


def asked(seconds: int | None) -> DeleteOptions:
    return DeleteOptions(grace_period_seconds=seconds)


@pytest.mark.parametrize(
    ("spec", "status", "seconds", "granted"),
    [
        pytest.param(BOUND, {}, None, 30, id="the Pod says how long it takes to stop"),
        pytest.param({**BOUND, "terminationGracePeriodSeconds": 0}, {}, None, 0, id="also when that is no time at all"),
        pytest.param({**BOUND, "terminationGracePeriodSeconds": -7}, {}, None, 1, id="a negative time is one second"),
        pytest.param(BOUND, {}, 5, 5, id="the caller decides otherwise"),
        pytest.param(BOUND, {}, 60, 60, id="even for longer"),
        pytest.param(BOUND, {}, 0, 0, id="or forces it"),
        pytest.param({}, {}, 60, 0, id="a Pod without a node has nobody to wait for"),
        pytest.param(BOUND, {"phase": "Succeeded"}, 60, 0, id="one that succeeded has stopped"),
        pytest.param(BOUND, {"phase": "Failed"}, None, 0, id="one that failed has stopped"),
        pytest.param(BOUND, {"phase": "Running"}, None, 30, id="one that runs has not"),
        pytest.param(BOUND, {}, 1 << 62, MAX_GRACE, id="nothing is granted beyond the calendar"),
    ],
)
def test_how_long_a_pod_gets(spec: Obj, status: Obj, seconds: int | None, granted: int) -> None:
    pod = {"metadata": {"name": "p", "generation": 1}, "spec": {"terminationGracePeriodSeconds": 30, **spec}}
    metadata = mark_deleted(POD, {**pod, "status": status}, "", EPOCH, seconds)["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == granted
    assert metadata["deletionTimestamp"] == rfc3339(EPOCH + timedelta(seconds=granted))
    assert metadata["generation"] == 2


@in_room
async def test_a_pod_on_a_node_stays_until_the_node_has_stopped_it(room: Room) -> None:
    pod = await run(room, **BOUND)
    await room.watch("pods", resourceVersion=pod["metadata"]["resourceVersion"])
    deleted = await room.delete("pods", "p")
    assert not deleted.gone
    metadata = deleted.stored.obj["metadata"]
    assert (metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"]) == ("2026-01-02T03:04:35Z", 30)
    await room.clock.advance(7)
    again = await room.delete("pods", "p")
    assert (again.stored, again.gone) == (deleted.stored, False)
    await room.patch("pods", "p", {"status": {"phase": "Succeeded"}}, subresource="status")
    last = await room.delete("pods", "p", options=asked(0))
    assert last.gone
    assert room.seen == ["MODIFIED p", "MODIFIED p", "DELETED p"]


@in_room
async def test_a_later_delete_shortens_the_time_and_never_prolongs_it(room: Room) -> None:
    await run(room, **BOUND)
    first = await room.delete("pods", "p")
    await room.clock.advance(7)
    longer = await room.delete("pods", "p", options=asked(3600))
    assert (longer.stored, longer.gone) == (first.stored, False)
    metadata = (await room.delete("pods", "p", options=asked(10))).stored.obj["metadata"]
    assert (metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"]) == ("2026-01-02T03:04:15Z", 10)
    assert metadata["generation"] == 2


@in_room
async def test_a_pod_that_no_node_runs_is_gone_at_once(room: Room) -> None:
    await run(room)
    assert (await room.delete("pods", "p")).gone


@in_room
async def test_finalizers_hold_a_pod_whose_time_is_over(room: Room) -> None:
    await run(room, {"finalizers": ["example.com/hold"]}, **BOUND)
    assert not (await room.delete("pods", "p")).gone
    assert not (await room.delete("pods", "p", options=asked(0))).gone
    await room.patch("pods", "p", {"metadata": {"finalizers": None}})
    with pytest.raises(NotFoundError):
        await room.get("pods", "p")


@in_room
async def test_the_last_finalizer_does_not_take_a_pod_away_that_still_has_time(room: Room) -> None:
    await run(room, {"finalizers": ["example.com/hold"]}, **BOUND)
    await room.delete("pods", "p")
    await room.patch("pods", "p", {"metadata": {"finalizers": None}})
    assert (await room.get("pods", "p")).obj["metadata"]["deletionGracePeriodSeconds"] == 30


@in_room
async def test_other_kinds_take_no_time_whatever_is_asked(room: Room) -> None:
    await room.create("secrets", {"metadata": {"name": "s"}})
    assert (await room.delete("secrets", "s", options=asked(60))).gone
