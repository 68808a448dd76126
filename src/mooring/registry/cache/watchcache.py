"""The watch cache: one watch of the store feeds the in-memory state of every kind, its views and its watches.

Rules kept here:
* A batch of changes is applied completely, then published.
* `revision` is the newest revision up to which every change is applied. `reach` is the barrier that makes a cached read as fresh as
  a linearizable one.
* A broken watch of the store is resumed where it ended. When the store has compacted that revision, the cache lists again and
  publishes the difference as events. Meanwhile `ready` is False. No change is ever skipped silently.
* An object that no key decrypts, and bytes that are not an object, stop nothing. They are in `unreadable` of their kind: readers
  refuse them, and views have them as absent, with the problem. `relist` reads them again.
* A state that was read once stays readable while the store has no newer one.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mooring.api.kind import Kind
from mooring.clock import Clock, doubling
from mooring.errors import StorageError, UnreadableObjectError
from mooring.registry.cache.events import Stored, Transition
from mooring.registry.cache.keys import ForeignKeys, Keys
from mooring.registry.cache.kindcache import KindCache
from mooring.registry.cache.views import ViewAge
from mooring.registry.offload import LONG_BYTES
from mooring.storage.contract import CompactedError, Entry, Storage, StoredChange, UnreadableEntry

ROOT = "/registry/"
"""Prefix of all storage keys."""
RETRY_FIRST = 0.1
RETRY_LAST = 5.0
"""Shortest and longest wait in seconds between attempts to read a store that fails."""

LOAD_ENTRIES = 10_000
"""Entries read at a time, so that a store that is read whole is in memory once, not twice: freed memory stays with the process."""

LOAD_SLICE = 500
"""Entries decoded in one turn of the event loop while the store is read: 40 ms for objects in kube-apiserver's protobuf."""
UNREADABLE_LOGGED = 20
"""Objects that the log names when many cannot be read: a missing key makes thousands of them unreadable."""

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
        self.age = ViewAge(clock)
        self.ready = False
        self._is_relist_due = False
        self._expected: dict[str, bytes] = {}
        self._reported: set[str] = set()
        self._on_loss: list[Callable[[], None]] = []
        self._on_change: list[Callable[[Transition], None]] = []
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._tickets = 0
        self._follower: asyncio.Task[None] | None = None

    @property
    def is_late(self) -> bool:
        """True when the views are too old to judge by: `RegistryReader.fresh` makes them younger."""
        return self.age.is_over

    # -- start and stop ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read everything, then follow. Raises StorageError when the store cannot be read."""
        while not self.ready:
            self._is_relist_due = False
            try:
                self._resync(*await self._load())
                self.ready = not (self._is_relist_due and self.unreadable)
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
        """Read everything again, if an object could not be decrypted before. A start that is reading does so at its end."""
        self._is_relist_due = True
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
                # Resumed after the last applied revision, so that no change is skipped.
                async for changes in self._storage.watch(ROOT, after=self.revision):
                    self.apply(changes)
                log.warning("the watch of the store ended; resuming it")
            except CompactedError:
                log.warning("the store has compacted changes that the watch cache had not seen; listing again")
                listing = True
            except StorageError as error:
                log.warning("the watch of the store broke: %s", error)
            except Exception:
                # A cache that stopped silently would serve stale objects for ever.
                log.exception("the watch cache failed; listing again")
                listing = True
            self.ready = False
            # Waiting requests read the store itself: the cache may be behind for long.
            self._release()
            await self._recover(listing)
            self.ready = True

    async def _recover(self, listing: bool) -> None:
        """Return once the store answers again, with `listing` once its whole state was loaded."""
        for pause in doubling(RETRY_FIRST, RETRY_LAST):
            await self._clock.sleep(pause)
            try:
                if listing:
                    self._resync(*await self._load())
                else:
                    await self._storage.revision()
                return
            except StorageError as error:
                log.warning("the store cannot be read: %s", error)

    @property
    def unreadable(self) -> dict[str, str]:
        """Storage keys of objects that cannot be decrypted or decoded, each with the reason."""
        return {key: problem for cache in self.kinds.values() for key, problem in cache.unreadable.items()}

    def on_loss(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each write that cannot be read, of which watches have no event. Return what ends that."""
        self._on_loss.append(callback)
        return lambda: self._on_loss.remove(callback)

    def on_change(self, callback: Callable[[Transition], None]) -> Callable[[], None]:
        """Call `callback` with each write of an object that can be read, once views have it. Return what ends that."""
        self._on_change.append(callback)
        return lambda: self._on_change.remove(callback)

    def _lost(self) -> None:
        for callback in tuple(self._on_loss):
            callback()

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

    def apply(self, changes: Sequence[StoredChange]) -> None:
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
            stored: Stored | None = None
            if change.entry is not None:
                try:
                    stored = self.read(change.entry, change.entry.value == expected)
                except StorageError as error:
                    # The object cannot be read. The other changes are applied: one such object must not stop the cache.
                    cache.lose(change.key, str(error), change.revision)
                    self._report({change.key: str(error)})
                    self.foreign.add(change.key)
                    self._lost()
                    continue
            self.foreign.discard(change.key)
            self._reported.discard(change.key)
            transition = cache.change(change.key, stored, change.revision)
            if transition is not None:
                transitions.append((cache, transition))
        # Published after the complete batch: the receiver of an event sees the state after it, in views and watches.
        self._publish(transitions)

    async def _load(self) -> tuple[State, Mapping[str, str], ForeignKeys, int]:
        """Read all objects at one revision, the reasons of those that cannot be read, and the foreign keys.

        Raises StorageError, and CompactedError when that revision is compacted meanwhile.
        """
        found: State = {plural: {} for plural in self.kinds}
        foreign = ForeignKeys()
        unreadable: dict[str, str] = {}
        after, revision = "", 0
        while True:
            page = await self._storage.range(ROOT, after=after, limit=LOAD_ENTRIES, revision=revision, counted=False)
            for place, entry in enumerate(page.entries, 1):
                stored = None
                try:
                    # A state that was read once stays readable while the store has no newer one.
                    stored = self._known(entry) or self.read(entry)
                except StorageError as error:
                    unreadable[entry.key] = str(error)
                if stored is not None:
                    found[stored.kind.resource.plural][entry.key] = stored
                else:
                    foreign.add(entry.key)
                if not place % LOAD_SLICE:
                    await asyncio.sleep(0)
            if not page.more:
                return found, unreadable, foreign, page.revision
            # The revision of the first page: all objects are read at one revision.
            after, revision = page.entries[-1].key, page.revision

    def _resync(self, found: State, unreadable: Mapping[str, str], foreign: ForeignKeys, revision: int) -> None:
        """Replace the whole state, and publish its differences from the present one as events."""
        self._expected.clear()
        self.foreign = foreign
        self._reported.intersection_update(unreadable)
        self._report(unreadable)
        first = not self.revision
        transitions: list[tuple[KindCache, Transition]] = []
        for plural, cache in self.kinds.items():
            old, new = cache.state(), found[plural]
            lost = {key: problem for key, problem in unreadable.items() if self._plural(key) == plural}
            new.update((key, last) for key in lost if (last := old.get(key)) is not None)
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
            cache.load(sorted(new.items()) if lost else new.items(), revision)
            if lost.keys() != cache.unreadable.keys():
                cache.revision = revision
                cache.relists += 1
            cache.unreadable = lost
        self.revision = revision
        # The kinds were compared one after another. Receivers get the events of all kinds in order of revision.
        transitions.sort(key=lambda item: item[1].revision)
        self._publish(transitions)
        if unreadable:
            self._lost()

    def stored(self, entry: Entry | None, is_whole: bool = False) -> Stored | None:
        """Return the object of an entry; None without an entry, for a kind that is not served, and for bytes that are not an
        object.

        `is_whole`: this process has just encoded it.
        """
        try:
            return self.read(entry, is_whole) if entry is not None else None
        except StorageError:
            return None

    def read(self, entry: Entry, is_whole: bool = False) -> Stored | None:
        """Return the object of an entry; None for a kind that is not served. Raises StorageError for bytes that are not an object.

        `is_whole`: this process has just encoded it.
        """
        if isinstance(entry, UnreadableEntry):
            raise UnreadableObjectError(entry.problem)
        return self._keys.stored(entry, is_whole)

    def problem(self, entry: Entry) -> str:
        """Return why an entry cannot be read, or ""."""
        try:
            self.read(entry)
        except StorageError as error:
            return str(error)
        return ""

    def _known(self, entry: Entry) -> Stored | None:
        """Return the state that the cache has of this very revision, for an entry that cannot be read now."""
        if not isinstance(entry, UnreadableEntry) or (plural := self._plural(entry.key)) is None:
            return None
        cache = self.kinds[plural]
        known = cache.get(entry.key)
        return known if known is not None and known.revision == entry.revision else None

    def _plural(self, key: str) -> str | None:
        place = self._keys.parse(key)
        return place[0].resource.plural if place is not None else None

    def _report(self, unreadable: Mapping[str, str]) -> None:
        """Log objects that cannot be read: each once, and of many only the first few."""
        new = [key for key in unreadable if key not in self._reported]
        room = max(0, UNREADABLE_LOGGED - len(self._reported))
        for key in new[:room]:
            log.error("%s cannot be read: %s", key, unreadable[key])
        if room and len(new) > room:
            log.error("%d more objects cannot be read", len(new) - room)
        self._reported.update(new)

    def _publish(self, transitions: Sequence[tuple[KindCache, Transition]]) -> None:
        while self._waiting and self._waiting[0][0] <= self.revision:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(True)
        for cache, transition in transitions:
            cache.publish(transition)
            for callback in self._on_change:
                callback(transition)
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
            # A client may name any revision. A ticket for one that never comes must not stay in the queue.
            if self.revision < revision:
                self._waiting = [item for item in self._waiting if item[2] is not ticket]
                heapq.heapify(self._waiting)
        return self.revision >= revision
