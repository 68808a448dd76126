"""The file `lineage.head` of the data directory: the end of the lineage, kept outside the store.

Rules kept here:
* A cut of the last records leaves a chain that is valid in itself. This file, on which each record of this server leaves its
  checkpoint, is what `mooring audit verify --data-dir` compares it with.
* Writes are atomic and made in a thread, at most one in `PAUSE` seconds; a stop writes the last one. After `kill -9` the file is
  behind by as much, and still names a record of the chain.
* When the store does not have the record that the file names, the line stays as evidence, and a new line begins. The log has an
  error then.
* A store in memory has no file.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from mooring.client.files import read_limited, write_atomic
from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.trust.lineage.chain import Checkpoint, parse_checkpoint

log = logging.getLogger("mooring.controllers")

FILE_NAME = "lineage.head"
PAUSE = 0.2
"""Seconds between two writes: joins may be a thousand in a second, and each write waits for the disk."""
MAX_LINES = 1000
"""Lines of the file: one for each time that records were found to be missing."""


def read_heads(path: Path) -> list[Checkpoint]:
    """Return the checkpoints in the file, the newest last; none without the file. Raises ConfigError."""
    if not path.exists():
        return []
    try:
        return [parse_checkpoint(line) for line in read_limited(path).decode("utf-8", "replace").split()]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


class LineageHead:
    """Keeps the file up to date."""

    def __init__(self, path: Path, hash_at: Callable[[int], str], clock: Clock) -> None:
        """`hash_at` returns the hash of the stored record with a sequence number, "" for none."""
        self._path = path
        self._hash_at = hash_at
        self._clock = clock
        self._head: Checkpoint | None = None
        self._written: Checkpoint | None = None
        self._changed = asyncio.Event()
        self._writing = threading.Lock()
        """Held while the file is written: a stop may come while a thread writes it, and must write after that."""

    def note(self, head: Checkpoint) -> None:
        """Note the newest record. The file has it soon."""
        self._head = head
        self._changed.set()

    async def run(self) -> None:
        """Write the file after each change, until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await asyncio.to_thread(self._write)
                await self._clock.sleep(PAUSE)
        finally:
            self._write()

    def _write(self) -> None:
        with self._writing:
            self._write_newest()

    def _write_newest(self) -> None:
        head = self._head
        if head is None or head == self._written:
            return
        try:
            lines = [*self._lines_to_keep(), head]
            write_atomic(self._path, "".join(f"{line}\n" for line in lines).encode())
            self._written = head
        except ConfigError as error:
            log.error("the end of the lineage is not kept outside the store: %s", error)

    def _lines_to_keep(self) -> list[Checkpoint]:
        """Return the lines of the file without the last one, or with it when the store does not have its record.

        The file is read each time, because another worker may have led and written it meanwhile.
        """
        lines = read_heads(self._path)[-MAX_LINES:]
        if not lines:
            return []
        last = lines[-1]
        if last == self._written or self._hash_at(last.sequence) == last.hash:
            return lines[:-1]
        log.error(
            "lineage records are missing or were changed: the store has no record %s; run mooring audit verify --data-dir %s",
            last,
            self._path.parent,
        )
        return lines
