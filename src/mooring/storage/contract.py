"""The storage contract: revisions, compare-and-swap writes, watches and compaction, the same for every driver.

Rules every driver keeps; `tests/storage/test_conformance*.py` check each of them on each driver:
1. The store has one global, ever-increasing integer revision. Every successful write takes exactly one; nothing else does. A fresh
   store is at revision 1 (as etcd is), so the first write gets 2.
2. A write is durable before its call returns. `kill -9` at any moment loses no acknowledged write; a write that
   was not acknowledged is stored whole or not at all.
3. `create` succeeds only if the key is absent; `update` and `delete` only if the key's current revision is the expected
   one. Otherwise nothing changes and the error carries the current entry.
4. `get` and `range` without a revision are linearizable: they see every write acknowledged before the call began, by any
   process. With a revision they see exactly that state, or raise `CompactedError`, or `FutureRevisionError`.
5. Keys are ordered by their UTF-8 bytes.
6. `watch` yields every change after the given revision, once, in revision order, whole revisions at a time, also those of
   other processes. It raises `CompactedError` when changes that it needs are gone. It never skips a change silently.
7. `revision()` is linearizable and cheap (microseconds): a reader calls it to check that its cache is fresh.
8. `compact(revision)` deletes the states before that revision; the latest state of every live key remains.
9. A full disk, a read-only file or a lost connection raises `StorageError` with a remedy; once the cause is gone the
   same object works again. Values and keys never appear in error texts.

Values are opaque bytes: storage has revisions and bytes, and no kinds.
"""

from __future__ import annotations

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
class Page:
    """Entries in key order at `revision`. `more`: `limit` cut entries after the last one; `remaining`: their number."""

    entries: tuple[Entry, ...]
    revision: int
    more: bool = False
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `entry` is None for a deletion; `previous` is None for a creation."""

    key: str
    revision: int
    entry: Entry | None
    previous: Entry | None


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

    async def open(self) -> None:
        """Connect, create the store if it is missing, and check that it can be written."""

    async def close(self) -> None:
        """Finish writes under way, end watches, release all resources. Idempotent."""

    async def get(self, key: str, *, revision: int = 0) -> Entry | None:
        """Return the entry now, or at `revision`."""

    async def range(self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0) -> Page:
        """Return the entries whose key starts with `prefix` and is greater than `after`; at most `limit` (0 = all)."""

    async def create(self, key: str, value: bytes) -> Entry:
        """Store a new key and return its entry. Raises KeyExistsError."""

    async def update(self, key: str, value: bytes, *, expected: int) -> Entry:
        """Replace the value of a key that is at revision `expected`, and return its entry. Raises RevisionMismatchError."""

    async def delete(self, key: str, *, expected: int) -> int:
        """Delete a key that is at revision `expected`, and return the revision of the deletion. Raises RevisionMismatchError."""

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[Change, ...]]:
        """Yield batches of changes after revision `after`, until the store or the iterator is closed."""

    async def revision(self) -> int:
        """Return the newest revision."""

    async def compacted(self) -> int:
        """Return the oldest revision at which state can be read."""

    async def compact(self, revision: int) -> None:
        """Delete the states before `revision`. Raises FutureRevisionError beyond the newest."""
