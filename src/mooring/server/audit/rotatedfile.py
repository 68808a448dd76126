"""A file of lines that is rotated by size, follows its path, and keeps every line that was written.

Rules kept here:
* Before each write the path is compared with the open file. When they differ, after a move (logrotate) or a deletion, the path is
  opened again and gets a new file. While that fails, lines go on into the moved file, and wait when the file was deleted. A file
  that was truncated in place (copytruncate) goes on at its new end.
* The file has mode 0600. Old files have the numbers 1 (newest) to `keep`. A rotation first moves old files up, as far
  as the first number that is free. Files that are too many or too old are deleted last.
* A rotation that fails leaves the file in use, which grows beyond its size. It is tried again after a part of that size, and so is
  a deletion.
* Lines that a write did not take are reported to the caller. A part of a line is cut off again, or ended before the next line.
* A path that is not a regular file is never rotated. Its reader may stall: what it does not take waits, as with a full disk, and no
  line that fits into PIPE_BUF is torn. The rest of a longer one follows when the reader goes on. A terminal may tear any line.
* A file has one writer, which locks it: two would rotate it twice. A second server writes `<name><suffix>.<ending>` instead.
* The workers of one server are one writer: each holds their common lock while it writes or rotates. One that rotates is followed by
  the others at their next lines.
* All system calls go through `Calls`, where tests let them fail.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

from mooring.client.files import check_owner
from mooring.errors import ConfigError
from mooring.server.sharedmemory import SharedFile

log = logging.getLogger("mooring.audit")

RETRY_PART = 16
"""A rotation that failed is tried again when the file has grown by one part in so many of its size."""
READER_SECONDS = 1.0
"""Time that a reader of a pipe has to make room. One that stalls for longer must not keep the thread, which a stop waits for."""
READER_TRIES = 20
"""Writes in that time to a terminal that has room for less than it was given."""
STANDARD_OUTPUT = "-"
_FLAGS = os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""A named pipe without a reader fails instead of waiting for one, and so does a write without room, which poll cannot exclude."""


class Calls:
    """System calls on files, and how this module calls them."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags, 0o600)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def fstat(self, descriptor: int) -> os.stat_result:
        return os.fstat(descriptor)

    def stat(self, path: str) -> os.stat_result:
        return os.stat(path)  # noqa: PTH116 - as the other calls here

    def lstat(self, path: str) -> os.stat_result:
        return os.lstat(path)

    def flock(self, descriptor: int, operation: int) -> None:
        fcntl.flock(descriptor, operation)

    def write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data)

    def is_writable(self, descriptor: int, seconds: float) -> bool:
        """Return whether a pipe or socket takes PIPE_BUF bytes, or a terminal some, now or within some seconds."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def read(self, descriptor: int, position: int) -> bytes:
        return os.pread(descriptor, 1, position)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)  # noqa: PTH104 - as the other calls here

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108 - as the other calls here


class RotatedFile:
    """One file and its older ones. `path` "-" means standard output. The methods are called by one thread at a time.

    `suffix` is added to the name when another server writes the file. `max_age`: days that an old file is kept, 0 for ever.
    `shared`: lock and name that the workers have in common, None for a process that is alone.
    """

    def __init__(
        self,
        path: str,
        *,
        suffix: str,
        max_bytes: int,
        keep: int,
        max_age: int,
        now: Callable[[], datetime] | None,
        shared: SharedFile | None,
        calls: Calls | None = None,
    ) -> None:
        self.path = path
        self._configured_path = path
        self._suffix = suffix
        self._max_bytes = max_bytes
        self._keep = keep
        self._max_age = timedelta(days=max_age)
        self._now = now
        self._shared = shared
        self._turn: AbstractContextManager[None] = nullcontext() if shared is None else shared.lock
        """Held while the file is opened or written."""
        self._calls = calls or Calls()
        self._descriptor: int | None = None
        self.is_regular = True
        """True for a file that is rotated."""
        self.generation = 0
        """Number of files that were begun after the first one, by a rotation or a move."""
        self.problem = ""
        """Operation that fails now; "" while everything is written where it belongs."""
        self.is_refusing = False
        """True while the last write did not take all lines."""
        self._failure = ""
        self._rotation_failure = ""
        self._retry_at = 0
        """Bytes below which nothing is tried again, after a rotation or a deletion has failed."""
        self._deletes = False
        """True while old files are to be deleted."""
        self._is_readable = False
        self._end = 0
        """Size of the file after the last write of this process."""
        self._is_torn = False
        """True when the last write of this process left part of a line."""
        self._begun: tuple[bytes, int] | None = None
        """Line of which a pipe took a part when its reader stalled, and the bytes of that part."""

    def open(self) -> None:
        """Open the file. Raises OSError, ConfigError."""
        with self._turn:
            self._open()

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._close(descriptor)

    def write(self, lines: Sequence[bytes]) -> int:
        """Write lines, and return how many are in the file, from the first one on. `problem` says what failed."""
        written = 0
        self._failure = ""
        with self._turn:
            try:
                self._prepare(sum(map(len, lines)) + len(lines))
                written = self._append(lines)
            except (OSError, ConfigError) as error:
                self._failure = f"{self.path} cannot be written: {_reason(error)}"
        self.is_refusing = written < len(lines)
        self._report("; ".join(filter(None, (self._failure, self._rotation_failure))))
        return written

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.error("audit log: %s", problem)
        elif self.problem and not problem:
            log.warning("audit log: records are written to %s again", self.path)
        self.problem = problem

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the path, or the one with the suffix when another server writes it.

        The first of several workers proves that no other server has the file, by locking it alone, and decides the name for all.
        """
        shared = self._shared
        if shared is None:
            self._open_alone()
            return
        decision = shared.decision(self._configured_path)
        if decision is not None:
            if decision:
                self._add_suffix()
            self._take(fcntl.LOCK_SH)
            return
        self._open_alone()
        # The first worker has locked the file alone, so no other server writes it. It decides the name for all workers.
        shared.decide(self._configured_path, int(self.path != self._configured_path))
        if self.is_regular and self._descriptor is not None:
            self._calls.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _open_alone(self) -> None:
        try:
            self._take(fcntl.LOCK_EX)
        except BlockingIOError:
            taken = self.path
            self._add_suffix()
            if self.path == taken:
                raise
            log.warning("another process writes %s; audit records of this process go to %s", taken, self.path)
            self._take(fcntl.LOCK_EX)

    def _add_suffix(self) -> None:
        path = Path(self._configured_path)
        self.path = str(path.with_name(f"{path.stem}{self._suffix}{path.suffix}"))

    def _take(self, lock: int) -> None:
        """Open the path with a lock, in the place of the file that was open."""
        former = self._descriptor
        if self.path == STANDARD_OUTPUT:
            sys.stdout.flush()
            self._descriptor, self.is_regular = self._open_output(sys.stdout.fileno()), False
            return
        descriptor, is_readable = self._open_path()
        try:
            found = self._calls.fstat(descriptor)
            is_regular = stat.S_ISREG(found.st_mode)
            if is_regular:
                check_owner(Path(self.path), found)
                self._calls.flock(descriptor, lock | fcntl.LOCK_NB)
        except (OSError, ConfigError):
            self._close(descriptor)
            raise
        self._descriptor, self.is_regular, self._is_readable = descriptor, is_regular, is_readable
        self._end, self._is_torn = 0, False
        if former is not None:
            self._begin_generation()
            self._close(former)

    def _open_path(self) -> tuple[int, bool]:
        """Open the path, or create it. Return the descriptor, and whether it can be read, too."""
        try:
            is_regular = stat.S_ISREG(self._calls.stat(self.path).st_mode)
        except FileNotFoundError:
            is_regular = True
        if is_regular:
            with suppress(PermissionError):
                return self._calls.open(self.path, _FLAGS | os.O_RDWR), True
        return self._calls.open(self.path, _FLAGS | os.O_WRONLY), False

    def _open_output(self, output: int) -> int:
        """Return the descriptor for standard output: a terminal is opened again, because a write may block though poll saw room.

        The open file of the terminal is that of other programs, too: it must not become non-blocking.
        """
        if os.isatty(output):
            with suppress(OSError):
                return self._calls.open(f"/proc/self/fd/{output}", _FLAGS | os.O_WRONLY)
            with suppress(OSError):  # without /proc
                return self._calls.open(os.ttyname(output), _FLAGS | os.O_WRONLY)
        return output

    def _begin_generation(self) -> None:
        self.generation += 1
        self._rotation_failure, self._retry_at = "", 0

    def _close(self, descriptor: int) -> None:
        if self.path != STANDARD_OUTPUT or descriptor != sys.stdout.fileno():
            with suppress(OSError):  # the lines were written before
                self._calls.close(descriptor)

    # -- before each write -------------------------------------------------------------------------------------------

    def _prepare(self, bytes_wanted: int) -> None:
        """Have the file open that is to be written, with room for some bytes, and at the beginning of a line."""
        is_named = True
        if self._descriptor is None:
            self._open()
        elif self.is_regular:
            is_named = self._follow()
        assert self._descriptor is not None  # it was opened
        if not self.is_regular:
            return
        found = self._calls.fstat(self._descriptor)
        if not found.st_nlink:
            raise FileNotFoundError(None, "it was deleted, and cannot be created again")
        size = found.st_size
        if size < self._end:
            self._begin_generation()  # truncated in place
        if size != self._end:  # other writers, or the first look
            self._is_torn = size > 0 and not self._ends_a_line(size)
            self._end = size
        # A torn line of a former write would join the next record.
        self._end_line()
        if is_named and self._end >= self._retry_at and self._holds_turn:
            if self._end > 0 and self._end + bytes_wanted > self._max_bytes:
                self._rotate()
            if self._deletes:
                self._delete_old()

    @property
    def _holds_turn(self) -> bool:
        """True unless another worker was stopped while it held the lock."""
        return self._shared is None or self._shared.lock.is_held

    def _follow(self) -> bool:
        """Open the path again when it names another file than the open one, or none. Return whether it names the open one then."""
        assert self._descriptor is not None  # the caller has seen it
        found = self._calls.fstat(self._descriptor)
        try:
            if os.path.samestat(found, self._calls.stat(self.path)):
                return True
        except FileNotFoundError:
            pass
        except OSError as error:
            self._failure = f"{self.path} cannot be looked at: {_reason(error)}"
            return False
        try:
            if self._shared is None:
                self._open_alone()
            else:
                self._take(fcntl.LOCK_SH)
        except (OSError, ConfigError) as error:
            if not found.st_nlink:
                raise
            self._failure = (
                f"{self.path} was moved and cannot be created again: {_reason(error)}; records go into the moved file"
            )
            return False
        return True

    def _ends_a_line(self, size: int) -> bool:
        """Return whether the file ends with a newline; True for one that cannot be read."""
        assert self._descriptor is not None  # it was opened
        return not self._is_readable or self._calls.read(self._descriptor, size - 1) in (b"\n", b"")

    def _end_line(self) -> None:
        if self._is_torn:
            self._end += self._write(memoryview(b"\n"))
            self._is_torn = False

    # -- rotation ----------------------------------------------------------------------------------------------------

    def _rotate(self) -> None:
        """Begin a new file. When that fails, the open file stays in use under its name."""
        try:
            self._move_up()
            self._calls.rename(self.path, self._older(1))
            try:
                self._take(fcntl.LOCK_EX if self._shared is None else fcntl.LOCK_SH)
            except (OSError, ConfigError):
                with suppress(OSError):  # the next write follows the file, or begins a new one
                    if not self._exists(self.path):
                        self._calls.rename(self._older(1), self.path)
                raise
        except (OSError, ConfigError) as error:
            self._rotation_failed(f"{self.path} is full and cannot be rotated, so it grows: {_reason(error)}")
        else:
            # Old files are deleted last, when the new file is in use: a failed rotation deletes nothing.
            self._deletes = True

    def _rotation_failed(self, failure: str) -> None:
        self._rotation_failure = failure
        self._retry_at = self._end + max(1, self._max_bytes // RETRY_PART)

    def _older(self, number: int) -> str:
        return f"{self.path}.{number}"

    def _move_up(self) -> None:
        """Make number 1 free. What is beyond `keep` then is deleted after the rotation."""
        free = next(number for number in count(1) if not self._exists(self._older(number)))
        # From the first free number down, so that a rotation which failed and is repeated replaces no file.
        for number in range(free - 1, 0, -1):
            self._calls.rename(self._older(number), self._older(number + 1))

    def _delete_old(self) -> None:
        """Delete files that are too many or too old."""
        try:
            for number in count(self._keep + 1):
                if not self._exists(self._older(number)):
                    break
                self._calls.unlink(self._older(number))
            self._delete_aged()
        except OSError as error:
            self._rotation_failed(f"old files of {self.path} cannot be deleted: {_reason(error)}")
        else:
            self._rotation_failure, self._deletes = "", False

    def _delete_aged(self) -> None:
        if self._now is None or not self._max_age:
            return
        oldest = (self._now() - self._max_age).timestamp()
        for number in range(1, self._keep + 1):
            with suppress(FileNotFoundError):
                if self._calls.lstat(self._older(number)).st_mtime < oldest:
                    self._calls.unlink(self._older(number))

    def _exists(self, path: str) -> bool:
        try:
            self._calls.lstat(path)
        except FileNotFoundError:
            return False
        return True

    # -- writing -----------------------------------------------------------------------------------------------------

    def _append(self, lines: Sequence[bytes]) -> int:
        """Append lines. Return how many are in the file, and set the failure when that is not all of them."""
        data = memoryview(b"".join(line + b"\n" for line in lines))
        start, done = self._end, 0
        try:
            done = self._resume(lines)
            for piece in (data,) if self.is_regular else _pieces(data, lines, done):
                end = done + len(piece)
                while done < end:
                    done += self._write(data[done:end])
        except OSError as error:
            self._failure = f"{self.path} cannot be written: {_reason(error)}"
        self._end = start + done
        if done == len(data):
            return len(lines)
        written = whole = 0
        for line in lines:
            if whole + len(line) > done:
                break
            written, whole = written + 1, whole + len(line) + 1
        # The last line lacks its end only.
        if done < whole:
            self._is_torn = True
        # A pipe has taken a part of the line, which cannot be cut off: the rest follows when its reader continues.
        elif done > whole and not self.is_regular:
            self._begun = lines[written], done - whole
        elif done > whole:
            self._is_torn = not self._cut(start + whole)
        return written

    def _resume(self, lines: Sequence[bytes]) -> int:
        """Return how many bytes of the first line a pipe has already. The rest of another line, which was dropped, is left out."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == lines[0]:
            return begun[1]
        self._is_torn = self._is_torn or begun is not None
        self._end_line()
        return 0

    def _write(self, data: memoryview) -> int:
        """Write what there is room for. Raises OSError for a reader that makes none, without a wait while that is known."""
        assert self._descriptor is not None  # it was opened
        if self.is_regular:
            return self._calls.write(self._descriptor, data)
        seconds, tries = (0.0, 1) if self.is_refusing else (READER_SECONDS, READER_TRIES)
        for _ in range(tries):
            if not self._calls.is_writable(self._descriptor, seconds):
                break
            with suppress(BlockingIOError):
                return self._calls.write(self._descriptor, data)
            self._calls.pause(seconds / tries)
        raise OSError(errno.EAGAIN, "its reader does not read")

    def _cut(self, size: int) -> bool:
        """Remove the part of a line that was written beyond `size`. Return whether that succeeded."""
        assert self._descriptor is not None  # it was written
        if not self.is_regular or not self._holds_turn:
            return False
        try:
            if self._calls.fstat(self._descriptor).st_size != self._end:
                # Another process changed the file meanwhile. Its bytes must not be cut off.
                return False
            self._calls.truncate(self._descriptor, size)
        except OSError:
            return False
        self._end = size
        return True


def _pieces(data: memoryview, lines: Sequence[bytes], start: int) -> Iterator[memoryview]:
    """Yield what a pipe with room takes without waiting: as many whole lines as fit into PIPE_BUF, or a part of a longer one.

    The first `start` bytes are left out.
    """
    end = 0
    for line in lines:
        size = len(line) + 1
        if end > start and end + size - start > select.PIPE_BUF:
            yield data[start:end]
            start = end
        end += size
        while end - start > select.PIPE_BUF:
            yield data[start : start + select.PIPE_BUF]
            start += select.PIPE_BUF
    if end > start:
        yield data[start:end]


def _reason(error: OSError | ConfigError) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
