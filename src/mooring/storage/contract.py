"""The storage contract: revisions, compare-and-swap writes, watches and compaction, the same for every driver.

Rules every driver keeps; `tests/storage/test_conformance*.py` check each of them on each driver:
1. The store has one global, ever-increasing integer revision. Every successful call of `create`, `update` and `delete` takes one
   of its own. A fresh store is at revision 1 (as etcd is), so the first write gets 2. Revisions need not be dense: an engine that
   others write to gives them revisions too, and one of those may hold several changes (all keys of an expired lease go at once).
2. A write is durable before its call returns. `kill -9` at any moment loses no acknowledged write; a write that
   was not acknowledged is stored whole or not at all.
3. `create` succeeds only if the key is absent; `update` and `delete` only if the key's current revision is the expected
   one. Otherwise nothing changes and the error carries the current entry.
4. `get` and `range` without a revision are linearizable: they see every write acknowledged before the call began, by any
   process. With a revision they see exactly that state, or raise `CompactedError`, or `FutureRevisionError`.
5. Keys are ordered by their UTF-8 bytes.
6. `watch` yields every change after the given revision, once, in revision order, whole revisions at a time, also those of
   other processes. It raises `CompactedError` when changes that it needs are gone. It never skips a change silently. When newer
   revisions hold no change under its prefix, it yields a progress notification: each caller of `revision()` that waits for its
   watch to get there sees it arrive.
7. `revision()` is linearizable and cheap (microseconds): a reader calls it to check that its cache is fresh.
8. `compact(revision)` deletes the states before that revision; the latest state of every live key remains.
9. A full disk, a read-only file or a lost connection raises `StorageError` with a remedy; once the cause is gone the
   same object works again. Values and keys never appear in error texts. A write whose outcome cannot be learned raises
   `UnknownOutcomeError`: it may be stored, now or a little later. A driver that cannot go on after that sets `failed`, and refuses
   everything that is not certain until its process has been started again.
10. After `advance(revision)` every write gets a revision beyond `revision`, and the states before it are compacted: a client that
   holds an older revision, which another store gave, gets `CompactedError` and reads everything again.
11. A key written with a `ttl` may be deleted by the engine once that many seconds have passed, never before. A driver without
   leases keeps it until it is deleted.

12. A record whose bytes have changed in the store is an `UnreadableEntry` in `get` and `range`, and in the errors of rule 3. It can
   be replaced and deleted as any other. A watch that would yield it raises `CompactedError`: its reader lists again.

Values are opaque bytes: storage has revisions and bytes, and no kinds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from mooring.errors import StorageError


@dataclass(frozen=True, slots=True)
class Entry:
    """One key at one revision. `revision` is that of the last write to it, `created` that of its creation."""

    key: str
    value: bytes
    revision: int
    created: int


@dataclass(frozen=True, slots=True)
class UnreadableEntry(Entry):
    """An entry whose value no configured key decrypts (`mooring.storage.encryption`), or whose bytes have changed in the store. Its
    `value` is empty."""

    problem: str
    """Reason, for a key with the names of the provider and the key."""


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in key order at `revision`. `more`: `limit` cut entries after the last one; `remaining`: their number.

    `remaining` is 0 when they were not to be counted.
    """

    entries: tuple[Entry, ...]
    revision: int
    more: bool = False
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One write; `entry` is None for a deletion.

    A change with an empty key is a progress notification: the watch has yielded every change up to its revision.
    """

    key: str
    revision: int
    entry: Entry | None

    @classmethod
    def progress(cls, revision: int) -> StoredChange:
        """Return the progress notification of `revision`."""
        return cls("", revision, None)

    @property
    def is_progress(self) -> bool:
        """True for a progress notification, which is not a write."""
        return not self.key


@dataclass(slots=True)
class StoreCounters:
    """Numbers of one store in one process, for metrics."""

    checkpoint_failures: int = 0
    """Failed copies of the write-ahead log into the database."""
    verified: int = 0
    """Records that `verify` has read."""
    damaged: int = 0
    """Places that the last whole pass of `verify`, or the present one, found damaged."""


class KeyExistsError(StorageError):
    """`create` of a key that exists."""

    def __init__(self, current: Entry) -> None:
        super().__init__("the key exists already")
        self.current = current


class RevisionMismatchError(StorageError):
    """`update` or `delete` of a key that is not at the expected revision; `current` is None when the key is gone."""

    def __init__(self, current: Entry | None) -> None:
        super().__init__("the key was changed meanwhile")
        self.current = current


class CompactedError(StorageError):
    """The requested revision is older than `oldest`, the oldest that can be read."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"revisions before {oldest} were compacted")
        self.oldest = oldest


class FutureRevisionError(StorageError):
    """The requested revision is newer than the store."""

    def __init__(self, current: int) -> None:
        super().__init__(f"the store is only at revision {current}")
        self.current = current


class Storage(Protocol):
    """One store. It is opened once per process and event loop; calls may run concurrently."""

    @property
    def failed(self) -> asyncio.Event:
        """Set when this process must not go on with the store (`problem` says why): end it, and start it again."""

    @property
    def counters(self) -> StoreCounters:
        """Numbers for metrics."""

    @property
    def problem(self) -> str:
        """Reason why the store does not serve now; "" while it does, and for a store without a connection."""

    @property
    def alarm(self) -> str:
        """Trouble of the store itself that its operator must end, and how; "" without any."""

    @property
    def refuses_writes(self) -> bool:
        """True while writes fail, as on a full disk, whether reads are served or not: the last one failed, or there is an alarm."""

    async def open(self) -> None:
        """Connect, create the store if it is missing, and check that it can be written."""

    async def close(self) -> None:
        """Finish writes under way, end watches, release all resources. Idempotent."""

    async def get(self, key: str, *, revision: int = 0) -> Entry | None:
        """Return the entry now, or at `revision`."""

    async def range(
        self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0, counted: bool = True
    ) -> Page:
        """Return the entries whose key starts with `prefix` and is greater than `after`; at most `limit` (0 = all).

        Without `counted` the entries beyond the limit are not counted, which saves a walk over their keys.
        """

    async def create(self, key: str, value: bytes, *, ttl: int = 0) -> Entry:
        """Store a new key, for `ttl` seconds or longer (0 = for ever), and return its entry. Raises KeyExistsError."""

    async def update(self, key: str, value: bytes, *, expected: int, ttl: int = 0) -> Entry:
        """Replace the value of a key that is at revision `expected`, and return its entry. The life of the key is `ttl` seconds
        from now. Raises RevisionMismatchError."""

    async def delete(self, key: str, *, expected: int) -> int:
        """Delete a key that is at revision `expected`, and return the revision of the deletion. Raises RevisionMismatchError."""

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        """Yield batches of changes after revision `after`, until the store or the iterator is closed."""

    async def revision(self) -> int:
        """Return the newest revision."""

    async def compacted(self) -> int:
        """Return the oldest revision at which state can be read."""

    async def claim_compaction(self, revision: int) -> bool:
        """Return True when this process is to compact up to `revision`, False when another server has compacted since the last
        call."""

    async def compact(self, revision: int) -> None:
        """Delete the states before `revision`. Raises FutureRevisionError beyond the newest."""

    async def advance(self, revision: int) -> None:
        """Let every further write have a revision beyond `revision`, and compact to `revision`.

        The newest revision is at least `revision` afterwards. Meant for a store that only this process has open, before objects of
        another store are written to it.
        """

    async def verify(self) -> None:
        """Verify the next part of what is stored, a few milliseconds of work.

        Damage is in `alarm`, in `counters` and in the log. An engine that verifies its data itself has nothing to do. Raises
        StorageError when the store is closed.
        """
