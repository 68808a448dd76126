"""A clock that only the test advances.

Rules kept here: `sleep` returns only after `advance` passed its moment, in the order of the moments; nothing waits in
real time. `advance` lets woken coroutines run before and after, so that a test can assert their effects.
"""

from __future__ import annotations

import asyncio
import heapq
from datetime import UTC, datetime, timedelta

from mooring.clock import SystemClock

EPOCH = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LONGEST_PAUSE = 5.0
"""Seconds: the longest pause between two tries of one request."""


class ManualClock:
    """Satisfies `mooring.clock.Clock`."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._elapsed + seconds, self._count, future))
        await future

    @property
    def sleepers(self) -> int:
        """Number of coroutines that wait for this clock."""
        return sum(not future.done() for _, _, future in self._sleepers)

    def spend(self, seconds: float) -> None:
        """Let time pass in a computation, which wakes no sleeper."""
        self._elapsed += seconds

    def set(self, moment: datetime) -> None:
        """Set the wall clock, as a person, a resumed laptop or a restored virtual machine does; no timer moves."""
        self._start = moment - timedelta(seconds=self._elapsed)

    async def advance(self, seconds: float) -> None:
        """Advance the clock; each sleeper wakes at its own moment, in order."""
        await settle()
        target = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            moment, _, future = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, moment)
            if not future.done():
                future.set_result(None)
                await settle()
        self._elapsed = target
        await settle()


class HurriedClock(SystemClock):
    """Clock of a client: pauses between tries (up to `LONGEST_PAUSE` seconds) are skipped and counted, longer waits are real."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    async def sleep(self, seconds: float) -> None:
        if seconds > LONGEST_PAUSE:
            await super().sleep(seconds)
            return
        self._skipped += seconds
        await asyncio.sleep(0)


async def settle(turns: int = 20) -> None:
    """Run every coroutine that can run without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)
