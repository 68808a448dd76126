"""Keys to plan: each at most once in the queue and in one pair of hands, some later, failing ones ever later.

Rules kept here (the semantics of client-go's workqueue, which controllers' authors expect):
1. A key added while it waits is planned once; added while it is being planned, it is planned once more afterwards.
2. `add_at` plans a key at a moment; an earlier moment for the same key replaces a later one.
3. `retry` waits 5 ms, doubled by each failure in a row, at most 1 000 s; `forget` starts the count anew.
4. Time comes from the `Clock`, so that a test turns it by hand.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from datetime import datetime, timedelta

from mooring.clock import Clock
from mooring.controllers.actions import Key

FIRST_DELAY = 0.005
MAX_DELAY = 1000.0
"""client-go's default exponential item limiter."""
LONGEST_SLEEP = 3600.0
"""A wall clock may be set: look at it again at least this often."""
SLACK = 64
"""Replaced moments that may lie in the schedule before it is tidied."""


class WorkQueue:
    """One controller's keys."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[Key] = deque()
        self._waiting: set[Key] = set()
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._later: list[tuple[datetime, Key]] = []
        self._moments: dict[Key, datetime] = {}
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()
        self._schedule_changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: Key) -> None:
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._changed.set()

    def add_at(self, key: Key, moment: datetime) -> None:
        known = self._moments.get(key)
        if known is not None and known <= moment:
            return
        self._moments[key] = moment
        if len(self._later) > 2 * len(self._moments) + SLACK:  # moments that were replaced must not pile up
            self._later = [(moment, key) for key, moment in self._moments.items()]
            heapq.heapify(self._later)
        else:
            heapq.heappush(self._later, (moment, key))
        self._schedule_changed.set()

    def retry(self, key: Key) -> float:
        """Add the key after its back-off; the seconds until then."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(failures, 32))
        self.add_at(key, self._clock.now() + timedelta(seconds=seconds))
        return seconds

    def forget(self, key: Key) -> None:
        self._failures.pop(key, None)

    async def take(self) -> Key:
        """The next key; call `done` with it."""
        while not self._ready:
            self._changed.clear()
            await self._changed.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._active.add(key)
        return key

    def done(self, key: Key) -> None:
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def run_schedule(self) -> None:
        """Move keys whose moment has come; runs until cancelled."""
        while True:
            now = self._clock.now()
            while self._later and self._later[0][0] <= now:
                moment, key = heapq.heappop(self._later)
                if self._moments.get(key) == moment:
                    del self._moments[key]
                    self.add(key)
            self._schedule_changed.clear()
            wait = LONGEST_SLEEP
            if self._later:
                wait = min(wait, max(0.0, (self._later[0][0] - now).total_seconds()))
            sleep = asyncio.ensure_future(self._clock.sleep(wait))
            changed = asyncio.ensure_future(self._schedule_changed.wait())
            try:
                await asyncio.wait((sleep, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleep.cancel()
                changed.cancel()
