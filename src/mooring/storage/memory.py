"""The memory driver: a dictionary and the list of changes since the last compaction; the reference for tests.

Rules kept here: every rule of `contract`, in the simplest code. A past state is computed from the present one by undoing the
changes since. No data outlives the process, so rule 2 (durability) and rule 9 (disk errors) do not apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from mooring.errors import StorageError
from mooring.storage.contract import (
    CompactedError,
    Entry,
    FutureRevisionError,
    KeyExistsError,
    Page,
    RevisionMismatchError,
    StoreCounters,
    StoredChange,
)
from mooring.storage.feed import INLINE_CHANGES, Feed
from mooring.storage.keyspace import check_key


class MemoryStorage:
    """Implements `contract.Storage` inside one process."""

    problem = ""
    alarm = ""
    refuses_writes = False

    def __init__(self) -> None:
        self.failed = asyncio.Event()
        self.counters = StoreCounters()
        self._entries: dict[str, Entry] = {}
        self._changes: list[StoredChange] = []  # one for each of the revisions _compacted + 1 .. _newest
        self._replaced: list[Entry | None] = []  # by each of those changes
        self._newest = 1
        self._compacted = 1
        self._is_open = False
        self._feed = Feed(self, self._newest)

    async def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._feed = Feed(self, self._newest)

    async def close(self) -> None:
        self._is_open = False
        self._feed.close()

    async def get(self, key: str, *, revision: int = 0) -> Entry | None:
        check_key(key)
        return self._state(revision).get(key)

    async def range(
        self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0, counted: bool = True
    ) -> Page:
        state = self._state(revision)
        keys = sorted(key for key in state if key.startswith(prefix) and key > after)
        taken = keys[:limit] if limit else keys
        remaining = len(keys) - len(taken)
        entries = tuple(state[key] for key in taken)
        return Page(entries, revision or self._newest, remaining > 0, remaining if counted else 0)

    async def create(self, key: str, value: bytes, *, ttl: int = 0) -> Entry:
        check_key(key)
        self._check_open()
        current = self._entries.get(key)
        if current is not None:
            raise KeyExistsError(current)
        entry = Entry(key, value, self._newest + 1, self._newest + 1)
        await self._commit(StoredChange(key, entry.revision, entry))
        return entry

    async def update(self, key: str, value: bytes, *, expected: int, ttl: int = 0) -> Entry:
        current = self._expect(key, expected)
        entry = Entry(key, value, self._newest + 1, current.created)
        await self._commit(StoredChange(key, entry.revision, entry))
        return entry

    async def delete(self, key: str, *, expected: int) -> int:
        self._expect(key, expected)
        change = StoredChange(key, self._newest + 1, None)
        await self._commit(change)
        return change.revision

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        self._check_open()
        return self._feed.watch(prefix, after)

    async def revision(self) -> int:
        self._check_open()
        return self._newest

    async def compacted(self) -> int:
        self._check_open()
        return self._compacted

    async def claim_compaction(self, revision: int) -> bool:
        return True

    async def verify(self) -> None:
        self._check_open()  # the memory of the process has nothing to compare it with

    async def compact(self, revision: int) -> None:
        self._check_open()
        if revision > self._newest:
            raise FutureRevisionError(self._newest)
        if revision > self._compacted:
            del self._changes[: revision - self._compacted]
            del self._replaced[: revision - self._compacted]
            self._compacted = revision

    async def advance(self, revision: int) -> None:
        self._check_open()
        if revision > self._newest:
            self._changes.clear()
            self._replaced.clear()
            self._newest = self._compacted = revision
            self._feed.skip_to(revision)
        await self.compact(revision)

    def read_now(self, after: int) -> Sequence[StoredChange]:
        """Return changes for `feed.Feed`."""
        if after < self._compacted:
            raise CompactedError(self._compacted)
        start = after - self._compacted
        return self._changes[start : start + INLINE_CHANGES]

    async def read(self, after: int) -> Sequence[StoredChange]:
        """Return changes for `feed.Feed`."""
        return self.read_now(after)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StorageError("the store is closed")

    def _expect(self, key: str, expected: int) -> Entry:
        check_key(key)
        self._check_open()
        current = self._entries.get(key)
        if current is None or current.revision != expected:
            raise RevisionMismatchError(current)
        return current

    async def _commit(self, change: StoredChange) -> None:
        self._newest = change.revision
        self._changes.append(change)
        self._replaced.append(self._entries.get(change.key))
        if change.entry is None:
            del self._entries[change.key]
        else:
            self._entries[change.key] = change.entry
        self._feed.publish((change,))
        await asyncio.sleep(0)  # watches run before the writer continues, as with the other drivers

    def _state(self, revision: int) -> dict[str, Entry]:
        self._check_open()
        if revision > self._newest:
            raise FutureRevisionError(self._newest)
        if not revision:
            return self._entries
        if revision < self._compacted:
            raise CompactedError(self._compacted)
        state = dict(self._entries)
        later = slice(revision - self._compacted, None)
        for change, replaced in zip(reversed(self._changes[later]), reversed(self._replaced[later]), strict=True):
            if replaced is None:
                del state[change.key]
            else:
                state[change.key] = replaced
        return state
