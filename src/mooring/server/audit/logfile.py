"""Write audit records as JSON lines to a file that is rotated (docs/protocol/audit.md).

Rules kept here:
* Writing never delays a request: lines are collected, and a thread writes them together. When the disk is too slow, the oldest
  waiting lines are dropped and counted, and the operator sees that in the log and the metrics.
* The file has mode 0600 and is rotated by size, so that it never fills the disk. Old files are removed by number and by age.
* Refused and anonymous requests may use a quarter of each file. More of their records go to `audit-refused.log` beside it until
  the file is rotated, so that they never displace records of other requests, and no record is left out. That file is rotated at
  the same size and kept once.
* A path that is not a regular file is never rotated, and receives all records.
* A file has one writer, which locks it: two would rotate it twice. The second server of a data directory writes `audit-<port>.log`.
* The workers of one server are one writer. Each appends its lines together, under a lock, to the file that has the name at that
  moment: one of them rotates it, and the others follow at their next lines.
* A line that a killed process left incomplete is ended at the next start, or before the next lines of another worker, so that it
  costs one record, not two.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import stat
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mooring.client.files import check_owner
from mooring.errors import ConfigError
from mooring.server.audit.truncate import encode_record
from mooring.server.hostshare.share import ALONE, HostShare, Shared

log = logging.getLogger("mooring.audit")

FLUSH_SECONDS = 0.2
"""Longest wait of a line. A crash may lose this much of the audit log, as with kube-apiserver's batch mode."""
MAX_WAITING = 50_000
"""Lines that may wait, about 25 MB. More means that the disk is too slow."""
MAX_WAITING_BYTES = 64 << 20
"""Bytes of lines that may wait, for records with bodies."""
MAX_BYTES = 100 << 20
"""Bytes of a file: the usual --audit-log-maxsize of kube-apiserver."""
KEEP = 5
"""Rotated files that are kept."""
KEEP_REFUSED = 1
"""Rotated files of refused requests that are kept: with the current one they bound what a flood of requests writes."""
REFUSED_SHARE = 4
"""Refused and anonymous requests may use one part in so many of a file."""


class AuditLog:
    """Log of audit records. `path` "-" means standard output, "" disables the log.

    When another server writes the file, `suffix` makes the name `audit<suffix>.log`. `max_age`: days that a rotated file is
    kept, 0 for ever. `role`: the file of the workers that this one is.
    """

    def __init__(
        self,
        path: str,
        *,
        suffix: str = "",
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP,
        max_age: int = 0,
        now: Callable[[], datetime] | None = None,
        lazy: bool = False,
        share: HostShare = ALONE,
        role: Shared = Shared.AUDIT_LOG,
    ) -> None:
        self._path = path
        self._configured_path = path
        self._share = share
        self._shared = share.file(role)
        """Lock and name that the workers have in common; None for a process that is alone."""
        self._turn: AbstractContextManager[None] = nullcontext() if self._shared is None else self._shared.lock
        """Held while the file is opened or written."""
        self._suffix = suffix
        self._max_bytes = max_bytes
        self._keep = keep
        self._max_age = timedelta(days=max_age)
        self._now = now
        self._lazy = lazy
        self._rotated = True
        """True for a regular file, which is rotated."""
        self._rotations = 0
        self._counted_rotations = 0
        self._refused_bytes = 0
        self._refused: AuditLog | None = None
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._size = 0
        self._file: Any = None
        self._flusher: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._reported = 0
        self.written = 0
        self.dropped = 0

    @property
    def enabled(self) -> bool:
        """True unless the path is empty."""
        return bool(self._path)

    @property
    def running(self) -> bool:
        """False only when the writing task ended without `stop`."""
        return self._flusher is None or not self._flusher.done()

    def start(self) -> None:
        """Open the file and start writing. Raises ConfigError when the file cannot be opened."""
        if not self.enabled:
            return
        try:
            if not self._lazy:
                with self._turn:
                    self._open_free()
        except OSError as error:
            raise ConfigError(
                f"audit-log-path: {self._path} cannot be written: {(error.strerror or str(error)).lower()}; "
                "choose another file, or - for standard output"
            ) from error
        self._flusher = asyncio.get_running_loop().create_task(self._run(), name="audit")

    def _open_free(self) -> None:
        """Open the file, or the one with the suffix when another server writes it.

        The first of several workers proves that no other server has the file, by locking it alone, and decides the name for all.
        """
        shared = self._shared
        decision = None if shared is None else shared.decision(self._configured_path)
        if decision is not None:
            if decision:
                self._add_suffix()
            self._open(fcntl.LOCK_SH)
            return
        self._open_first()
        if shared is not None:
            shared.decide(self._configured_path, int(self._path != self._configured_path))
            if self._rotated:
                fcntl.flock(self._file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _open_first(self) -> None:
        try:
            self._open(fcntl.LOCK_EX)
        except BlockingIOError:
            taken = self._path
            self._add_suffix()
            log.warning("another process writes %s; audit records of this process go to %s", taken, self._path)
            self._open(fcntl.LOCK_EX)

    def _add_suffix(self) -> None:
        path = Path(self._configured_path)
        self._path = str(path.with_name(f"{path.stem}{self._suffix}{path.suffix}"))

    async def stop(self) -> None:
        """Write what is left and close."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
            self._flusher = None
        if self._writing is not None:  # a thread cannot be cancelled, and two writers would mix their lines
            await asyncio.wait((self._writing,))
            self._writing = None
        if self._refused is not None:
            await self._refused.stop()
        if self.enabled and (self._file is not None or self._lazy):
            self.flush()
        if self._file is not None and self._path != "-":
            self._file.close()
        self._file = None

    @property
    def lost(self) -> int:
        """Number of records lost, of this file and of the one for refused requests."""
        return self.dropped + (self._refused.dropped if self._refused is not None else 0)

    def record(self, event: dict[str, Any], *, refused: bool = False) -> None:
        """Add a record. `refused`: its request was refused, or anonymous."""
        line = encode_record(event)
        if refused and self._rotated and self._is_over_share(len(line)):
            self._overflow().append(line)
        else:
            self.append(line)

    def _is_over_share(self, size: int) -> bool:
        if self._counted_rotations != self._rotations:
            self._counted_rotations, self._refused_bytes = self._rotations, 0
        over = (self._refused_bytes + size) * REFUSED_SHARE * self._share.workers > self._max_bytes
        if not over:
            self._refused_bytes += size
        return over

    def _overflow(self) -> AuditLog:
        if self._refused is None:
            path = Path(self._path)
            beside = path.with_name(f"{path.stem}-refused{path.suffix}")
            log.warning(
                "records of refused and anonymous requests fill their part of %s; further ones go to %s until it is rotated",
                path,
                beside,
            )
            self._refused = AuditLog(
                str(beside),
                suffix=self._suffix,
                max_bytes=self._max_bytes,
                keep=KEEP_REFUSED,
                max_age=self._max_age.days,
                now=self._now,
                lazy=True,
                share=self._share,
                role=Shared.REFUSED_AUDIT_LOG,
            )
            self._refused.start()
        return self._refused

    def append(self, line: bytes) -> None:
        """Queue an encoded record; drop the oldest when too much waits."""
        self._lines.append(line)
        self._waiting += len(line)
        while len(self._lines) > MAX_WAITING or self._waiting > MAX_WAITING_BYTES:
            self._waiting -= len(self._lines.popleft())
            self.dropped += 1

    def flush(self) -> None:
        """Write the waiting lines now, in the calling thread."""
        self._write(self._take())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            if self._lines:
                self._writing = loop.run_in_executor(None, self._write, self._take())
                await asyncio.shield(self._writing)
            if self.dropped != self._reported:
                log.error("%d audit records were lost: the disk is too slow", self.dropped - self._reported)
                self._reported = self.dropped

    def _take(self) -> bytes:
        lines = list(self._lines)
        self._lines.clear()
        self._waiting = 0
        return b"".join(line + b"\n" for line in lines)

    def _open(self, lock: int) -> None:
        if self._path == "-":
            self._file = sys.stdout.buffer
            self._rotated = False
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)  # fail on a named pipe without a reader instead of waiting
        try:
            found = os.fstat(descriptor)
            self._rotated = is_file = stat.S_ISREG(found.st_mode)
            if is_file:
                check_owner(Path(self._path), found)
                fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
            os.set_blocking(descriptor, True)
        except (OSError, ConfigError):
            os.close(descriptor)
            raise
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._size = os.fstat(descriptor).st_size
        if self._size and is_file and not _ends_a_line(self._path):
            self._size += self._file.write(b"\n")

    def _write(self, data: bytes) -> None:
        if not data:
            return
        with self._turn:
            self._write_lines(data)

    def _write_lines(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            if self._file is None:
                self._open_free()
            elif self._shared is not None and self._rotated:
                self._follow_other_workers()
            is_full = self._rotated and self._size + len(data) > self._max_bytes and self._size
            if is_full and (self._shared is None or self._shared.lock.is_held):
                self._rotate()
            while left:
                done = self._file.write(left)
                self._size += done
                left = left[done:]
            self._file.flush()
        except (OSError, ConfigError) as error:
            lost = bytes(left).count(b"\n")
            self.dropped += lost
            self._reported += lost
            why = error.strerror if isinstance(error, OSError) else error
            log.error("%d audit records could not be written to %s: %s", lost, self._path, why)
        self.written += data.count(b"\n") - bytes(left).count(b"\n")

    def _follow_other_workers(self) -> None:
        """Use the file that has the name now, and end the line that a killed worker left incomplete."""
        found = os.fstat(self._file.fileno())
        try:
            is_named = os.path.samestat(found, Path(self._path).stat())
        except FileNotFoundError:
            is_named = False
        if not is_named:
            former = self._file
            self._open(fcntl.LOCK_SH)
            self._rotations += 1
            former.close()
            return
        self._size = found.st_size
        if self._size and not _ends_a_line(self._path):
            self._size += self._file.write(b"\n")

    def _rotate(self) -> None:
        """Rename the file, then open a new one. When either fails, the open file stays in use."""
        path = Path(self._path)
        oldest = self._now() - self._max_age if self._now is not None and self._max_age else None
        for number in range(self._keep, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if not older.exists():
                continue
            if oldest is not None and older.stat().st_mtime < oldest.timestamp():
                older.unlink()
            elif number < self._keep:
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        path.replace(path.with_name(f"{path.name}.1"))
        full = self._file
        self._open(fcntl.LOCK_EX if self._shared is None else fcntl.LOCK_SH)
        self._rotations += 1
        full.close()


def _ends_a_line(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return True  # the file may be writable and not readable
