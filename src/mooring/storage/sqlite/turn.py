"""Turns of the processes that want to write to one SQLite file.

Rules kept here:
* SQLite gives its write lock to anyone who asks at the right moment. A process that writes without a pause asks again within
  microseconds of its commit, and others may never meet such a moment: on a slow disk they were refused after 5 s.
* A process that has asked PATIENCE times in vain takes the turn, and keeps it until it has the write lock. No other asks for the
  lock meanwhile, so that the process that had it last comes behind. While everyone gets the lock soon, none has a turn: waiting
  for one costs a third of the commits of three processes.
* A turn is never waited for without end: a process may have been stopped in its turn. After TRIES refusals the lock itself decides.
* A turn is a lock of the directory of the file (flock), which needs no file of its own and ends with the process.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from mooring.errors import StorageError

PATIENCE = 20
"""Tries for the write lock before the turn is taken: 10 to 20 ms, the time of many commits on a fast disk, and of one on a slow
disk."""
TRIES = 500
"""Refusals after which a turn is not waited for any more: up to half a second."""


class Turn:
    """The turn of one process to wait for the write lock; used by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Raises StorageError when the directory cannot be opened."""
        try:
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(
                f"the directory {directory} of the database cannot be opened: {error.strerror}"
            ) from error
        self._has = False
        self._asked = 0
        self._refusals = 0

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def may_ask(self) -> bool:
        """Return whether this process may ask for the write lock now, which it then does."""
        if not self._has and self._refusals < TRIES:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refusals += 1
                return False
            except OSError:  # a file system without such locks has no turns
                return True
            self._has = True
            if self._asked < PATIENCE:
                self._release()
        self._asked += 1
        return True

    def give_back(self) -> None:
        """End the turn, if this process has it: it has the write lock."""
        self._asked = self._refusals = 0
        self._release()

    def _release(self) -> None:
        if self._has:
            self._has = False
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
