"""Feed of changes from one store to its watches within one process.

Rules kept here:
* Each watch has a position: the newest revision that it has delivered. It delivers every later change once, in revision order.
* A watch at the tip receives changes from memory, in the callback that publishes them. A watch that fell behind (it began in the
  past, its reader is slow, or other processes wrote more than is worth holding) reads the driver's log from its position until it
  is at the tip again. So memory is bounded however slow a reader is, and a reader too slow for compaction gets `CompactedError`.
* No change is skipped silently: a position advances only over the changes between, and a log with a hole is an error.
* A watch whose prefix has no part in the newest changes gets a progress notification.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from mooring.errors import StorageError
from mooring.storage.contract import StoredChange

MAX_PENDING_CHANGES = 4096
"""Changes that one watch may leave unread in memory, about a second of full write load. Beyond it the watch reads the log."""
MAX_PENDING_BYTES = 16 * 1024 * 1024
"""Bytes of values that one watch may leave unread in memory."""
INLINE_CHANGES = 64
"""Changes that are read on the loop thread, in less than 1 ms. A thread hop costs nearly as much, and without one a watch reaches
the tip of a log that is written without pause."""


class Log(Protocol):
    """The log of a driver, from which watches catch up. Both methods raise CompactedError when changes after `after` are gone."""

    def read_now(self, after: int) -> Sequence[StoredChange]:
        """Return the next changes after `after`, at most INLINE_CHANGES, read on the loop thread."""

    async def read(self, after: int) -> Sequence[StoredChange]:
        """Return the next changes after `after`, bounded in number and bytes, without blocking the loop."""


class Feed:
    """The watches of one store in one process. `revision` is the tip: the newest revision published."""

    def __init__(self, log: Log, revision: int) -> None:
        self.revision = revision
        self._log = log
        self._followers: set[_Follower] = set()
        self._closed = False

    @property
    def watched(self) -> bool:
        """True while there are watches."""
        return bool(self._followers)

    def publish(self, changes: Sequence[StoredChange]) -> None:
        """Deliver changes that follow the tip without a gap. Changes at or before the tip were delivered already and are left
        out."""
        fresh = [change for change in changes if change.revision > self.revision]
        if not fresh:
            return
        self.revision = fresh[-1].revision
        for follower in self._followers:
            follower.push(fresh)

    def skip_to(self, revision: int) -> None:
        """Move the tip over changes that are not in memory: watches read them from the log."""
        if revision > self.revision:
            self.revision = revision
            for follower in self._followers:
                if follower.position < revision:
                    follower.fall_behind()

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        """Yield batches of the changes after `after` to keys under `prefix`, until the feed closes."""
        # A fresh store is at revision 1: no change has it.
        follower = _Follower(prefix, max(after, 1))
        follower.behind = follower.position < self.revision
        follower.ended = self._closed
        self._followers.add(follower)
        try:
            while True:
                if follower.behind and not self._closed:
                    batch = await self._catch_up(follower)
                else:
                    batch = await follower.take()
                if batch:
                    yield batch
                elif self._closed:
                    return
        finally:
            self._followers.discard(follower)

    async def _catch_up(self, follower: _Follower) -> tuple[StoredChange, ...]:
        position = follower.position
        if self.revision - position <= INLINE_CHANGES:
            changes = self._log.read_now(position)
        else:
            changes = await self._log.read(position)
        # A position that jumped over a hole would skip its changes silently.
        if not changes or changes[0].revision != position + 1 or changes[-1].revision != position + len(changes):
            raise StorageError("the log of changes has a hole: restore the database from a backup")
        follower.position = changes[-1].revision
        # No await between reading the tip and joining it: the next published change is pushed.
        follower.behind = follower.position < self.revision
        return _matching(follower.prefix, changes)

    def close(self) -> None:
        """End every watch, after the changes that it has already received."""
        self._closed = True
        for follower in self._followers:
            follower.ended = True
            follower.wake()


def _matching(prefix: str, changes: Sequence[StoredChange]) -> tuple[StoredChange, ...]:
    """Return the changes under a prefix, and a progress notification when the last change is not among them."""
    matching = [change for change in changes if change.key.startswith(prefix)]
    if not matching or matching[-1] is not changes[-1]:
        matching.append(StoredChange.progress(changes[-1].revision))
    return tuple(matching)


class _Follower:
    """One watch: its position and, while it is at the tip, the changes that its reader has not taken."""

    __slots__ = ("_pending", "_pending_bytes", "_seen", "_waiter", "behind", "ended", "position", "prefix")

    def __init__(self, prefix: str, position: int) -> None:
        self.prefix = prefix
        self.position = position
        """Newest revision that was yielded."""
        self._seen = position
        """Newest revision that was pushed."""
        self.behind = False
        self.ended = False
        self._pending: list[StoredChange] = []
        self._pending_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    def push(self, changes: Sequence[StoredChange]) -> None:
        if self.behind:
            return
        prefix, position = self.prefix, self.position
        matching = [change for change in changes if change.key.startswith(prefix) and change.revision > position]
        self._seen = max(self._seen, changes[-1].revision)
        if matching:
            self._pending += matching
            self._pending_bytes += sum(len(change.entry.value) for change in matching if change.entry)
            # The reader is slow. It reads the log instead, so that it takes no more memory.
            if len(self._pending) > MAX_PENDING_CHANGES or self._pending_bytes > MAX_PENDING_BYTES:
                self.fall_behind()
        if self._seen > position:
            self.wake()

    def fall_behind(self) -> None:
        self.behind = True
        self._pending = []
        self._pending_bytes = 0
        self.wake()

    async def take(self) -> tuple[StoredChange, ...]:
        """Return the pushed changes, waiting for the first. The result is empty when the watch ended or fell behind meanwhile."""
        if not self._pending and self._seen <= self.position and not self.ended and not self.behind:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.behind:
            return ()
        if self._seen > self.position and (not self._pending or self._pending[-1].revision < self._seen):
            self._pending.append(StoredChange.progress(self._seen))
        batch = tuple(self._pending)
        self._pending = []
        self._pending_bytes = 0
        if batch:
            self.position = batch[-1].revision
        return batch

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
