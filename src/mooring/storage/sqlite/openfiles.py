"""Files of an open database, and the turns of the processes that want to write to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from mooring.errors import StorageError

# Files of an open database, compared with what their paths name now, and with what its shared memory says of their sizes.
#
# Rules kept here:
# * A file that was deleted, replaced or cut while it is open goes on being written, and all of that is lost with the last process
#   that has it open. Device and inode are those of the open file, because SQLite keeps it open.
# * SQLite writes behind the end of a write-ahead log that was cut, and would later copy the zeros before it into the database.
#   The shared memory counts the frames of the log, and the pages of the database (https://www.sqlite.org/walformat.html).
# * SQLite puts the log and the shared memory beside the file that symbolic links lead to, and so looks for them there at the next
#   start. A database that was moved, with a link to it in its place, is one whose log stays behind.
# * The shared memory is opened once for each file, and stays open: closing any descriptor of a file drops the locks that SQLite
#   has on it (POSIX advisory locks). The database is not opened at all.
# * The kernel is asked for the locks on one file. /proc/locks is not of one moment: it is read 4 KiB at a time, and leaves out
#   locks while others end, and always those of processes in another PID namespace.

_HEADER = struct.Struct("=12xB1xHII")
_HEADER_BYTES = 48
"""Bytes of a header, of which there are two. Their difference shows a change that is under way."""
_COPIED = struct.Struct("=I")
_LOG_HEADER, _FRAME_HEADER = 32, 24
_SMALLEST, _LARGEST = 1, 65536
"""A page size of 64 KiB is stored as 1."""

_LOCK = struct.Struct("hhqqi")
"""`struct flock` of Linux: type, origin, start, length and process."""
_WHOLE_FILE = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)

_descriptors: dict[tuple[int, int], int] = {}
"""Descriptors of shared memory by device and inode."""


@dataclass(frozen=True, slots=True)
class _Index:
    """Counts in the shared memory of a write-ahead log."""

    page_bytes: int
    frames: int
    """Frames of the log that were committed."""
    pages: int
    """Pages of the database after the last commit; 0 while it is not known."""
    copied: int
    """Frames that were copied into the database."""

    @property
    def log_bytes(self) -> int:
        """Bytes that the log has at least."""
        return _LOG_HEADER + self.frames * (self.page_bytes + _FRAME_HEADER) if self.frames else 0

    @property
    def database_bytes(self) -> int:
        """Bytes that the database has at least; 0 while pages of it are in the log alone."""
        return self.pages * self.page_bytes if self.copied == self.frames else 0


class OpenFiles:
    """The database, its write-ahead log and its shared memory, as they are when this is made."""

    def __init__(self, path: Path, named: Path | None = None) -> None:
        """Raises OSError when a file is missing. The database is open, and was read.

        `path`: without symbolic links. `named`: the path as it was given, which must go on leading there.
        """
        self._database, self._log, shared = path, Path(f"{path}-wal"), Path(f"{path}-shm")
        self._identities = {name: _identity(name.lstat()) for name in (path, self._log, shared)}
        self._named = None if named == path else named
        self._index_descriptor = _open_once(shared)
        self._size = path.stat().st_size

    def gone(self) -> str:
        """Return the path of a file that was deleted, replaced or cut, "" while all are in their places.

        The database never becomes smaller: it is not vacuumed.
        """
        # Counts before sizes: a file that grows in between has more bytes than the counts demand.
        before = self._read_index()
        sizes: dict[Path, int] = {}
        for name, identity in self._identities.items():
            try:
                status = name.lstat()
            except FileNotFoundError:
                return str(name)
            # A directory that cannot be read for a moment says nothing about the file.
            except OSError:
                continue
            if _identity(status) != identity:
                return str(name)
            sizes[name] = status.st_size
        if self._named is not None and self._leads_elsewhere(self._named):
            return str(self._named)
        if self._is_cut(sizes.get(self._database), 0 if before is None else before.database_bytes):
            return str(self._database)
        size = sizes.get(self._log)
        # Another process that empties the log says so in the index before.
        if before is not None and size is not None and size < before.log_bytes and before == self._read_index():
            return str(self._log)
        return ""

    def _leads_elsewhere(self, named: Path) -> bool:
        try:
            return _identity(named.stat()) != self._identities[self._database]
        except OSError as error:
            return isinstance(error, FileNotFoundError)

    def _is_cut(self, size: int | None, least: int) -> bool:
        if size is None:
            return False
        self._size = max(self._size, size, least)
        return size < self._size

    def _read_index(self) -> _Index | None:
        """Return the counts; None while they change, or are not known."""
        try:
            data = os.pread(self._index_descriptor, 2 * _HEADER_BYTES + _COPIED.size, 0)
        except OSError:
            return None
        if len(data) < 2 * _HEADER_BYTES + _COPIED.size or data[:_HEADER_BYTES] != data[_HEADER_BYTES : -_COPIED.size]:
            return None
        is_ready, page_bytes, frames, pages = _HEADER.unpack_from(data)
        (copied,) = _COPIED.unpack_from(data, 2 * _HEADER_BYTES)
        return _Index(_LARGEST if page_bytes == _SMALLEST else page_bytes, frames, pages, copied) if is_ready else None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _open_once(path: Path) -> int:
    """Return the descriptor of shared memory, which is opened unless it is open."""
    found = _descriptors.get(_identity(path.stat()))
    if found is None:
        found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        _descriptors[_identity(os.fstat(found))] = found
    return found


def close_deleted() -> None:
    """Close the descriptors of shared memory that was deleted, as SQLite does with the last connection."""
    for identity, descriptor in list(_descriptors.items()):
        if not os.fstat(descriptor).st_nlink:
            del _descriptors[identity]
            os.close(descriptor)


def is_used(shared: Path) -> bool:
    """Return whether this process or another uses shared memory, on which each connection of SQLite has a lock.

    True where that cannot be found out.
    """
    if not sys.platform.startswith("linux"):
        return True
    try:
        descriptor = _open_once(shared)
        identity = _identity(os.fstat(descriptor))
        found: bytes = fcntl.fcntl(descriptor, fcntl.F_GETLK, _WHOLE_FILE)
        return _LOCK.unpack(found)[0] != fcntl.F_UNLCK or identity in _open_here(besides=descriptor)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _open_here(*, besides: int) -> set[tuple[int, int]]:
    """Return what else this process has open. The kernel does not report its own locks to it."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        if int(entry.name) != besides:
            with contextlib.suppress(OSError):  # the descriptor that lists, and those of other threads
                found.add(_identity(os.fstat(int(entry.name))))
    return found


# Turns of the processes that want to write to one SQLite file.
#
# Rules kept here:
# * SQLite gives its write lock to anyone who asks at the right moment. A process that writes without a pause asks again within
#   microseconds of its commit, and others may never meet such a moment: on a slow disk they were refused after 5 s.
# * A process that has asked PATIENCE times in vain takes the turn, and keeps it until it has the write lock. No other asks for
#   the lock meanwhile, so that the process that had it last comes behind. While everyone gets the lock soon, none has a turn:
#   waiting for one costs a third of the commits of three processes.
# * A turn is never waited for without end: a process may have been stopped in its turn. After TRIES refusals the lock itself
#   decides.
# * A turn is a lock of the directory of the file (flock), which needs no file of its own and ends with the process.

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
            # A file system without such locks has no turns.
            except OSError:
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
