"""Run computations about large objects in a thread beside the event loop, shared fairly among callers (docs/adr/0026, 0071).

Rules kept here:
* A computation about few bytes runs at once, on the loop. All others run in one thread, one at a time. Python then switches between
  that thread and the loop, so that the loop continues within `SWITCH_SECONDS`.
* A caller is a user, and all service accounts of a namespace are one caller, because a user who may create one can
  create thousands. Users of one caller take turns.
* Callers share the CPU time of the thread and not its turns, by start-time fair queueing: the caller that used least of it is next.
  A caller who comes begins with what that one has used, so that rest is no credit. It waits for the running computation and for no
  backlog of another caller.
* What a caller may have waiting is bounded in number and in bytes. Beyond it the answer is 429. The audit records of requests that
  were answered are computed always: their number is that of the requests under way.
* A computation owns its arguments and reads no view, because the loop changes views meanwhile.
* While a computation runs, Python collects no cyclic garbage. Decoding 100 000 values would cause several collections of all
  containers of the process, 20 to 100 ms each with the interpreter locked, and decoded objects have no cycles.
* A computation whose request was cancelled is dropped before it begins. A running one comes to its end: its work is bounded by
  `mooring.apimachinery.codec.json`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from mooring.errors import TooManyRequestsError
from mooring.identity import SERVICE_ACCOUNT_PREFIX

LONG_BYTES = 16 << 10
"""Bytes of JSON or protobuf up to which a computation runs on the loop. The worst 16 KiB take some 30 ms through all stages of a
write, and nearly all objects are smaller."""
WAITING_PER_CALLER = 32
"""Computations of one caller that may wait. A controller writes a few at a time."""
WAITING_BYTES_PER_CALLER = 32 << 20
"""Bytes about which the waiting computations of one caller may be: ten of the largest bodies. One computation may always wait."""
SWITCH_SECONDS = 0.0005
"""`sys.setswitchinterval` while a computation runs: the time for which the thread keeps the interpreter while the loop waits.
With Python's 5 ms a request that waits for the interpreter several times takes tens of milliseconds; shorter intervals slow the
thread. At all other times it would only let the threads of the store and the audit log disturb the loop: 50 % more CPU time for a
create."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    done: asyncio.Future[Any]
    compute: Callable[[], Any]
    size: int


@dataclass(slots=True, eq=False)
class _Caller:
    """Waiting computations of one caller, by user. The first user is next. `since`: virtual time from which it waits."""

    since: float
    users: OrderedDict[str, deque[_Job]] = field(default_factory=OrderedDict)
    jobs: int = 0
    size: int = 0

    def add(self, user: str, job: _Job) -> None:
        self.users.setdefault(user, deque()).append(job)
        self.jobs += 1
        self.size += job.size

    def drop_cancelled(self) -> None:
        """Drop computations whose request was cancelled, before the next one that was not."""
        while self.users and self.next.done.done():
            self.take()

    @property
    def next(self) -> _Job:
        return next(iter(self.users.values()))[0]

    def take(self) -> _Job:
        """Remove and return the next computation. Its user is the last from now on."""
        user, queue = self.users.popitem(last=False)
        job = queue.popleft()
        if queue:
            self.users[user] = queue
        self.jobs -= 1
        self.size -= job.size
        return job


class Offload:
    """Thread of one registry for long computations. `cpu_seconds` returns the CPU time of the thread that calls it."""

    def __init__(self, cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        self._cpu_seconds = cpu_seconds
        self._thread = ThreadPoolExecutor(1, "long-work")
        self._waiting: dict[str, _Caller] = {}
        self._used: dict[str, float] = {}
        """Seconds up to which each caller was served since the thread was last idle."""
        self._now = 0.0
        """Virtual time: what the caller whose computation began last had used before."""
        self._is_busy = False

    async def run(self, size: int, user: str, compute: Callable[[], T], *, always: bool = False) -> T:
        """Return the result of `compute`, which handles `size` bytes. Raises what it raises, and TooManyRequestsError.

        `always`: also beyond what a caller may have waiting.
        """
        if size <= LONG_BYTES:
            return compute()
        name = caller_of(user)
        caller = self._waiting.setdefault(name, _Caller(self._now))
        # Bounded for each caller, so that the backlog of one caller cannot fill the memory.
        if not always and not _has_room(caller, size):
            raise TooManyRequestsError("too many requests with large objects are waiting for you; send fewer at a time")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        caller.add(user, _Job(done, compute, size))
        if not self._is_busy:
            self._start_next()
        return await done

    def stop(self) -> None:
        """Start no more computations; requests that wait for one are cancelled."""
        for caller in self._waiting.values():
            while caller.users:
                caller.take().done.cancel()
        self._waiting.clear()
        self._thread.shutdown(wait=False)

    def _start_next(self) -> None:
        for name, caller in tuple(self._waiting.items()):
            caller.drop_cancelled()
            if not caller.users:
                del self._waiting[name]
        # Idle: all callers are equal again.
        if not self._waiting:
            self._used.clear()
            self._now = 0.0
            return
        name = min(self._waiting, key=self._begin)
        begin = self._now = self._begin(name)
        caller = self._waiting.pop(name)
        job = caller.take()
        if caller.users:
            self._waiting[name] = caller  # at the end: of equal callers, another one is next
        # a caller that comes again begins at the present time anyway
        self._used = {one: used for one, used in self._used.items() if used > begin or one in self._waiting}
        running = asyncio.get_running_loop().run_in_executor(
            self._thread, partial(_run_without_collection, job.compute, self._cpu_seconds)
        )
        self._is_busy = True
        running.add_done_callback(partial(self._finish, name, begin, job.done))

    def _begin(self, name: str) -> float:
        return max(self._waiting[name].since, self._used.get(name, 0.0))

    def _finish(
        self,
        name: str,
        begin: float,
        done: asyncio.Future[Any],
        running: asyncio.Future[tuple[Any, Exception | None, float]],
    ) -> None:
        self._is_busy = False
        result, error, seconds = running.result()
        self._used[name] = begin + seconds
        if not done.done():  # the request may have been cancelled meanwhile
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)
        self._start_next()


def caller_of(user: str) -> str:
    """Return the caller to whom a user's computations count: the namespace of a service account, or else the user."""
    return user.rpartition(":")[0] if user.startswith(SERVICE_ACCOUNT_PREFIX) else user


def _has_room(caller: _Caller, size: int) -> bool:
    return caller.jobs < WAITING_PER_CALLER and (not caller.jobs or caller.size + size <= WAITING_BYTES_PER_CALLER)


def _run_without_collection(
    compute: Callable[[], Any], cpu_seconds: Callable[[], float]
) -> tuple[Any, Exception | None, float]:
    """Run `compute` in the thread, without collection of garbage and with quick switches to the loop.

    Return its result, the exception that it raised, and its CPU time.
    """
    interval = sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(SWITCH_SECONDS)
    begin = cpu_seconds()
    try:
        return compute(), None, cpu_seconds() - begin
    except Exception as error:
        return None, error, cpu_seconds() - begin
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
