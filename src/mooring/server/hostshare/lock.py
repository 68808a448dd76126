"""Locks between the workers of one host, for tables in shared memory that are changed rarely.

Rules kept here:
* A lock is a byte of a file that only the workers have open (fcntl(2), POSIX record locks). The kernel releases it when its holder
  dies, however it dies.
* No worker waits for longer than TRIES pauses: a holder that was stopped (SIGSTOP) would stop all others. After that the change is
  made without the lock. Tables survive that: the worst is one lost or doubled count.
* While a holder does not give the lock back, later changes do not wait again.
* A lock is used by one thread of a process at a time: record locks do not separate threads.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable

TRIES = 50
"""A change takes some 10 µs. A holder that lost its core gets it back within a few milliseconds, and 10 ms are waited for it."""
PAUSE_SECONDS = 0.0002


def nameless_file(purpose: str) -> int:
    """Return a descriptor of a file that has no name, closed at exec. Linux needs no directory for it, other systems use /tmp."""
    memory_file: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    if memory_file is not None:
        return memory_file(purpose)
    descriptor, path = tempfile.mkstemp(prefix=purpose)
    os.unlink(path)  # noqa: PTH108 - a descriptor and a path, as mkstemp gives them
    return descriptor


class HostLock:
    """One byte of the file."""

    __slots__ = ("_descriptor", "_number", "_overdue", "_pause", "is_held")

    def __init__(self, descriptor: int, number: int, pause: float = PAUSE_SECONDS) -> None:
        """`pause`: seconds between two tries. Code that runs beside the event loop may wait longer."""
        self._descriptor = descriptor
        self._number = number
        self._pause = pause
        self.is_held = False
        self._overdue = False

    def __enter__(self) -> None:
        self.is_held = self._try()
        if self.is_held or self._overdue:
            self._overdue = not self.is_held
            return
        for _ in range(TRIES):
            time.sleep(self._pause)
            self.is_held = self._try()
            if self.is_held:
                return
        self._overdue = True

    def __exit__(self, *exception: object) -> None:
        if self.is_held:
            self.is_held = False
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._number)

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._number)
        except OSError:  # another worker has it, or the kernel has no lock left
            return False
        return True
