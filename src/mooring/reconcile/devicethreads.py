"""Threads for work of plans that waits for a device, such as a signature of a hardware security module.

Rules kept here:
* The event loop, and the threads that it shares with other work, never wait for a device.
* A device that does not answer delays its own keys only: after a deadline the key is planned again. Its thread stays occupied, and
  at most `THREADS` are, because a module of a device may answer one call at a time and queue the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from mooring.errors import MooringError

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
