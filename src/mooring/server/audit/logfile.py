"""Write audit records as JSON lines to a file that is rotated (docs/protocol/audit.md).

Rules kept here:
* Lines are collected, and a thread writes them together. With mode `batch` no request waits for that. With `blocking` a response
  waits until its record was written, or could not be. With `blocking-strict` a request whose arrival cannot be recorded is refused.
* A line that could not be written waits and is written later, in order. Beyond a bound the oldest waiting lines are dropped and
  counted. The operator sees both in the log, the health checks and the metrics.
* The file is rotated and follows its path (`mooring.server.audit.rotatedfile`).
* Refused and anonymous requests may use a quarter of each file. More of their records go to `audit-refused.log` beside it until
  the file is rotated, so that they never displace records of other requests, and no record is left out. That file is rotated at
  the same size and kept once.
* A path that is not a regular file receives all records.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mooring.errors import ConfigError
from mooring.server.audit.auditevent import MAX_ANONYMOUS, MAX_RECORD, encode_record
from mooring.server.audit.rotatedfile import Calls, RotatedFile
from mooring.server.sharedmemory import ALONE, Shared, WorkerMemory
from mooring.settings.serving import AuditMode

log = logging.getLogger("mooring.audit")

FLUSH_SECONDS = 0.2
"""Longest wait of a line with mode batch. A crash may lose this much of the audit log, as with kube-apiserver's batch mode."""
BATCH_BYTES = 1 << 20
"""Bytes of lines that are written together. Joining them takes about 1 ms of the event loop."""
MAX_WAITING = 50_000
"""Lines that may wait, about 25 MB. More means that the disk is too slow, or takes none."""
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


@dataclass(frozen=True, slots=True)
class _Waiter:
    """One request that waits until its records are in the file."""

    number: int
    """Number of its last record."""
    dropped_before: int
    future: asyncio.Future[bool]

    def answer(self, *, is_stored: bool) -> None:
        if not self.future.done():
            self.future.set_result(is_stored)


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
        share: WorkerMemory = ALONE,
        role: Shared = Shared.AUDIT_LOG,
        mode: AuditMode = AuditMode.BATCH,
        calls: Calls | None = None,
    ) -> None:
        self._path = path
        self._share = share
        self.mode = mode
        self._file = RotatedFile(
            path,
            suffix=suffix,
            max_bytes=max_bytes,
            keep=keep,
            max_age=max_age,
            now=now,
            shared=share.file(role),
            calls=calls,
        )
        self._suffix = suffix
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._now = now
        self._calls = calls
        self._lazy = lazy
        self._counted_generation = 0
        self._refused_bytes = 0
        self._refused: AuditLog | None = None
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._appended = 0
        self._wake = asyncio.Event()
        self._waiters: deque[_Waiter] = deque()
        self._flusher: asyncio.Task[None] | None = None
        self._writing: tuple[list[bytes], asyncio.Future[int]] | None = None
        """Lines that a thread writes, and the future of how many it wrote."""
        self._reported = 0
        self._is_slow = False
        self.written = 0
        self.dropped = 0

    @property
    def enabled(self) -> bool:
        """True unless the path is empty, or the file keeps nothing."""
        return self._path not in ("", os.devnull)

    @property
    def running(self) -> bool:
        """False only when the writing task ended without `stop`."""
        return self._flusher is None or not self._flusher.done()

    @property
    def problem(self) -> str:
        """Return the reason why records are not written where they belong; "" while all are."""
        refused = "" if self._refused is None else self._refused.problem
        return self._file.problem or ("the disk is too slow" if self._is_slow else refused)

    @property
    def is_recording(self) -> bool:
        """False while records wait that could not be written, or are dropped."""
        refused = self._refused is None or self._refused.is_recording
        return refused and not self._file.is_refusing and not self._is_slow

    def start(self) -> None:
        """Open the file and start writing. Raises ConfigError when the file cannot be opened."""
        if not self.enabled:
            return
        try:
            if not self._lazy:
                self._file.open()
        except OSError as error:
            raise ConfigError(
                f"audit-log-path: {self._path} cannot be written: {(error.strerror or str(error)).lower()}; "
                "choose another file, or - for standard output"
            ) from error
        self._flusher = asyncio.get_running_loop().create_task(self._run(), name="audit")

    async def stop(self) -> None:
        """Write what is left and close. What cannot be written is counted as lost."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
            self._flusher = None
        # A thread cannot be cancelled, and two writers would mix their lines.
        if self._writing is not None:
            await asyncio.wait((self._writing[1],))
            self._settle()
        if self._refused is not None:
            await self._refused.stop()
        if self.enabled:
            self.flush()
            while self._lines:
                self._drop_oldest()
            self._report_lost()
        self._file.close()

    @property
    def lost(self) -> int:
        """Number of records lost, of this file and of the one for refused requests."""
        return self.dropped + (self._refused.dropped if self._refused is not None else 0)

    def record(self, event: dict[str, Any], *, refused: bool = False, anonymous: bool = False) -> None:
        """Add a record. `refused`: its request was refused, or anonymous. `anonymous`: its client was not authenticated."""
        line = encode_record(event, MAX_ANONYMOUS if anonymous else MAX_RECORD)
        if refused and self._file.is_regular and self._is_over_share(len(line)):
            self._overflow().append(line)
        else:
            self.append(line)

    def _is_over_share(self, size: int) -> bool:
        if self._counted_generation != self._file.generation:
            self._counted_generation, self._refused_bytes = self._file.generation, 0
        over = (self._refused_bytes + size) * REFUSED_SHARE * self._share.workers > self._max_bytes
        if not over:
            self._refused_bytes += size
        return over

    def _overflow(self) -> AuditLog:
        if self._refused is None:
            path = Path(self._file.path)
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
                max_age=self._max_age,
                now=self._now,
                lazy=True,
                share=self._share,
                role=Shared.REFUSED_AUDIT_LOG,
                mode=self.mode,
                calls=self._calls,
            )
            self._refused.start()
        return self._refused

    def append(self, line: bytes) -> None:
        """Queue an encoded record; drop the oldest when too much waits."""
        self._lines.append(line)
        self._waiting += len(line)
        self._appended += 1
        if self.mode is not AuditMode.BATCH:
            self._wake.set()
        self._bound()

    def _bound(self) -> None:
        while len(self._lines) > MAX_WAITING or self._waiting > MAX_WAITING_BYTES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._waiting -= len(self._lines.popleft())
        self.dropped += 1

    async def stored(self) -> bool:
        """Wait until the records that were added so far are in the file. Return False when one could not be written now.

        Not for mode `batch`, in which nothing waits.
        """
        is_stored = True
        if self._lines or self._writing is not None:
            if self._flusher is None or self._flusher.done():
                return False
            waiter = _Waiter(self._appended, self.dropped, asyncio.get_running_loop().create_future())
            self._waiters.append(waiter)
            is_stored = await waiter.future
        return is_stored and (self._refused is None or await self._refused.stored())

    def flush(self) -> None:
        """Write the waiting lines now, in the calling thread."""
        while self._lines:
            lines = self._take()
            if not self._settle_lines(lines, self._file.write(lines)):
                break

    async def _run(self) -> None:
        try:
            while True:
                if self.mode is AuditMode.BATCH:
                    await asyncio.sleep(FLUSH_SECONDS)
                else:
                    await self._wake_or_retry()
                    self._wake.clear()
                await self._write_waiting()
                self._report_lost()
        finally:
            self._answer_waiters()

    async def _wake_or_retry(self) -> None:
        """Wait for a record; while lines wait that could not be written, no longer than for the next try."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS if self._lines else None):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _write_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._lines:
            lines = self._take()
            writing = loop.run_in_executor(None, self._file.write, lines)
            self._writing = lines, writing
            await asyncio.shield(writing)
            if not self._settle():
                return

    def _settle(self) -> bool:
        """Count what the thread has written, and return whether it was all."""
        assert self._writing is not None  # set by the only task that writes
        lines, writing = self._writing
        self._writing = None
        return self._settle_lines(lines, writing.result())

    def _settle_lines(self, lines: Sequence[bytes], written: int) -> bool:
        """Count what was written of `lines`, let the others wait again, and answer those who waited."""
        self.written += written
        is_done = written == len(lines)
        if not is_done:
            left = lines[written:]
            # At the front, so that records stay in order.
            self._lines.extendleft(reversed(left))
            self._waiting += sum(map(len, left))
            self._bound()
        # Counted from the end of the queue, because dropped lines have numbers, too.
        settled = self._appended - len(self._lines)
        while self._waiters and self._waiters[0].number <= settled:
            waiter = self._waiters.popleft()
            waiter.answer(is_stored=waiter.dropped_before == self.dropped)
        if not is_done:
            self._answer_waiters()
        return is_done

    def _answer_waiters(self) -> None:
        """Tell those who wait that their records are not in the file."""
        while self._waiters:
            self._waiters.popleft().answer(is_stored=False)

    def _report_lost(self) -> None:
        lost = self.dropped - self._reported
        self._is_slow = lost > 0
        if lost:
            log.error("%d audit records were lost: %s", lost, self._file.problem or "the disk is too slow")
            self._reported = self.dropped

    def _take(self) -> list[bytes]:
        """Take lines of one write off the queue."""
        lines: list[bytes] = []
        size = 0
        while self._lines and (not lines or size + len(self._lines[0]) < BATCH_BYTES):
            line = self._lines.popleft()
            lines.append(line)
            size += len(line)
        self._waiting -= size
        return lines
