"""Test computations about large objects: beside the event loop, users in turn, bounded queues."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from mooring.errors import BadRequestError, TooManyRequestsError
from mooring.registry.longwork import LONG_BYTES, SWITCH_SECONDS, WAITING_PER_USER, LongWork
from tests.support.manualclock import settle

LONG = LONG_BYTES + 1


def with_long_work(test: Callable[[LongWork], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            long_work = LongWork()
            try:
                await test(long_work)
            finally:
                long_work.stop()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@with_long_work
async def test_what_is_small_runs_at_once(long_work: LongWork) -> None:
    assert await long_work.run(LONG_BYTES, "jane", threading.current_thread) is threading.current_thread()


@with_long_work
async def test_what_is_large_runs_in_another_thread(long_work: LongWork) -> None:
    assert (await long_work.run(LONG, "jane", threading.current_thread)).name.startswith("long-work")


@with_long_work
async def test_errors_come_back(long_work: LongWork) -> None:
    def fail() -> None:
        raise BadRequestError("no")

    with pytest.raises(BadRequestError, match="no"):
        await long_work.run(LONG, "jane", fail)
    assert await long_work.run(LONG, "jane", lambda: "next") == "next"


@with_long_work
async def test_the_loop_goes_on_meanwhile(long_work: LongWork) -> None:
    turned = threading.Event()
    asyncio.get_running_loop().call_later(0, turned.set)
    assert await long_work.run(LONG, "jane", lambda: turned.wait(60))


@with_long_work
async def test_users_take_turns(long_work: LongWork) -> None:
    hold, ran = threading.Event(), list[str]()
    first = asyncio.ensure_future(long_work.run(LONG, "storm", hold.wait))
    await settle()
    tasks = [
        asyncio.ensure_future(long_work.run(LONG, name.partition(" ")[0], partial(ran.append, name)))
        for name in ("storm 1", "storm 2", "storm 3", "jane 1", "max 1")
    ]
    await settle()
    hold.set()
    await asyncio.gather(first, *tasks)
    assert ran == ["storm 1", "jane 1", "max 1", "storm 2", "storm 3"]


@with_long_work
async def test_few_of_one_user_wait(long_work: LongWork) -> None:
    hold = threading.Event()
    tasks = [asyncio.ensure_future(long_work.run(LONG, "storm", hold.wait)) for _ in range(1 + WAITING_PER_USER)]
    await settle()
    with pytest.raises(TooManyRequestsError, match="send fewer at a time"):
        await long_work.run(LONG, "storm", hold.wait)
    other = asyncio.ensure_future(long_work.run(LONG, "jane", hold.wait))
    await settle()
    assert not other.done()
    hold.set()
    assert all(await asyncio.gather(other, *tasks))


@with_long_work
async def test_a_request_that_was_cancelled_is_dropped(long_work: LongWork) -> None:
    hold, ran = threading.Event(), list[str]()
    running = asyncio.ensure_future(long_work.run(LONG, "jane", hold.wait))
    await settle()
    waiting = asyncio.ensure_future(long_work.run(LONG, "jane", lambda: ran.append("waiting")))
    await settle()
    running.cancel()
    waiting.cancel()
    await settle()
    hold.set()
    await long_work.run(LONG, "jane", lambda: ran.append("next"))
    assert ran == ["next"]


@with_long_work
async def test_after_a_stop_nothing_waits_for_ever(long_work: LongWork) -> None:
    hold = threading.Event()
    running = asyncio.ensure_future(long_work.run(LONG, "jane", hold.wait))
    waiting = asyncio.ensure_future(long_work.run(LONG, "jane", hold.wait))
    await settle()
    long_work.stop()
    hold.set()
    assert await running
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(RuntimeError):
        await long_work.run(LONG, "jane", hold.wait)


@with_long_work
async def test_no_garbage_is_collected_while_a_computation_runs(long_work: LongWork) -> None:
    assert gc.isenabled()
    assert not await long_work.run(LONG, "jane", gc.isenabled)
    assert gc.isenabled()


@with_long_work
async def test_threads_switch_quickly_only_while_a_computation_runs(long_work: LongWork) -> None:
    usual = sys.getswitchinterval()
    assert await long_work.run(LONG, "jane", sys.getswitchinterval) == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == usual

    def fail() -> None:
        raise BadRequestError("wrong")

    with pytest.raises(BadRequestError):
        await long_work.run(LONG, "jane", fail)
    assert sys.getswitchinterval() == usual
