"""Audit records as JSON lines of audit.k8s.io/v1 Event, and the file they are kept in.

Source: docs/protocol/audit.md.

Rules kept here:
* A record holds who, what, when, from where and how it ended, never a header or a token; bodies only where a policy asks for
  them (`server/audit/stages.py`). The request URI's query is kept, because no credential of Mooring's travels in one.
* Writing never delays a request: lines are gathered and written together by a thread. When the disk cannot keep up the
  oldest waiting lines are counted and dropped, and the operator is told in the log and in the metrics.
* The file is 0600 and is rotated by size, so that it never fills the disk. Old ones go by number and by age.
* Refused and anonymous requests cost their sender nothing. Of each file they may take a quarter; more of their records go to
  `audit-refused.log` beside it, until the file is rotated. So they never push out the records of others, and none is left out.
  That file is rotated at the same size, once.
* What is no regular file is never rotated, and takes everything.
* A file has one writer, who holds a lock on it: two would rotate it twice. The second server of a data directory writes
  `audit-<port>.log`.
* A line that a killed process left unfinished is ended at the next start: it costs one record, not two.
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
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mooring.apimachinery.auditpolicy import MAX_BYTES as MAX_POLICY
from mooring.apimachinery.auditpolicy import AuditPolicy, parse_policy
from mooring.client.files import check_placed, read_limited
from mooring.clock import rfc3339_micro
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.server.audit.bounds import encode_record

log = logging.getLogger("mooring.audit")

FLUSH_SECONDS = 0.2
"""Lines wait at most this long; a crash may lose this much of the audit trail, as with kube-apiserver's batch mode."""
MAX_WAITING = 50_000
"""About 25 MB of lines; more means that the disk does not keep up."""
MAX_WAITING_BYTES = 64 << 20
"""The same for records that hold whole objects."""
MAX_BYTES = 100 << 20
"""kube-apiserver users' usual --audit-log-maxsize."""
KEEP = 5
"""Rotated files kept beside the live one."""
KEEP_REFUSED = 1
"""Rotated files of refused requests: the two hold twice a file's size, so that a flood costs no more disk than that."""
REFUSED_SHARE = 4
"""Refused and anonymous requests may take one part in so many of a file."""


class AuditLog:
    """Gathers records and writes them. `path` "-" means standard output, "" means nowhere.

    `suffix` makes the name of who finds the file taken: `audit<suffix>.log`. `max_age`: days that a rotated file is kept, 0 for
    ever.
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
    ) -> None:
        self._path = path
        self._suffix = suffix
        self._max_bytes = max_bytes
        self._keep = keep
        self._max_age = timedelta(days=max_age)
        self._now = now
        self._lazy = lazy
        self._rotated = True
        """Whether the file is a regular one, which is rotated."""
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
        self._told = 0
        self.written = 0
        self.dropped = 0

    @property
    def enabled(self) -> bool:
        return bool(self._path)

    @property
    def running(self) -> bool:
        """Whether what is recorded gets written: false only when writing ended although nobody stopped it."""
        return self._flusher is None or not self._flusher.done()

    def start(self) -> None:
        """Open the file and start writing. Raises ConfigError when the file cannot be opened."""
        if not self.enabled:
            return
        try:
            if not self._lazy:
                self._open_free()
        except OSError as error:
            raise ConfigError(
                f"audit-log-path: {self._path} cannot be written: {(error.strerror or str(error)).lower()}; "
                "choose another file, or - for standard output"
            ) from error
        self._flusher = asyncio.get_running_loop().create_task(self._run(), name="audit")

    def _open_free(self) -> None:
        """Open the file, or the one with this process's suffix when another process writes it."""
        try:
            self._open()
        except BlockingIOError:
            taken, path = self._path, Path(self._path)
            self._path = str(path.with_name(f"{path.stem}{self._suffix}{path.suffix}"))
            log.warning("another process writes %s; audit records of this one go to %s", taken, self._path)
            self._open()

    async def stop(self) -> None:
        """Write what is left and close."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
            self._flusher = None
        if self._writing is not None:  # a thread cannot be cancelled: two writers would mix their lines
            await asyncio.wait((self._writing,))
            self._writing = None
        if self._refused is not None:
            await self._refused.stop()
        if self.enabled and (self._file is not None or self._lazy):
            self._write(self._take())
        if self._file is not None and self._path != "-":
            self._file.close()
        self._file = None

    @property
    def lost(self) -> int:
        """How many records were lost, of this file and of the one for refused requests."""
        return self.dropped + (self._refused.dropped if self._refused is not None else 0)

    def record(self, event: dict[str, Any], *, refused: bool = False) -> None:
        """Keep a record; `refused`: of a request that was refused, or that came without an identity."""
        line = encode_record(event)
        if refused and self._rotated and self._is_over_share(len(line)):
            self._overflow().append(line)
        else:
            self.append(line)

    def _is_over_share(self, size: int) -> bool:
        if self._counted_rotations != self._rotations:
            self._counted_rotations, self._refused_bytes = self._rotations, 0
        over = (self._refused_bytes + size) * REFUSED_SHARE > self._max_bytes
        if not over:
            self._refused_bytes += size
        return over

    def _overflow(self) -> AuditLog:
        if self._refused is None:
            path = Path(self._path)
            beside = path.with_name(f"{path.stem}-refused{path.suffix}")
            log.warning(
                "records of refused and anonymous requests fill their part of %s; until it is rotated more go to %s",
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
            )
            self._refused.start()
        return self._refused

    def append(self, line: bytes) -> None:
        """Queue an encoded record."""
        self._lines.append(line)
        self._waiting += len(line)
        while len(self._lines) > MAX_WAITING or self._waiting > MAX_WAITING_BYTES:
            self._waiting -= len(self._lines.popleft())
            self.dropped += 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            if self._lines:
                self._writing = loop.run_in_executor(None, self._write, self._take())
                await asyncio.shield(self._writing)
            if self.dropped != self._told:
                log.error("%d audit records were lost: the disk does not keep up", self.dropped - self._told)
                self._told = self.dropped

    def _take(self) -> bytes:
        lines = list(self._lines)
        self._lines.clear()
        self._waiting = 0
        return b"".join(line + b"\n" for line in lines)

    def _open(self) -> None:
        if self._path == "-":
            self._file = sys.stdout.buffer
            self._rotated = False
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)  # a named pipe that nobody reads is an error, not a wait
        try:
            found = os.fstat(descriptor)
            self._rotated = is_file = stat.S_ISREG(found.st_mode)
            if is_file:
                check_placed(Path(self._path), found)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        left = memoryview(data)
        try:
            if self._file is None:
                self._open_free()
            if self._rotated and self._size + len(data) > self._max_bytes and self._size:
                self._rotate()
            while left:
                done = self._file.write(left)
                self._size += done
                left = left[done:]
            self._file.flush()
        except (OSError, ConfigError) as error:
            lost = bytes(left).count(b"\n")
            self.dropped += lost
            self._told += lost
            why = error.strerror if isinstance(error, OSError) else error
            log.error("%d audit records could not be written to %s: %s", lost, self._path, why)
        self.written += data.count(b"\n") - bytes(left).count(b"\n")

    def _rotate(self) -> None:
        """Rename, then open anew; when either fails, the open file goes on being written."""
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
        self._open()
        self._rotations += 1
        full.close()


def _ends_a_line(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return True  # it may be ours to write and not to read; then nobody can tell


def user_record(user: UserInfo) -> dict[str, Any]:
    """authentication.k8s.io/v1 UserInfo as audit events carry it."""
    record: dict[str, Any] = {"username": user.username}
    if user.uid:
        record["uid"] = user.uid
    if user.groups:
        record["groups"] = user.groups
    if user.extra:
        record["extra"] = dict(user.extra)
    return record


def audit_event(
    *,
    audit_id: str,
    uri: str,
    verb: str,
    user: UserInfo | None,
    source: str,
    user_agent: str,
    object_ref: dict[str, str] | None,
    code: int,
    reason: str,
    received: datetime,
    completed: datetime,
    annotations: dict[str, str],
    impersonated: UserInfo | None = None,
    constraint: str = "",
    level: str = "Metadata",
    stage: str = "ResponseComplete",
) -> dict[str, Any]:
    """One event; `code` is 0 while nothing is answered."""
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": level,
        "auditID": audit_id,
        "stage": stage,
        "requestURI": uri,
        "verb": verb,
        "user": user_record(user) if user is not None else {},
        "sourceIPs": [source],
        "userAgent": user_agent,
        "requestReceivedTimestamp": rfc3339_micro(received),
        "stageTimestamp": rfc3339_micro(completed),
        "annotations": annotations,
    }
    if code:
        failure = {"status": "Failure", "reason": reason} if reason else {}
        event["responseStatus"] = {"metadata": {}, "code": code, **failure}
    if object_ref:
        event["objectRef"] = object_ref
    if impersonated is not None:
        event["impersonatedUser"] = user_record(impersonated)
    if constraint:
        event["authenticationMetadata"] = {"impersonationConstraint": constraint}
    return event


def read_policy(path: str) -> AuditPolicy | None:
    """The policy in the file that `--audit-policy-file` names, if it names one. Raises ConfigError."""
    if not path:
        return None
    try:
        data = read_limited(Path(path), MAX_POLICY)
    except ConfigError as error:
        raise ConfigError(f"audit-policy-file: {error}") from error
    return parse_policy(data, f"audit-policy-file: {path}")
