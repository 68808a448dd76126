"""Level of the format in which a store is written, so that an older program does not read or change what it does not know.

Rules kept here (docs/adr/0068-the-level-of-the-format.md):
* The store has one level in force. A store without the record is at level 1. A program supports a range of levels.
* Each process publishes the range that it supports before it reads the level, and renews the key while it runs. A process lives
  while its key changes, as the observer sees it by its own clock: that works without leases, and with clocks that differ.
* A start on a level that the program does not support is refused before anything else in the store is changed.
* The leader raises the level as far as every process that lives supports it. A start writes the record of the level once,
  unchanged: the compare-and-swap of a leader that had not seen the new process then fails, so that none is overlooked.
* The level never goes down. A feature may write its new form once `FormatLevel.level` is that of its row in LEVELS; the old form
  stays readable.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from mooring.clock import Clock
from mooring.errors import ConfigError, StorageError
from mooring.storage.contract import Entry, KeyExistsError, RevisionMismatchError, Storage
from mooring.storage.keyspace import FORMAT_LEVEL, FORMAT_SERVERS

log = logging.getLogger("mooring.storage")

LEVELS: tuple[str, ...] = (
    "the objects of Kubernetes, the objects of mooring.dev, and the keys below /mooring/",
    "agent tokens among the shared keys (docs/adr/0076-rotation-of-the-agent-token.md)",
)
"""Additions of each level, from level 1 on. Rows are only added, each by the first program that can write it."""
AGENT_TOKENS_LEVEL = 2
TTL_SECONDS = 15
"""Time without a change after which a process is dead, as for the leases of servers (docs/adr/0048-servers-that-live.md)."""
RENEW_SECONDS = 5.0
"""A third of it, so that one write may fail."""
LEAVE_SECONDS = 2.0
"""Time for the withdrawal at a stop, which waits no longer for a store that does not answer."""
MAX_SERVERS = 10_000
"""Processes that are counted, far above the workers of all servers of a cluster."""
MAX_TRIES = 100
"""Attempts of a start while other processes start, each of which writes the record once."""


@dataclass(frozen=True, slots=True)
class Supported:
    """Levels that a program reads and writes."""

    oldest: int
    newest: int

    def has(self, level: int) -> bool:
        return self.oldest <= level <= self.newest


SUPPORTED = Supported(1, len(LEVELS))
"""Levels of this program."""


class UnsupportedLevelError(ConfigError):
    """The store has a level that this program does not support."""

    def __init__(self, level: int, supported: Supported) -> None:
        newer = level > supported.newest
        remedy = "run the newer version" if newer else "run an older version first, which raises its level"
        super().__init__(
            f"the store was written by {'a newer' if newer else 'an older'} Mooring (format level {level}, this program supports "
            f"{supported.oldest} to {supported.newest}); {remedy}"
        )


async def refuse_unsupported(storage: Storage, supported: Supported = SUPPORTED) -> None:
    """Raise UnsupportedLevelError when the store has a level that this program does not support. Changes nothing."""
    level = await level_in_force(storage)
    if not supported.has(level):
        raise UnsupportedLevelError(level, supported)


async def level_in_force(storage: Storage) -> int:
    """Return the level of a store. Raises StorageError."""
    return _level(await storage.get(FORMAT_LEVEL))


class FormatLevel:
    """One process of a cluster, and the level in force as it was last read."""

    def __init__(self, storage: Storage, clock: Clock, identity: str, supported: Supported = SUPPORTED) -> None:
        """`identity`: unique to this process."""
        self._storage = storage
        self._clock = clock
        self._key = f"{FORMAT_SERVERS}{identity}"
        self._supported = supported
        self._value = json.dumps({"oldest": supported.oldest, "newest": supported.newest}).encode()
        self._seen: dict[str, tuple[int, float]] = {}
        """Revision of each key of another process, and since when it has not changed."""
        self.level = 1

    async def join(self) -> None:
        """Publish what this process supports, and read the level. Raises UnsupportedLevelError, StorageError."""
        # Before the key is written: on a level that is not supported nothing in the store is changed.
        await refuse_unsupported(self._storage, self._supported)
        # Published before the level is read again: a leader that counts from now on sees this process.
        await self._renew()
        try:
            await self._confirm()
        except BaseException:
            await self.leave()
            raise

    async def _confirm(self) -> None:
        """Write the record as it is, so that no leader raises the level without having seen this process."""
        for _ in range(MAX_TRIES):
            entry = await self._storage.get(FORMAT_LEVEL)
            self._take(entry)
            with suppress(KeyExistsError, RevisionMismatchError):
                if entry is None:
                    await self._storage.create(FORMAT_LEVEL, _record(self.level))
                else:
                    await self._storage.update(FORMAT_LEVEL, entry.value, expected=entry.revision)
                return
        raise StorageError("the level of the store's format changes all the time: other servers start; try again")

    async def leave(self) -> None:
        """Withdraw what this process supports. A failure is ignored: the key ends by itself."""
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                entry = await self._storage.get(self._key)
                if entry is not None:
                    await self._storage.delete(self._key, expected=entry.revision)

    async def run(self, leads: Callable[[], bool], stop: Callable[[], None]) -> None:
        """Renew, and raise the level where `leads()`, until cancelled. Calls `stop` when the level is not supported any more."""
        failure = ""
        while True:
            try:
                await self.look(leads=leads())
                failure = ""
            except UnsupportedLevelError as error:
                log.error("%s; this server stops", error)
                stop()
                return
            except StorageError as error:
                if str(error) != failure:
                    log.warning("the level of the store's format cannot be read: %s", error)
                failure = str(error)
            await self._clock.sleep(RENEW_SECONDS)

    async def look(self, *, leads: bool) -> None:
        """Renew the key of this process, read the level, and raise it where this process leads and all support more.

        Raises UnsupportedLevelError when the level was raised while this process did not run; StorageError.
        """
        await self._renew()
        entry = await self._storage.get(FORMAT_LEVEL)
        self._take(entry)
        if not leads or self.level == self._supported.newest:
            self._seen.clear()
            return
        target = await self._common_level()
        if target <= self.level:
            return
        try:
            # The store was emptied under this server.
            if entry is None:
                await self._storage.create(FORMAT_LEVEL, _record(target))
            else:
                await self._storage.update(FORMAT_LEVEL, _record(target), expected=entry.revision)
        except (KeyExistsError, RevisionMismatchError):
            # A process started, and wrote the record. It is counted at the next look.
            return
        log.info("every server supports level %d of the store's format: it is in force now", target)
        self.level = target

    async def _common_level(self) -> int:
        """Return the newest level that every process supports which lives; the level in force when there is no other."""
        now = self._clock.monotonic()
        found = await self._storage.range(FORMAT_SERVERS, limit=MAX_SERVERS, counted=False)
        if found.more:
            return self.level
        seen: dict[str, tuple[int, float]] = {}
        target = self._supported.newest
        for entry in found.entries:
            if entry.key == self._key:
                continue
            revision, since = self._seen.get(entry.key, (0, now))
            seen[entry.key] = (entry.revision, now if revision != entry.revision else since)
            if now - seen[entry.key][1] < TTL_SECONDS:
                target = min(target, _supported(entry).newest)
            else:
                # It runs after all, or another process deleted the key.
                with suppress(RevisionMismatchError):
                    await self._storage.delete(entry.key, expected=entry.revision)
        self._seen = seen
        return target

    def _take(self, entry: Entry | None) -> None:
        level = _level(entry)
        if not self._supported.has(level):
            raise UnsupportedLevelError(level, self._supported)
        self.level = level

    async def _renew(self) -> None:
        entry = await self._storage.get(self._key)
        with suppress(KeyExistsError, RevisionMismatchError):  # its lease ended: the next look writes it
            if entry is None:
                await self._storage.create(self._key, self._value, ttl=TTL_SECONDS)
            else:
                await self._storage.update(self._key, self._value, expected=entry.revision, ttl=TTL_SECONDS)


def _record(level: int) -> bytes:
    return json.dumps({"level": level}).encode()


def _level(entry: Entry | None) -> int:
    """Return the level in the record. Raises StorageError for a record that cannot be read."""
    if entry is None:
        return 1
    try:
        level = json.loads(entry.value)["level"]
    except (ValueError, LookupError, TypeError, RecursionError):
        level = None
    if type(level) is not int or level < 1:
        raise StorageError(f"{FORMAT_LEVEL} in the store is not the level of a format; restore it from a backup")
    return level


def _supported(entry: Entry) -> Supported:
    """Return what a process supports: no level above 1 when that cannot be read."""
    try:
        found = json.loads(entry.value)
        return Supported(int(found["oldest"]), int(found["newest"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return Supported(1, 1)
