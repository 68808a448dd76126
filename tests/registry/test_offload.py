"""Test computations about large objects: beside the event loop, fair among callers, bounded queues (docs/adr/0071)."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from mooring.errors import BadRequestError, TooManyRequestsError
from mooring.registry.offload import (
    LONG_BYTES,
    SWITCH_SECONDS,
    WAITING_BYTES_PER_CALLER,
    WAITING_PER_CALLER,
    Offload,
    caller_of,
)
from tests.support.manualclock import settle

LONG = LONG_BYTES + 1


def with_long_work(test: Callable[[Offload], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            long_work = Offload()
            try:
                await test(long_work)
            finally:
                long_work.stop()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@with_long_work
async def test_what_is_small_runs_at_once(long_work: Offload) -> None:
    assert await long_work.run(LONG_BYTES, "jane", threading.current_thread) is threading.current_thread()


@with_long_work
async def test_what_is_large_runs_in_another_thread(long_work: Offload) -> None:
    assert (await long_work.run(LONG, "jane", threading.current_thread)).name.startswith("long-work")


@with_long_work
async def test_errors_come_back(long_work: Offload) -> None:
    def fail() -> None:
        raise BadRequestError("no")

    with pytest.raises(BadRequestError, match="no"):
        await long_work.run(LONG, "jane", fail)
    assert await long_work.run(LONG, "jane", lambda: "next") == "next"


@with_long_work
async def test_the_loop_goes_on_meanwhile(long_work: Offload) -> None:
    turned = threading.Event()
    asyncio.get_running_loop().call_later(0, turned.set)
    assert await long_work.run(LONG, "jane", lambda: turned.wait(60))


class Costs:
    """A long-work thread whose computations take the CPU time that the test says, and the order in which they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.used: dict[str, float] = {}
        self._seconds = 0.0
        self.work = Offload(lambda: self._seconds)
        self._hold = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def hold(self, user: str = "first") -> None:
        """Occupy the thread, so that what follows waits."""
        self._tasks.append(asyncio.ensure_future(self.work.run(LONG, user, self._wait)))
        await settle()

    def _wait(self) -> None:
        self._hold.wait()

    async def add(self, user: str, seconds: float, *, then: Callable[[], object] = lambda: None) -> None:
        """Let a computation of `user` wait. `then` is called after it."""
        self.add_soon(user, seconds, then=then)
        await settle()

    def add_soon(self, user: str, seconds: float, *, then: Callable[[], object] = lambda: None) -> None:
        def compute() -> None:
            self._seconds += seconds
            self.ran.append(user)
            self.used[user] = self.used.get(user, 0.0) + seconds

        async def run() -> None:
            await self.work.run(LONG, user, compute)
            then()

        self._tasks.append(asyncio.ensure_future(run()))

    async def let_go(self) -> None:
        """Let the thread go until nothing waits for it."""
        self._hold.set()
        while self._tasks:
            await self._tasks.pop(0)
        self._hold.clear()

    async def finish(self) -> list[str]:
        """Let the thread go, and return the users whose computations ran, in order."""
        await self.let_go()
        self.work.stop()
        return self.ran


def with_costs(test: Callable[[Costs], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            await test(Costs())

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@with_costs
async def test_callers_with_equal_computations_take_turns(costs: Costs) -> None:
    await costs.hold()
    for user in ("storm", "storm", "storm", "jane", "max", "jane"):
        await costs.add(user, 1.0)
    assert await costs.finish() == ["storm", "jane", "max", "storm", "jane", "storm"]


@with_costs
async def test_a_caller_waits_for_no_backlog_of_another(costs: Costs) -> None:
    await costs.hold()
    for _ in range(3):
        await costs.add("storm", 8.0)
    for _ in range(5):
        await costs.add("jane", 0.1)
    assert await costs.finish() == ["storm", *["jane"] * 5, "storm", "storm"]


@with_costs
async def test_service_accounts_of_a_namespace_are_one_caller(costs: Costs) -> None:
    await costs.hold()
    for number in range(4):
        await costs.add(f"system:serviceaccount:team:{number}", 1.0)
    await costs.add("system:serviceaccount:team:0", 1.0)
    await costs.add("system:serviceaccount:other:0", 1.0)
    await costs.add("jane", 1.0)
    assert [user.rpartition(":")[2] for user in await costs.finish()] == ["0", "0", "jane", "1", "2", "3", "0"]
    assert caller_of("system:serviceaccount:team:0") == caller_of("system:serviceaccount:team:1")


@with_costs
async def test_rest_is_no_credit(costs: Costs) -> None:
    def jane_comes() -> None:
        for _ in range(5):
            costs.add_soon("jane", 5.0)

    await costs.hold()
    await costs.add("storm", 5.0)
    await costs.add("storm", 5.0)
    await costs.add("storm", 5.0, then=jane_comes)
    for _ in range(4):
        await costs.add("storm", 5.0)
    ran = await costs.finish()
    begin = ran.index("jane")
    assert begin in (3, 4), "jane waits for the running computation, if there is one"
    assert ran[begin : begin + 5] == ["jane", "storm", "jane", "storm", "jane"]


@with_costs
async def test_a_computation_is_not_put_off_by_ever_new_callers(costs: Costs) -> None:
    def one_more() -> None:
        if "jane" not in costs.ran:
            costs.add_soon(f"new {len(costs.ran)}", 0.01, then=one_more)

    await costs.hold()
    await costs.add("new", 0.01, then=one_more)
    await costs.add("jane", 1.5)
    assert (await costs.finish())[:2] == ["new", "jane"]


@pytest.mark.parametrize("seed", range(5))
def test_callers_that_always_wait_get_equal_time(seed: int) -> None:
    chance = random.Random(seed)
    longest = {"jane": 0.05, "max": 0.5, "node": 1.0, "storm": 9.0}
    spreads: list[float] = []

    @with_costs
    async def test(costs: Costs) -> None:
        def more(user: str) -> None:
            if len(costs.ran) < 400:
                costs.add_soon(user, chance.uniform(0.0, longest[user]), then=partial(more, user))
                used = [costs.used.get(caller, 0.0) for caller in longest]
                spreads.append(max(used) - min(used))

        await costs.hold()
        for user in (*longest, *longest):
            more(user)
        await costs.finish()

    test()
    assert len(spreads) >= 400
    assert max(spreads) <= 9.0 + 1.0  # the longest computations of two callers


@with_costs
async def test_an_idle_thread_forgets_what_callers_used(costs: Costs) -> None:
    await costs.hold()
    await costs.add("storm", 100.0)
    await costs.let_go()
    await costs.hold()
    await costs.add("storm", 1.0)
    await costs.add("jane", 1.0)
    assert await costs.finish() == ["storm", "storm", "jane"]


@with_long_work
async def test_what_a_caller_may_hold_is_bounded_in_bytes(long_work: Offload) -> None:
    hold = threading.Event()
    tasks = [asyncio.ensure_future(long_work.run(LONG, "storm", hold.wait))]
    await settle()
    half = WAITING_BYTES_PER_CALLER // 2
    tasks += [asyncio.ensure_future(long_work.run(half, "storm", hold.wait)) for _ in range(2)]
    await settle()
    with pytest.raises(TooManyRequestsError, match="send fewer at a time"):
        await long_work.run(LONG, "storm", hold.wait)
    tasks.append(asyncio.ensure_future(long_work.run(WAITING_BYTES_PER_CALLER + 1, "jane", hold.wait)))
    await settle()
    hold.set()
    assert all(await asyncio.gather(*tasks))


@with_long_work
async def test_few_of_one_caller_wait(long_work: Offload) -> None:
    hold = threading.Event()
    tasks = [asyncio.ensure_future(long_work.run(LONG, "storm", hold.wait)) for _ in range(1 + WAITING_PER_CALLER)]
    await settle()
    with pytest.raises(TooManyRequestsError, match="send fewer at a time"):
        await long_work.run(LONG, "storm", hold.wait)
    other = asyncio.ensure_future(long_work.run(LONG, "jane", hold.wait))
    await settle()
    assert not other.done()
    hold.set()
    assert all(await asyncio.gather(other, *tasks))


@with_long_work
async def test_the_record_of_an_answered_request_is_computed_always(long_work: Offload) -> None:
    waiting = [asyncio.ensure_future(long_work.run(LONG, "jane", bool)) for _ in range(WAITING_PER_CALLER + 1)]
    await settle(1)
    with pytest.raises(TooManyRequestsError):
        await long_work.run(LONG, "jane", bool)
    assert await long_work.run(LONG, "jane", lambda: "recorded", always=True) == "recorded"
    await asyncio.gather(*waiting)


@with_long_work
async def test_a_request_that_was_cancelled_is_dropped(long_work: Offload) -> None:
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
async def test_after_a_stop_nothing_waits_for_ever(long_work: Offload) -> None:
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
async def test_no_garbage_is_collected_while_a_computation_runs(long_work: Offload) -> None:
    assert gc.isenabled()
    assert not await long_work.run(LONG, "jane", gc.isenabled)
    assert gc.isenabled()


@with_long_work
async def test_threads_switch_quickly_only_while_a_computation_runs(long_work: Offload) -> None:
    usual = sys.getswitchinterval()
    assert await long_work.run(LONG, "jane", sys.getswitchinterval) == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == usual

    def fail() -> None:
        raise BadRequestError("wrong")

    with pytest.raises(BadRequestError):
        await long_work.run(LONG, "jane", fail)
    assert sys.getswitchinterval() == usual
