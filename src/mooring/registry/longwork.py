"""Run computations about large objects in a thread beside the event loop, users in turn (docs/adr/0026).

Rules kept here:
* A computation about few bytes runs at once, on the loop. All others run in one thread, one at a time. Python then switches between
  that thread and the loop, so that the loop continues within `SWITCH_SECONDS`.
* Users take turns: large objects of one user wait behind each other, and not behind all those of another user. A full queue is 429.
* A computation owns its arguments and reads no view, because the loop changes views meanwhile.
* While a computation runs, Python collects no cyclic garbage. Decoding 100 000 values would cause several collections of all
  containers of the process, 20 to 100 ms each with the interpreter locked, and decoded objects have no cycles.
* A computation whose request was cancelled before it began is dropped. A running one comes to its end: its work is bounded by
  `mooring.apimachinery.codec.limits`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from mooring.errors import TooManyRequestsError

LONG_BYTES = 16 << 10
"""Bytes of JSON or protobuf up to which a computation runs on the loop. The worst 16 KiB take some 30 ms through all stages of a
write, and nearly all objects are smaller."""
WAITING_PER_USER = 32
"""Computations of one user that may wait: with bodies of 3 MiB they hold 96 MiB. A controller writes a few at a time."""
SWITCH_SECONDS = 0.0005
"""`sys.setswitchinterval` while a computation runs: the time for which the thread keeps the interpreter while the loop waits.
With Python's 5 ms a request that waits for the interpreter several times takes tens of milliseconds; shorter intervals slow the
thread. At all other times it would only let the threads of the store and the audit log disturb the loop: 50 % more CPU time for a
create."""

T = TypeVar("T")
_Job = tuple["asyncio.Future[Any]", Callable[[], Any]]


class LongWork:
    """Thread of one registry for long computations."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "long-work")
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._is_busy = False

    async def run(self, size: int, user: str, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, which handles `size` bytes. Raises what it raises, and TooManyRequestsError."""
        if size <= LONG_BYTES:
            return compute()
        queue = self._waiting.setdefault(user, deque())
        if len(queue) >= WAITING_PER_USER:
            raise TooManyRequestsError("too many requests with large objects are waiting for you; send fewer at a time")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        queue.append((done, compute))
        if not self._is_busy:
            self._start_next()
        return await done

    def stop(self) -> None:
        """Start no more computations; requests that wait for one are cancelled."""
        for queue in self._waiting.values():
            for done, _ in queue:
                done.cancel()
        self._waiting.clear()
        self._thread.shutdown(wait=False)

    def _start_next(self) -> None:
        while self._waiting:
            user, queue = self._waiting.popitem(last=False)
            done, compute = queue.popleft()
            if queue:
                self._waiting[user] = queue  # at the end: users take turns
            if not done.done():
                beside = partial(_run_without_collection, compute)
                running = asyncio.get_running_loop().run_in_executor(self._thread, beside)
                self._is_busy = True
                running.add_done_callback(partial(self._finish, done))
                return

    def _finish(self, done: asyncio.Future[Any], running: asyncio.Future[Any]) -> None:
        self._is_busy = False
        if not done.done():  # the request may have been cancelled meanwhile
            if (error := running.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(running.result())
        self._start_next()


def _run_without_collection(compute: Callable[[], T]) -> T:
    """Run `compute` in the thread, without collection of garbage and with quick switches to the loop."""
    interval = sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return compute()
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
