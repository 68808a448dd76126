"""The rules of mooring.reconcile.workqueue, with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from mooring.clock import JUMP_SECONDS
from mooring.controllers.actions import Key
from mooring.reconcile.workqueue import MAX_DELAY, SLACK, WorkQueue
from tests.support.manualclock import EPOCH, ManualClock, settle

A, B = ("ns", "a"), ("ns", "b")


def with_queue(body: Callable[[WorkQueue, ManualClock], Awaitable[None]]) -> None:
    """Run `body` with a queue whose schedule is running."""

    async def run() -> None:
        clock = ManualClock()
        queue = WorkQueue(clock)
        schedule = asyncio.ensure_future(queue.run_schedule())
        await settle()
        try:
            await body(queue, clock)
        finally:
            schedule.cancel()
            await asyncio.gather(schedule, return_exceptions=True)

    asyncio.run(run())


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def test_a_key_added_while_it_waits_is_planned_once() -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        for key in (A, B, A):
            queue.add(key)
        assert [await queue.take(), await queue.take()] == [A, B]
        assert len(queue) == 0

    with_queue(body)


def test_a_key_added_while_it_is_planned_is_planned_once_more_afterwards() -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        queue.add(A)
        await queue.take()
        queue.add(A)
        queue.add(A)
        assert len(queue) == 0, "a key is never planned twice at once"
        queue.done(A)
        assert len(queue) == 1
        await queue.take()
        queue.done(A)
        assert len(queue) == 0

    with_queue(body)


def test_a_waiting_worker_gets_the_next_key() -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        takers = [asyncio.ensure_future(queue.take()) for _ in range(2)]
        await settle()
        queue.add(A)
        await settle()
        assert sum(taker.done() for taker in takers) == 1
        queue.add(B)
        assert {await taker for taker in takers} == {A, B}

    with_queue(body)


@pytest.mark.parametrize(
    ("moments", "due"),
    [
        pytest.param([10.0], 10.0, id="one moment"),
        pytest.param([10.0, 5.0], 5.0, id="an earlier moment replaces a later one"),
        pytest.param([5.0, 10.0], 5.0, id="a later one is not needed: the plan asks again"),
        pytest.param([0.0], 0.0, id="now"),
        pytest.param([-5.0], 0.0, id="a moment that has passed"),
        pytest.param([3 * JUMP_SECONDS], 3 * JUMP_SECONDS, id="further than the longest sleep"),
    ],
)
def test_a_key_is_planned_at_its_moment(moments: list[float], due: float) -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        for moment in moments:
            queue.add_at(A, EPOCH + seconds(moment))
        if due:
            await clock.advance(due - 0.5)
            assert len(queue) == 0
            await clock.advance(0.5)
        await settle()
        assert len(queue) == 1
        await queue.take()
        queue.done(A)
        await clock.advance(100.0)
        assert len(queue) == 0, "a replaced moment queues nothing"

    with_queue(body)


@pytest.mark.parametrize(
    ("due", "jump"),
    [
        pytest.param(86400.0, 86401.0, id="a clock that is set past the moment"),
        pytest.param(86400.0, -3600.0, id="a clock that is set back: the plan decides again when it is due"),
        pytest.param(0.005, -365 * 86400.0, id="a back-off of a clock that ran a year ahead"),
    ],
)
def test_a_jump_of_the_wall_clock_is_noticed_within_a_minute(due: float, jump: float) -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        await settle()
        queue.add_at(A, EPOCH + seconds(due))
        clock.set(clock.now() + seconds(jump))
        await clock.advance(60.0)
        assert len(queue) == 1

    with_queue(body)


def test_each_failure_in_a_row_doubles_the_wait_up_to_a_limit() -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        assert [queue.retry(A) for _ in range(4)] == [0.005, 0.01, 0.02, 0.04]
        for _ in range(40):
            last = queue.retry(A)
        assert last == MAX_DELAY
        assert queue.retry(A, 0.5) == 0.5
        assert queue.retry(B) == 0.005, "each key has its own count"
        queue.forget(A)
        assert queue.retry(A) == 0.005

    with_queue(body)


def test_a_retry_comes_after_its_wait() -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        queue.retry(A)
        await clock.advance(0.004)
        assert len(queue) == 0
        await clock.advance(0.001)
        assert len(queue) == 1

    with_queue(body)


def test_stale_schedule_entries_do_not_accumulate() -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        for step in range(1000):
            queue.add_at(A, EPOCH + seconds(2000 - step))
            queue.add_at(B, EPOCH + seconds(3000 - step))
        assert len(queue._schedule) <= 2 * 2 + SLACK + 1
        await clock.advance(1001)
        assert [await queue.take()] == [A]
        queue.done(A)
        await clock.advance(1000)
        assert [await queue.take()] == [B]

    with_queue(body)


def test_all_keys_of_one_moment_are_queued() -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        wanted: list[Key] = [("ns", str(number)) for number in range(20)]
        for key in wanted:
            queue.add_at(key, EPOCH + seconds(1))
        await clock.advance(1)
        assert [await queue.take() for _ in wanted] == sorted(wanted)

    with_queue(body)


def test_added_keys_and_keys_that_fell_due_take_turns() -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        held = [("ns", f"held-{number}") for number in range(4)]
        for key in held:
            queue.add_at(key, EPOCH + seconds(30))
        await clock.advance(30)
        queue.add(A)
        queue.add(B)
        assert [await queue.take() for _ in range(6)] == [held[0], A, held[1], B, held[2], held[3]]

    with_queue(body)


def test_a_due_key_of_which_an_event_arrives_waits_for_no_backlog() -> None:
    async def body(queue: WorkQueue, clock: ManualClock) -> None:
        held = [("ns", f"held-{number}") for number in range(4)]
        for key in held:
            queue.add_at(key, EPOCH + seconds(30))
        await clock.advance(30)
        queue.add(held[3])
        queue.add(held[3])
        assert len(queue) == 4
        assert [await queue.take() for _ in range(4)] == [held[0], held[3], held[1], held[2]]
        assert len(queue) == 0
        queue.done(held[3])
        queue.add(held[3])
        assert await queue.take() == held[3]

    with_queue(body)
