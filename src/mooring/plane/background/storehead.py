"""The file `store.head` of the data directory: the newest revision that this server has seen, kept outside the store.

Rules kept here:
* A store that is older than this file was restored from a copy, or is another one. Revisions then go on beyond the one in the file,
  so that none has two meanings: watches from before end as compacted, and clients read everything again.
* The jump is larger than what a server can write between two writes of the file, because it may have been killed meanwhile. A copy
  that is younger than the file is not noticed: the last write before a kill is at most `PAUSE` seconds old.
* Several servers on one store may jump at the same time, each with its own file; the first one suffices, or the next goes further.
* A file that is damaged is reported and written anew: it is no reason not to start. A store in memory has no file.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from mooring.client.files import read_limited, write_atomic
from mooring.clock import Clock
from mooring.errors import ConfigError, StorageError
from mooring.storage.contract import Storage

log = logging.getLogger("mooring")

FILE_NAME = "store.head"
PAUSE = 5.0
"""Seconds between two writes, each of which waits for the disk."""
JUMP = 1_000_000_000
"""Revisions that are left out: more than a server writes in `PAUSE`, as many as a restored snapshot leaves out."""
MAX_REVISION = 2**60
"""Revisions are below 2**63; a greater number in the file is damage."""
TRIES = 10
"""Attempts to advance while other servers do so."""


def read_head(path: Path) -> int:
    """Return the revision in the file; 0 without one, or when it is damaged, which is logged."""
    if not path.exists():
        return 0
    try:
        text = read_limited(path).decode("ascii", "replace").strip()
    except ConfigError as error:
        text = str(error)
    if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_REVISION:
        return int(text)
    log.error("%s is damaged: this start cannot notice a store that was restored from an older copy", path)
    return 0


async def continue_beyond(storage: Storage, path: Path) -> None:
    """Let the revisions of a store that was restored from an older copy go on beyond those that were seen. Raises StorageError."""
    seen = read_head(path)
    for attempt in range(1, TRIES + 1):
        newest = await storage.revision()
        if newest >= seen:
            return
        if attempt == 1:
            log.error(
                "the store is at revision %d, and this server has seen revision %d: the store was restored from an older copy, or "
                "is another one. What was written in between is lost: repeat revocations, and deletions of tokens. Clients read "
                "everything anew",
                newest,
                seen,
            )
        try:
            await storage.advance(seen + JUMP)
        except StorageError:
            if attempt == TRIES:
                raise


class StoreHead:
    """Keeps the file up to date. `revision` returns the newest revision that was seen."""

    def __init__(self, path: Path, revision: Callable[[], int], clock: Clock) -> None:
        self._path = path
        self._revision = revision
        self._clock = clock
        self._written = 0
        self._is_reported = False
        self._writing = threading.Lock()
        """Held while the file is written: a stop may come while a thread writes it, and must write after that."""

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Write the file until the block ends, and once more then."""
        self.write()
        task = asyncio.create_task(self._run(), name="store head")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.write()

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(PAUSE)
            await asyncio.to_thread(self.write)

    def write(self) -> None:
        """Write the newest revision, unless the file has it. Another worker of this server may have written a newer one."""
        with self._writing:
            self._write(self._revision())

    def _write(self, revision: int) -> None:
        if revision <= self._written:
            return
        try:
            if read_head(self._path) < revision:
                write_atomic(self._path, f"{revision}\n".encode())
        except ConfigError as error:
            if not self._is_reported:
                log.error("a store that is restored from an older copy will not be noticed: %s", error)
            self._is_reported = True
            return
        self._written, self._is_reported = revision, False
