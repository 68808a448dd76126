"""The file `store.mark` of a data directory: reading it, writing it, its lock, and its damage.

Rules kept here:
* A damaged watermark is a tombstone of its own, which an administrator accepts. The file is then kept beside the new one.
* A watermark that exists and cannot be read now (no descriptor left, a failing disk) is not damaged: the server does not start,
  because it would skip the judgement.
* Of several workers the one that holds the lock writes.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mooring.client.files import MAX_READ, read_limited, write_atomic
from mooring.controlplane.datadirectory import no_lock, open_lock
from mooring.errors import ConfigError
from mooring.trust.issuancelog import parse_checkpoint
from mooring.trust.storewatermark import Watermark, parse_watermark

log = logging.getLogger("mooring")

FILE_NAME = "store.mark"
LOCK_NAME = "store.mark.lock"
DAMAGED_SUFFIX = ".damaged"
MAX_BYTES = 64 << 20


class DamagedWatermarkError(ConfigError):
    """The content of the file is not a watermark."""


def read_watermark(directory: Path) -> Watermark:
    """Return the watermark in a data directory; an empty one without a file.

    Raises DamagedWatermarkError for content that is not a watermark, ConfigError for a file that cannot be read now.
    """
    path = directory / FILE_NAME
    text = _content(path, MAX_BYTES)
    if text is None:
        return _of_earlier_versions(directory)
    try:
        return parse_watermark(text)
    except ConfigError as error:
        raise DamagedWatermarkError(f"{path}: {error}") from error


def _content(path: Path, limit: int = MAX_READ) -> bytes | None:
    """Return the content of a file, None when there is none. Raises ConfigError when it cannot be read."""
    try:
        return read_limited(path, limit)
    except ConfigError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _of_earlier_versions(directory: Path) -> Watermark:
    """Return what `store.head` and `lineage.head` say, the files before the watermark. Raises as `read_watermark` does."""
    head, issuance_log = directory / "store.head", directory / "lineage.head"
    revision, lines = _content(head), _content(issuance_log)
    try:
        checkpoints = tuple(parse_checkpoint(line) for line in (lines or b"").decode("ascii").split())
        return Watermark(int((revision or b"0").decode("ascii")), issuance_log=checkpoints)
    except (ValueError, ConfigError):
        raise DamagedWatermarkError(f"{head} or {issuance_log} is damaged") from None


class WatermarkFile:
    """The watermark of one data directory, for one process. Raises ConfigError when the file cannot be read now."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE_NAME
        self.server = hashlib.sha256(f"{platform.node()}:{directory.resolve()}".encode()).hexdigest()[:16]
        """Machine and data directory of this server, which are the same after a restart and for each worker."""
        self.damage = ""
        """Why the watermark is damaged, until that is settled."""
        self.watermark = Watermark()
        """Watermark in the file; an empty watermark while that is damaged."""
        self._lock: int | None = None
        self._written = b""
        self._is_reported = False
        self._writing = threading.Lock()
        """Held while the file is written: a stop may come while a thread writes it, and must write after that."""
        try:
            self.watermark = read_watermark(directory)
        except DamagedWatermarkError as error:
            self.report_damage(str(error))

    def report_damage(self, problem: str) -> None:
        """Note that the watermark is damaged, and log it."""
        self.damage = problem
        log.error("what this server remembers of its store is damaged: %s", problem)

    def value_of_damage(self) -> dict[str, Any]:
        """Return the value of a damaged watermark. The time of the file tells it from one that was accepted before."""
        try:
            return {"problem": self.damage, "modified": self.path.stat().st_mtime_ns}
        except OSError:
            return {"problem": self.damage}

    def set_aside(self) -> None:
        """Keep the damaged file beside the one that is written next."""
        if self.path.exists():
            self.path.replace(self.path.with_name(FILE_NAME + DAMAGED_SUFFIX))

    def write(self, watermark: Watermark) -> None:
        """Write the watermark, unless the file has it. A failure is logged."""
        with self._writing:
            text = watermark.encode()
            if text == self._written:
                return
            try:
                write_atomic(self.path, text)
            except ConfigError as error:
                self._report(error)
            else:
                self._written, self._is_reported, self.watermark = text, False, watermark

    def check_lock(self) -> None:
        """Raise ConfigError when the watermark can never be written, because its lock file cannot be opened."""
        os.close(open_lock(self.directory / LOCK_NAME))

    def hold(self, take_over: Callable[[Watermark], None]) -> bool:
        """Return whether this process writes the file; take the lock when no process has it.

        `take_over` is then called with what the process that wrote the watermark before knows.
        """
        if self._lock is None:
            try:
                self._lock = self._take_lock(take_over)
            except ConfigError as error:
                self._report(error)
        return self._lock is not None

    def _take_lock(self, take_over: Callable[[Watermark], None]) -> int | None:
        """Return the descriptor of the lock, None when another process has it.

        Raises ConfigError when the file cannot be read now, too: a watermark without what it has must not replace it.
        """
        path = self.directory / LOCK_NAME
        descriptor = open_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._take_over(take_over)
        except (OSError, ConfigError) as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            if isinstance(error, OSError):
                raise no_lock(path, error) from error
            raise
        return descriptor

    def _take_over(self, take_over: Callable[[Watermark], None]) -> None:
        try:
            known = read_watermark(self.directory)
        except DamagedWatermarkError:
            return
        take_over(known)
        self.watermark = replace(
            self.watermark,
            revision=max(self.watermark.revision, known.revision),
            server=known.server,
            epoch=max(self.watermark.epoch, known.epoch),
        )

    def release(self) -> None:
        """Let another process write the file. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _report(self, problem: ConfigError) -> None:
        """Log once that the watermark is not written."""
        if not self._is_reported:
            log.error("a store that is restored from an older copy will not be noticed: %s", problem)
        self._is_reported = True
