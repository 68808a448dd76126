"""How the changes of one store reach its watches, for drivers that learn of them in this process.

Rules kept here:
* Each watch has a position: the newest revision it has seen. It gets every later change once, in revision order.
* A watch at the tip is fed from memory, in the very callback that publishes. One that fell behind (it began in the past, its
  reader is slow, or others wrote more than is worth carrying) reads the driver's log from its position until it is at the tip
  again. So memory is bounded however slow a reader is, and a reader too slow for compaction is told so by `CompactedError`.
* Nothing is skipped silently: there is no way from one position to the next except through the changes between, and a log
  with a hole is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from mooring.errors import StorageError
from mooring.storage.contract import Change

HELD_CHANGES = 4096
"""Changes one watch may leave unread in memory; beyond it, it reads the log again. About a second of full write load."""
HELD_BYTES = 16 * 1024 * 1024
"""The same bound in bytes of values, so that large objects count for what they are."""
INLINE_CHANGES = 64
"""A gap this small is read on the loop thread (under a millisecond): a thread hop costs nearly as much, and ending inline is what
lets a watch reach the tip of a log that is being written without pause."""


class Log(Protocol):
    """What a driver offers for catching up. Both methods raise CompactedError when changes after `after` are gone."""

    def read_now(self, after: int) -> Sequence[Change]:
        """The next changes after `after`, at most INLINE_CHANGES, read on the loop thread."""

    async def read(self, after: int) -> Sequence[Change]:
        """The next changes after `after`, bounded in number and bytes, without holding the loop up."""


class Feed:
    """The watches of one store in one process. `revision` is the tip: the newest revision published."""

    def __init__(self, log: Log, revision: int) -> None:
        self.revision = revision
        self._log = log
        self._followers: set[_Follower] = set()
        self._closed = False

    @property
    def watched(self) -> bool:
        """Whether anybody would hear of a change."""
        return bool(self._followers)

    def publish(self, changes: Sequence[Change]) -> None:
        """Feed changes that follow the tip without a gap; those at or before the tip were fed already and are left out."""
        fresh = [change for change in changes if change.revision > self.revision]
        if not fresh:
            return
        self.revision = fresh[-1].revision
        for follower in self._followers:
            follower.push(fresh)

    def skip_to(self, revision: int) -> None:
        """Move the tip over changes nobody has in memory: watches read them from the log themselves."""
        if revision > self.revision:
            self.revision = revision
            for follower in self._followers:
                if follower.position < revision:
                    follower.fall_behind()

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[Change, ...]]:
        """Batches of the changes after `after` to keys under `prefix`, until the feed closes."""
        follower = _Follower(prefix, max(after, 1))  # a fresh store is at revision 1: no change ever had it
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

    async def _catch_up(self, follower: _Follower) -> tuple[Change, ...]:
        position = follower.position
        if self.revision - position <= INLINE_CHANGES:
            changes = self._log.read_now(position)
        else:
            changes = await self._log.read(position)
        if not changes or changes[0].revision != position + 1 or changes[-1].revision != position + len(changes):
            raise StorageError("the log of changes has a hole: restore the database from a backup")
        follower.position = changes[-1].revision
        # No await between looking at the tip and joining it: whatever is published next is pushed.
        follower.behind = follower.position < self.revision
        return tuple(change for change in changes if change.key.startswith(follower.prefix))

    def close(self) -> None:
        """End every watch, after what it was fed already."""
        self._closed = True
        for follower in self._followers:
            follower.ended = True
            follower.wake()


class _Follower:
    """One watch: its position and, while it is at the tip, what it has not taken yet."""

    __slots__ = ("_held", "_held_bytes", "_waiter", "behind", "ended", "position", "prefix")

    def __init__(self, prefix: str, position: int) -> None:
        self.prefix = prefix
        self.position = position
        self.behind = False
        self.ended = False
        self._held: list[Change] = []
        self._held_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    def push(self, changes: Sequence[Change]) -> None:
        if self.behind:
            return
        prefix, position = self.prefix, self.position
        matching = [change for change in changes if change.key.startswith(prefix) and change.revision > position]
        if matching:
            self._held += matching
            self._held_bytes += sum(len(change.entry.value) for change in matching if change.entry)
            if len(self._held) > HELD_CHANGES or self._held_bytes > HELD_BYTES:
                self.fall_behind()
            self.wake()
        elif not self._held:
            self.position = max(position, changes[-1].revision)

    def fall_behind(self) -> None:
        self.behind = True
        self._held = []
        self._held_bytes = 0
        self.wake()

    async def take(self) -> tuple[Change, ...]:
        """What was pushed, waiting for some; nothing when woken for another reason."""
        if not self._held and not self.ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        batch = tuple(self._held)
        self._held = []
        self._held_bytes = 0
        if batch:
            self.position = batch[-1].revision
        return batch

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
