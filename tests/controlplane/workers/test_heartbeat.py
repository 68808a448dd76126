"""Heartbeats of the workers (`mooring.controlplane.workers.pipe`): what counts as hanging, and what the parent reads."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from mooring.controlplane.lifecycle import WorkerSlots
from mooring.controlplane.workers.pipe import BEAT_SECONDS, HUNG_LOOKS, LOOK_SECONDS, Looks, beat
from mooring.server.sharedmemory import Counted

HOUR = 3600.0


@pytest.mark.parametrize(
    ("looks", "hung"),
    [
        pytest.param([(0, 1)] * 3, [], id="unchanged for two looks"),
        pytest.param([(0, 1)] * 4, [3], id="unchanged for three looks"),
        pytest.param([(0, 1)] * 7, [3, 6], id="killed and still there"),
        pytest.param([(0, 1), (0, 1), (0, 1), (0, 2), (0, 2), (0, 2)], [], id="late, again and again"),
        pytest.param([(0, 1), (0, 2), (HOUR, 2), (0, 3), (0, 3)], [], id="a suspended machine"),
        pytest.param([(0, 7), (HOUR, 7), (HOUR, 7), (0, 0)], [], id="a count that begins again"),
    ],
)
def test_a_worker_hangs_when_so_many_looks_find_its_count_unchanged(
    looks: list[tuple[float, int]], hung: list[int]
) -> None:
    watched, now, found = Looks(5.0, 3), 0.0, []
    for number, (pause, count) in enumerate(looks):
        now = max(now, watched.due) + pause
        if watched.hung({10: count, 11: number}, now):
            found.append(number)
        assert watched.due == now + 5.0
    assert found == hung


def test_the_successor_of_a_worker_begins_anew() -> None:
    looks = Looks(1.0, 2)
    assert [looks.hung({process: 1}, 0.0) for process in (10, 10, 11, 11, 11)] == [[], [], [], [], [11]]


def test_a_worker_hangs_after_a_minute_in_which_a_loop_that_runs_beats_many_times() -> None:
    assert Looks().span == LOOK_SECONDS * HUNG_LOOKS == 60.0
    assert BEAT_SECONDS < LOOK_SECONDS


def test_the_parent_reads_what_the_event_loop_of_a_worker_counts() -> None:
    slots = WorkerSlots(2, 2, ())
    loop = Mock(asyncio.AbstractEventLoop)
    beat(loop, slots.of(1).share.count(Counted.BEATS))
    read = [slots.beats(1)]
    for _ in range(2):
        seconds, call, *arguments = loop.call_later.call_args.args
        assert seconds == BEAT_SECONDS
        call(*arguments)
        read.append(slots.beats(1))
    assert read == [1, 2, 3]
    assert slots.beats(0) == 0
    slots.clear(1)
    assert slots.beats(1) == 0
