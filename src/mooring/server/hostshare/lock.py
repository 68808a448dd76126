"""Locks between the workers of one host: for tables in shared memory that are changed rarely, and for files that all append to.

Rules kept here:
* A lock is a byte of a file that only the workers have open (fcntl(2), POSIX record locks). The kernel releases it when its holder
  dies, however it dies.
* No worker waits for longer than TRIES pauses: a holder that was stopped (SIGSTOP) would stop all others. After that the change is
  made without the lock. Tables survive that: the worst is one lost or doubled count.
* While a holder does not give the lock back, later changes do not wait again.
* A lock is used by one thread of a process at a time: record locks do not separate threads.
* The workers of one parent write one file, such as the audit log, and no other server does. The first worker that opens it proves
  that no other server has it, and decides the name for all. The others, and replacements, follow that decision. Anyone who writes
  or renames the file holds its lock.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b

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


FILE_PAUSE_SECONDS = 0.05
"""Between two tries for the lock of a file. Writing a batch may take seconds on a slow disk, and 2.5 s are waited for it."""
FILE_WORDS = 2


class SharedFile:
    """Lock of one file, and the decision which name it has. `words`: two words of shared memory."""

    def __init__(self, words: memoryview[int], lock: HostLock, workers: int) -> None:
        self._words = words
        self.lock = lock
        self.workers = workers

    def decision(self, path: str) -> int | None:
        """Return what was decided for `path`, None when nothing was. Called with the lock held."""
        key, decision = self._words.tolist()
        return decision if key == _key(path) else None

    def decide(self, path: str, decision: int) -> None:
        """Record a decision for `path`, which replaces that for another path. Called with the lock held."""
        self._words[0] = 0
        self._words[1] = decision
        self._words[0] = _key(path)


def _key(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=7).digest()) or 1
