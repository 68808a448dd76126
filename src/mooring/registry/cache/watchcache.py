"""The watch cache: one watch of the store feeds the in-memory state of every kind, its views and its watches.

Rules kept here:
* A batch of changes is applied whole, then published. The receiver of an event already sees the state after it, and views and
  watches never disagree.
* `revision` is the newest revision up to which every change is applied. `reach` is the barrier that makes a cached read as fresh as
  a linearizable one.
* A broken watch of the store is resumed where it ended. When the store has compacted that revision, the cache lists again and
  publishes the difference as events. Meanwhile `ready` is False. No change is ever skipped silently.
* Bytes that are not an object are treated as absent and logged, so that one bad key cannot stop the server.
* An object that no key decrypts keeps its last readable state in views, and is listed in `unreadable`: readers refuse it, because
  an object that seems to be absent would have its dependents deleted. `relist` reads it again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mooring.api.kind import Kind
from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.registry.cache.events import Transition
from mooring.registry.cache.foreignkeys import ForeignKeys
from mooring.registry.cache.keys import Keys
from mooring.registry.cache.kindcache import KindCache
from mooring.registry.cache.stored import Stored
from mooring.registry.longwork import LONG_BYTES
from mooring.storage.contract import Change, CompactedError, Entry, Storage, UnreadableEntry

ROOT = "/registry/"
"""Prefix of all storage keys."""
RETRY_FIRST = 0.1
RETRY_LAST = 5.0
"""Shortest and longest wait in seconds between attempts to read a store that fails."""

LOAD_ENTRIES = 10_000
"""Entries read at a time, so that a store that is read whole is in memory once, not twice: freed memory stays with the process."""

LOAD_SLICE = 500
"""Entries decoded in one turn of the event loop while the store is read: 40 ms for objects in kube-apiserver's protobuf."""
REPORTED_KEYS = 10
"""Unreadable objects of one kind whose keys are logged."""
UNREADABLE_LOGGED = 20
"""Objects that the log names when many cannot be decrypted."""

log = logging.getLogger(__name__)

State = dict[str, dict[str, Stored]]
"""All objects of a cluster: by plural, then by key in key order."""


class WatchCache:
    """In-memory state of all stored kinds, fed by one watch of the store."""

    def __init__(self, storage: Storage, kinds: Sequence[Kind], clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._keys = Keys(tuple(kinds))
        self.foreign = ForeignKeys()
        self.kinds = {kind.resource.plural: KindCache(kind) for kind in kinds if kind.stored}
        self.revision = 0
        self.ready = False
        self.unreadable: dict[str, str] = {}
        """Storage keys of objects that no configured key decrypts, each with the reason."""
        self._expected: dict[str, bytes] = {}
        self._reported: Counter[str] = Counter()
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._tickets = 0
        self._follower: asyncio.Task[None] | None = None

    # -- start and stop ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read everything, then follow. Raises StorageError when the store cannot be read."""
        while not self.ready:
            try:
                self._resync(*await self._load())
                self.ready = True
            except CompactedError:  # by another process, while the pages were read
                log.info("the store was compacted while it was read; reading it again")
        self._follower = asyncio.get_running_loop().create_task(self._follow(), name="watch cache")

    async def stop(self) -> None:
        """Stop following, and release all waiting calls. Idempotent."""
        self.ready = False
        await self._stop_following()
        self._release()

    async def _stop_following(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    async def relist(self) -> None:
        """Read everything again, if an object could not be decrypted before and the cache is running."""
        if self.unreadable and self._follower is not None:
            await self._stop_following()
            self.ready = False
            self._release()
            self._follower = asyncio.get_running_loop().create_task(self._follow(listing=True), name="watch cache")

    async def _follow(self, listing: bool = False) -> None:
        if listing:
            await self._recover(listing)
            self.ready = True
        while True:
            listing = False
            try:
                async for changes in self._storage.watch(ROOT, after=self.revision):
                    self.apply(changes)
                log.warning("the watch of the store ended; resuming it")
            except CompactedError:
                log.warning("the store has compacted changes that the watch cache had not seen; listing again")
                listing = True
            except StorageError as error:
                log.warning("the watch of the store broke: %s", error)
            except Exception:  # a cache that stopped silently would serve stale objects for ever
                log.exception("the watch cache failed; listing again")
                listing = True
            self.ready = False
            self._release()
            await self._recover(listing)
            self.ready = True

    async def _recover(self, listing: bool) -> None:
        """Return once the store answers again, with `listing` once its whole state was loaded."""
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

    @property
    def pending_writes(self) -> int:
        """Number of own writes that have not arrived as changes yet."""
        return len(self._expected)

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a revision."""
        return len(self._waiting)

    @contextmanager
    def expecting(self, key: str, value: bytes) -> Iterator[None]:
        """Write `value` in this context: when it arrives as a change, its shape is known and is not checked again."""
        self._expected[key] = value
        try:
            yield
        except BaseException:
            self._expected.pop(key, None)
            raise

    # -- applying changes -------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply a batch of whole revisions, then publish it."""
        before = self.revision
        transitions: list[tuple[KindCache, Transition]] = []
        for change in changes:
            if change.revision <= before:
                continue
            self.revision = change.revision
            if change.is_progress:
                continue
            place = self._keys.parse(change.key)
            if place is None:
                (self.foreign.add if change.entry is not None else self.foreign.discard)(change.key)
                continue
            cache = self.kinds[place[0].resource.plural]
            expected = self._expected.pop(change.key, None)
            if isinstance(change.entry, UnreadableEntry):
                self._replace_unreadable({**self.unreadable, change.key: change.entry.problem})
                self.foreign.add(change.key)
                cache.revision = change.revision
                continue
            if self.unreadable:
                self.unreadable.pop(change.key, None)
            is_whole = change.entry is not None and change.entry.value == expected
            stored = self.stored(change.entry, is_whole)
            is_unreadable = stored is None and change.entry is not None
            (self.foreign.add if is_unreadable else self.foreign.discard)(change.key)
            transition = cache.change(change.key, stored, change.revision)
            if transition is not None:
                transitions.append((cache, transition))
        self._publish(transitions)

    async def _load(self) -> tuple[State, Mapping[str, str], ForeignKeys, int]:
        """Read all objects at one revision, the reasons of those that cannot be decrypted, and the foreign keys.

        Raises StorageError, and CompactedError when that revision is compacted meanwhile.
        """
        found: State = {plural: {} for plural in self.kinds}
        foreign = ForeignKeys()
        unreadable: dict[str, str] = {}
        after, revision = "", 0
        while True:
            page = await self._storage.range(ROOT, after=after, limit=LOAD_ENTRIES, revision=revision, counted=False)
            for place, entry in enumerate(page.entries, 1):
                if isinstance(entry, UnreadableEntry):
                    unreadable[entry.key] = entry.problem
                    foreign.add(entry.key)
                    continue
                stored = self.stored(entry)
                if stored is not None:
                    found[stored.kind.resource.plural][entry.key] = stored
                else:
                    foreign.add(entry.key)
                if not place % LOAD_SLICE:
                    await asyncio.sleep(0)
            if not page.more:
                return found, unreadable, foreign, page.revision
            after, revision = page.entries[-1].key, page.revision

    def _resync(self, found: State, unreadable: Mapping[str, str], foreign: ForeignKeys, revision: int) -> None:
        """Replace the whole state, and publish its differences from the present one as events."""
        self._expected.clear()
        self.foreign = foreign
        self._replace_unreadable(unreadable)
        first = not self.revision
        transitions: list[tuple[KindCache, Transition]] = []
        for plural, cache in self.kinds.items():
            old, new = cache.state(), found[plural]
            new.update((key, last) for key in self.unreadable if (last := old.get(key)) is not None)
            if not first:
                transitions += [
                    (cache, Transition(stored.revision, stored, old.get(key)))
                    for key, stored in new.items()
                    if key not in old or old[key].revision != stored.revision
                ]
                gone = [(cache, Transition(revision, None, old[key])) for key in old if key not in new]
                if gone:
                    cache.revision = revision
                transitions += gone
            cache.load(new.items(), revision)
        self.revision = revision
        transitions.sort(key=lambda item: item[1].revision)
        self._publish(transitions)

    def stored(self, entry: Entry | None, is_whole: bool = False) -> Stored | None:
        """Return the object of an entry; None without an entry, for a kind that is not served, and for bytes that are not an
        object.

        `is_whole`: this process has just encoded it.
        """
        if entry is None or isinstance(entry, UnreadableEntry):
            return None
        try:
            return self._keys.stored(entry, is_whole)
        except StorageError as error:
            self._report(entry.key, error)
            return None

    def _report(self, key: str, error: StorageError) -> None:
        """Log an object that cannot be read: the first ones of each kind by key, so that many do not fill the log."""
        plural = key.removeprefix(ROOT).partition("/")[0]
        self._reported[plural] += 1
        if self._reported[plural] <= REPORTED_KEYS:
            log.error("%s: %s", key, error)
        if self._reported[plural] == REPORTED_KEYS:
            log.error("further objects below %s%s/ that cannot be read are not logged", ROOT, plural)

    def _replace_unreadable(self, unreadable: Mapping[str, str]) -> None:
        """Keep the reasons; log the first few of the new ones, since a missing key makes thousands of objects unreadable."""
        new = [key for key in unreadable if key not in self.unreadable]
        for key in new[:UNREADABLE_LOGGED]:
            log.error("%s cannot be decrypted: %s", key, unreadable[key])
        if len(new) > UNREADABLE_LOGGED:
            log.error("%d more objects cannot be decrypted", len(new) - UNREADABLE_LOGGED)
        self.unreadable = dict(unreadable)

    def _publish(self, transitions: Sequence[tuple[KindCache, Transition]]) -> None:
        while self._waiting and self._waiting[0][0] <= self.revision:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(True)
        for cache, transition in transitions:
            cache.publish(transition)
            previous = transition.previous
            if previous is not None and len(previous.raw) > LONG_BYTES:
                previous.forget()  # else garbage collections visit the decoded forms of all its states

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
        """Wait as `reach` does, at most `seconds`; then return False."""
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
            if self.revision < revision:  # a client may name any revision: one that never comes must not stay
                self._waiting = [item for item in self._waiting if item[2] is not ticket]
                heapq.heapify(self._waiting)
        return self.revision >= revision
