"""The watch cache: one storage watch feeds the in-memory state of every kind, its views and its watchers.

Rules kept here:
* Whole batches are applied, then told: whoever is called about an event already sees the state after it, and views and
  watchers never disagree.
* `revision` is the newest revision applied, of whatever kind; `reach` is the barrier that makes a cached read as good as a
  linearizable one (design, storage contract 7).
* A broken watch is taken up where it ended; when the store has forgotten that place, the cache lists again and tells the
  difference as events. Meanwhile `ready` is False. Nothing is ever skipped silently.
* Bytes that are no object are treated as absent and reported, so that one bad key cannot stop the plane.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mooring.api.kind import Kind
from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.registry.cache.kindcache import KindCache
from mooring.registry.cache.stored import Keys, Stored, Transition
from mooring.storage.contract import Change, CompactedError, Entry, Storage

ROOT = "/registry/"
RETRY_FIRST = 0.1
RETRY_LAST = 5.0
"""Back-off between attempts to read a store that is in trouble: quick for a hiccup, never busy."""

LOAD_ENTRIES = 10_000
"""Entries read at a time: a store that is read whole is in memory once, not twice, and memory once taken is not given back."""

log = logging.getLogger(__name__)

State = dict[str, dict[str, Stored]]
"""All objects of a cluster: by plural, then by key in key order."""


class WatchCache:
    """In-memory state of all stored kinds."""

    def __init__(self, storage: Storage, kinds: Sequence[Kind], clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._keys = Keys(tuple(kinds))
        self.kinds = {kind.resource.plural: KindCache(kind) for kind in kinds if kind.stored}
        self.revision = 0
        self.ready = False
        self._expected: dict[str, bytes] = {}
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._tickets = 0
        self._follower: asyncio.Task[None] | None = None

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read everything, then follow. Raises StorageError when the store cannot be read."""
        while not self.ready:
            try:
                self._resync(*await self._load())
                self.ready = True
            except CompactedError:  # by another process, between two pages
                log.info("the store was compacted while it was read; reading it again")
        self._follower = asyncio.get_running_loop().create_task(self._follow(), name="watch cache")

    async def stop(self) -> None:
        """Stop following and release everybody who waits. Idempotent."""
        follower, self._follower = self._follower, None
        self.ready = False
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        self._release()

    async def _follow(self) -> None:
        while True:
            listing = False
            try:
                async for changes in self._storage.watch(ROOT, after=self.revision):
                    self.apply(changes)
                log.warning("the watch of the store ended; taking it up again")
            except CompactedError:
                log.warning("the store has compacted what the watch cache had not seen; listing again")
                listing = True
            except StorageError as error:
                log.warning("the watch of the store broke: %s", error)
            except Exception:  # a cache that dies silently would serve stale answers for ever
                log.exception("the watch cache failed; listing again")
                listing = True
            self.ready = False
            self._release()
            await self._recover(listing)
            self.ready = True

    async def _recover(self, listing: bool) -> None:
        """Return once the store answers again (and, if `listing`, once its whole state was taken over)."""
        wait = RETRY_FIRST
        while True:
            await self._clock.sleep(wait)
            wait = min(wait * 2, RETRY_LAST)
            try:
                if listing:
                    self._resync(*await self._load())
                else:
                    await self._storage.revision()
                return
            except StorageError as error:
                log.warning("the store cannot be read: %s", error)

    @contextmanager
    def expecting(self, key: str, value: bytes) -> Iterator[None]:
        """Write `value` inside: when it arrives as a change, its shape is known to be right and is not looked at again."""
        self._expected[key] = value
        try:
            yield
        except BaseException:
            self._expected.pop(key, None)
            raise

    # -- taking changes over -------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change]) -> None:
        """Take over a batch of whole revisions, then tell everybody."""
        before = self.revision
        told: list[tuple[KindCache, Transition]] = []
        for change in changes:
            if change.revision <= before:
                continue
            self.revision = change.revision
            place = self._keys.parse(change.key)
            if place is None:
                continue
            cache = self.kinds[place[0].resource.plural]
            expected = self._expected.pop(change.key, None)
            is_ours = change.entry is not None and change.entry.value == expected
            transition = cache.change(change.key, self.stored(change.entry, is_ours), change.revision)
            if transition is not None:
                told.append((cache, transition))
        self._tell(told)

    async def _load(self) -> tuple[State, int]:
        """Read all objects as of one revision. Raises StorageError, CompactedError when that revision is forgotten meanwhile."""
        found: State = {plural: {} for plural in self.kinds}
        after, revision = "", 0
        while True:
            page = await self._storage.range(ROOT, after=after, limit=LOAD_ENTRIES, revision=revision)
            for entry in page.entries:
                stored = self.stored(entry)
                if stored is not None:
                    found[stored.kind.resource.plural][entry.key] = stored
            if not page.more:
                return found, page.revision
            after, revision = page.entries[-1].key, page.revision

    def _resync(self, found: State, revision: int) -> None:
        """Take over a whole state; its differences from the present one become events."""
        self._expected.clear()
        first = not self.revision
        told: list[tuple[KindCache, Transition]] = []
        for plural, cache in self.kinds.items():
            old, new = cache.state(), found[plural]
            if not first:
                told += [
                    (cache, Transition(stored.revision, stored, old.get(key)))
                    for key, stored in new.items()
                    if key not in old or old[key].revision != stored.revision
                ]
                gone = [(cache, Transition(revision, None, old[key])) for key in old if key not in new]
                if gone:
                    cache.revision = revision
                told += gone
            cache.load(new.items(), revision)
        self.revision = revision
        told.sort(key=lambda item: item[1].revision)
        self._tell(told)

    def stored(self, entry: Entry | None, is_ours: bool = False) -> Stored | None:
        """The object of an entry; None for none, for a kind not served, and for bytes that are no object (reported).

        `is_ours`: this process has just encoded it.
        """
        if entry is None:
            return None
        try:
            return self._keys.stored(entry, is_ours)
        except StorageError as error:
            log.error("%s: %s", entry.key, error)
            return None

    def _tell(self, told: Sequence[tuple[KindCache, Transition]]) -> None:
        while self._waiting and self._waiting[0][0] <= self.revision:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(True)
        for cache, transition in told:
            cache.publish(transition)

    # -- waiting -------------------------------------------------------------------------------------------------

    def _ticket(self, revision: int) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._tickets += 1
        heapq.heappush(self._waiting, (revision, self._tickets, future))
        return future

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_result(False)

    async def reach(self, revision: int) -> bool:
        """Return True once `revision` was applied; False when the watch broke first."""
        if self.revision >= revision:
            return True
        return self.ready and await self._ticket(revision)

    async def reach_within(self, revision: int, seconds: float) -> bool:
        """Like `reach`, also False when it takes longer than `seconds`."""
        if self.revision >= revision:
            return True
        if not self.ready:
            return False
        ticket = self._ticket(revision)
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        either: set[asyncio.Future[Any]] = {ticket, timer}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            ticket.cancel()
            if self.revision < revision:  # a caller may name any revision: what will never come must not pile up
                self._waiting = [item for item in self._waiting if item[2] is not ticket]
                heapq.heapify(self._waiting)
        return self.revision >= revision
