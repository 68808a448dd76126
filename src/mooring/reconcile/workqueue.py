"""Work queue of one controller, and threads for work that waits for a device."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TypeVar

from mooring.clock import JUMP_SECONDS, STEP, Clock
from mooring.controllers.actions import Key
from mooring.errors import MooringError

# Work queue of one controller: keys to plan, each queued at most once, with delays and back-off (client-go's workqueue).
#
# Rules kept here:
# 1. A key that is added while it is queued is planned once. One that is added while it is being planned is planned once more
#    afterwards.
# 2. `add_at` plans a key at a moment; an earlier moment for the same key replaces a later one.
# 3. `retry` waits 5 ms, doubled by each consecutive failure, at most 1 000 s; `forget` resets the count.
# 4. Keys that were added and keys that fell due take turns, so that an event waits for no backlog of scheduled keys, nor they for
#    a stream of events. A key that is added while it waits as due waits among those that were added.
# 5. Time comes from the `Clock`, so that tests control it.

FIRST_DELAY = 0.005
MAX_DELAY = 1000.0
"""client-go's default exponential item limiter."""
SLACK = 64
"""Stale entries that the schedule may hold before it is rebuilt."""


class WorkQueue:
    """Keys of one controller."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._added: deque[Key] = deque()
        self._due: deque[Key] = deque()
        self._waiting: dict[Key, bool] = {}
        """Keys to plan: True for those in `_added`. Other keys in `_added` and `_due` were planned meanwhile."""
        self._is_turn_of_due = False
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._schedule: list[tuple[datetime, Key]] = []
        self._moments: dict[Key, datetime] = {}
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()
        self._schedule_changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key) -> None:
        if key in self._active:
            self._again.add(key)
        elif not self._waiting.get(key):
            self._waiting[key] = True
            self._added.append(key)
            self._changed.set()

    def add_at(self, key: Key, moment: datetime) -> None:
        known = self._moments.get(key)
        if known is not None and known <= moment:
            return
        self._moments[key] = moment
        if len(self._schedule) > 2 * len(self._moments) + SLACK:  # stale entries must not accumulate
            self._schedule = [(moment, key) for key, moment in self._moments.items()]
            heapq.heapify(self._schedule)
        else:
            heapq.heappush(self._schedule, (moment, key))
        self._schedule_changed.set()

    def retry(self, key: Key, longest: float = MAX_DELAY) -> float:
        """Add the key after its back-off of at most `longest` seconds; return the seconds until then."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = min(longest, FIRST_DELAY * 2.0 ** min(failures, 32))
        self.add_at(key, self._clock.now() + timedelta(seconds=seconds))
        return seconds

    def forget(self, key: Key) -> None:
        self._failures.pop(key, None)

    async def take(self) -> Key:
        """Wait for the next key and return it; the caller must pass it to `done`."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        self._is_turn_of_due = not self._is_turn_of_due
        order = (self._due, self._added) if self._is_turn_of_due else (self._added, self._due)
        key = next(key for keys in order for key in self._left(keys))
        del self._waiting[key]
        self._active.add(key)
        return key

    def _left(self, keys: deque[Key]) -> Iterator[Key]:
        """Take keys off a queue, without those that were planned or added meanwhile."""
        while keys:
            key = keys.popleft()
            if self._waiting.get(key) is (keys is self._added):
                yield key

    def done(self, key: Key) -> None:
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def run_schedule(self) -> None:
        """Queue scheduled keys when they fall due; run until cancelled.

        When the wall clock was set back, every scheduled key is queued: moments were reckoned from a time that has not come yet, a
        back-off of milliseconds as well, and a plan that comes too early schedules itself again.
        """
        before = self._clock.now()
        while True:
            now = self._clock.now()
            if now < before - STEP:
                self._bring_forward(now)
            before = now
            while self._schedule and self._schedule[0][0] <= now:
                moment, key = heapq.heappop(self._schedule)
                if self._moments.get(key) == moment:
                    del self._moments[key]
                    self._fall_due(key)
            # A change of the schedule after this line interrupts the wait below, so that none is lost.
            self._schedule_changed.clear()
            wait = JUMP_SECONDS
            if self._schedule:
                wait = min(wait, max(0.0, (self._schedule[0][0] - now).total_seconds()))
            sleep = asyncio.ensure_future(self._clock.sleep(wait))
            changed = asyncio.ensure_future(self._schedule_changed.wait())
            try:
                await asyncio.wait((sleep, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleep.cancel()
                changed.cancel()

    def _fall_due(self, key: Key) -> None:
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = False
            self._due.append(key)
            self._changed.set()

    def _bring_forward(self, now: datetime) -> None:
        self._moments = dict.fromkeys(self._moments, now)
        self._schedule = [(now, key) for key in self._moments]


# Threads for work of plans that waits for a device, such as a signature of a hardware security module.
#
# Rules kept here:
# * The event loop, and the threads that it shares with other work, never wait for a device.
# * A device that does not answer delays its own keys only: after a deadline the key is planned again. Its thread stays occupied,
#   and at most `THREADS` are, because a module of a device may answer one call at a time and queue the others.

T = TypeVar("T")

THREADS = 4
"""Calls that wait at a time: enough to keep a device busy while one result is stored."""
DEADLINE = 30.0
"""Seconds. Network modules answer within one; their own time-outs are about ten."""


class DeviceThreads:
    """Runs work in daemon threads, a few at a time."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(THREADS)
        self._waiting = asyncio.Semaphore(THREADS)

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises. Raises MooringError after the deadline."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.done():
                # The call returned after the deadline: the key was planned again.
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]  # T is what `work` returned
            else:
                done.set_exception(error)

        def call() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except Exception as raised:
                error = raised
            finally:
                # Released by the thread and not by its caller: a call that hangs occupies it after the deadline, too.
                self._free.release()
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:
                # The loop is closed: the process exits.
                return

        async with self._waiting:
            if not self._free.acquire(blocking=False):
                raise MooringError("the device does not answer: all threads wait for it")
            # A daemon, so that a device that hangs does not keep the process from exiting.
            threading.Thread(target=call, name="device", daemon=True).start()
            try:
                async with asyncio.timeout(DEADLINE):
                    return await done
            except TimeoutError:
                raise MooringError(f"the device does not answer within {DEADLINE:g} s") from None
