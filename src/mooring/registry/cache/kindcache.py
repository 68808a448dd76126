"""Everything of one kind in memory: the objects in key order, the recent past, and who is watching.

Rules kept here:
* Order is that of the storage keys' UTF-8 bytes; Python compares text by code point, which is the same order.
* A list is made of references: nothing is decoded or copied to answer it.
* A write costs the same among 100 000 objects as among ten: keys are kept sorted in short runs (`sortedcontainers`).
* The past is bounded by count and by bytes. A watch that would need more of it is told to list again (410).
* Watches of one name are found by that name: thousands of agents watching their own object do not slow each other.
* A watcher whose sink raises is closed and reported; the others do not notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sortedcontainers import SortedDict

from mooring.api.kind import Kind
from mooring.errors import ExpiredError
from mooring.registry.cache.selection import Selection
from mooring.registry.cache.stored import SLICE_ITEMS, Event, Stored, Transition, slices

WINDOW_EVENTS = 8192
"""Recent changes kept per kind: a client that was away for a minute of 100 writes a second resumes without a new list."""
WINDOW_BYTES = 32 * 1024 * 1024
"""And never more than this, however large the objects (1.5 MiB each at most)."""

Sink = Callable[[Event], None]

log = logging.getLogger(__name__)


class Window:
    """The recent changes of one kind, oldest first."""

    def __init__(self, events: int = WINDOW_EVENTS, size: int = WINDOW_BYTES) -> None:
        self.floor = 0
        """Watches may start at this revision or later."""
        self._limit = events
        self._limit_size = size
        self._past: deque[Transition] = deque()
        self._size = 0

    def restart(self, revision: int) -> None:
        """Forget everything: the past before `revision` is unknown."""
        self._past.clear()
        self._size = 0
        self.floor = revision

    def append(self, transition: Transition) -> None:
        self._past.append(transition)
        self._size += transition.size
        while len(self._past) > self._limit or self._size > self._limit_size:
            dropped = self._past.popleft()
            self._size -= dropped.size
            self.floor = dropped.revision

    def after(self, revision: int) -> list[Transition]:
        """Every change after `revision`. Raises ExpiredError when some of them are forgotten."""
        if revision < self.floor:
            raise ExpiredError(f"too old resource version: {revision} ({self.floor})")
        found = []
        for transition in reversed(self._past):
            if transition.revision <= revision:
                break
            found.append(transition)
        found.reverse()
        return found


@dataclass(frozen=True, slots=True)
class Due:
    """Events of a watch that come before live ones: the present state, a bookmark that ends it, or changes of the past."""

    state: Sequence[Stored] = ()
    bookmark: bool = False
    changes: Sequence[Transition] = ()


Pause = Callable[[], Awaitable[None]]


async def give_way() -> None:
    """Let others have their turn of the event loop."""
    await asyncio.sleep(0)


class Watch:
    """One subscription: events reach its sink in revision order, each once, from `replay` until `close`.

    Before and while `replay` delivers the past, changes wait. They are references to what the window of the cache holds too, and
    bounded alike.
    """

    __slots__ = ("_cache", "_due", "_revision", "_selection", "_since", "_sink", "_waiting", "closed")

    def __init__(
        self,
        cache: KindCache,
        selection: Selection,
        since: int,
        sink: Sink,
        revision: Callable[[], int],
        due: Due = Due(),
    ) -> None:
        self._cache = cache
        self._selection = selection
        self._since = since
        self._sink = sink
        self._revision = revision
        self._due = due
        self._waiting: Window | None = Window()
        self._waiting.restart(since)
        self.closed = False

    async def replay(self, pause: Pause = give_way) -> None:
        """Deliver what is due, then what changed meanwhile, and go on live. `pause` is awaited between slices. Raises
        ExpiredError, and closes, when more changed meanwhile than is remembered."""
        due, self._due = self._due, Due()
        try:
            for run in slices(due.state):
                for stored in run:
                    if not self.closed and self._selection.matches(stored):
                        self.send(Event("ADDED", stored.kind.resource, stored.revision, stored))
                await pause()
            if due.bookmark and not self.closed:
                self.send(Event("BOOKMARK", self._selection.kind.resource, self._since, None, True))
            changes = due.changes
            while True:
                for place, transition in enumerate(changes, 1):
                    self._deliver(transition)
                    if not place % SLICE_ITEMS:
                        await pause()
                if not (changes := self._changed_meanwhile()):
                    break
        except BaseException:
            self.close()
            raise
        self._waiting = None

    def _changed_meanwhile(self) -> Sequence[Transition]:
        """Take the changes that wait. Raises ExpiredError."""
        waiting = self._waiting
        assert waiting is not None  # until the end of `replay`
        changes = waiting.after(self._since)
        if changes:
            self._since = changes[-1].revision
            waiting.restart(self._since)
        return changes

    def close(self) -> None:
        """No event reaches the sink after this. Idempotent."""
        if not self.closed:
            self.closed = True
            self._cache.unsubscribe(self)

    def bookmark(self, initial_end: bool = False) -> Event:
        """A BOOKMARK saying that everything up to now was delivered; the caller sends it when it likes."""
        return Event("BOOKMARK", self._selection.kind.resource, self._revision(), None, initial_end)

    @property
    def selection(self) -> Selection:
        return self._selection

    def offer(self, transition: Transition) -> None:
        """Deliver what `transition` means to this watcher, or let it wait for the end of `replay`."""
        if self.closed or transition.revision <= self._since:
            return
        if self._waiting is not None:
            self._waiting.append(transition)
        else:
            self._deliver(transition)

    def _deliver(self, transition: Transition) -> None:
        """7.7: entering a selector is ADDED, leaving it DELETED."""
        selection = self._selection
        previous, current = transition.previous, transition.current
        if selection.everything:
            event = transition.event(previous is not None, current is not None)
        else:
            event = transition.event(
                previous is not None and selection.matches(previous), current is not None and selection.matches(current)
            )
        if event is not None and not self.closed:
            self.send(event)

    def send(self, event: Event) -> None:
        try:
            self._sink(event)
        except Exception:  # one broken connection must not keep the event from the others, whatever it raises
            log.exception("a watcher of %s failed and was closed", self._cache.kind.resource.plural)
            self.close()


class KindCache:
    """The state of one kind as of the cache's revision."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.revision = 0
        """Revision of the last change of this kind."""
        self.window = Window()
        self._listed = 0
        self._by_key: Any = SortedDict()  # of Stored by key; the library has no types
        self._wide: dict[Watch, None] = {}
        self._named: dict[str, dict[Watch, None]] = {}

    # -- state ---------------------------------------------------------------------------------------------------

    def load(self, items: Iterable[tuple[str, Stored]], revision: int) -> None:
        """Replace everything by what a listing at `revision` found, given as key-ordered pairs."""
        self._by_key = SortedDict(items)
        self.revision = max([self.revision, *(item.revision for item in self._by_key.values())])
        self._listed = revision
        self.window.restart(revision)

    def state(self) -> dict[str, Stored]:
        """A copy of the state by key."""
        return dict(self._by_key)

    def change(self, key: str, current: Stored | None, revision: int) -> Transition | None:
        """Apply one write (None: a deletion); None when it changed nothing here."""
        previous: Stored | None = self._by_key.get(key)
        if current is not None:
            self._by_key[key] = current
        elif previous is not None:
            del self._by_key[key]
        else:
            return None
        self.revision = revision
        transition = Transition(revision, current, previous)
        self.window.append(transition)
        return transition

    # -- reading -------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Stored | None:
        found: Stored | None = self._by_key.get(key)
        return found

    def is_state_of(self, revision: int) -> bool:
        """Whether what is here is also exactly what was there at `revision` (which must have been applied)."""
        return revision >= self._listed and revision >= self.revision

    def within(self, namespace: str = "", after: str = "", limit: int = 0) -> Sequence[Stored]:
        """At most `limit` objects (0: all) in key order: of all namespaces or of one, and only those behind the key `after`."""
        first, end = self._bounds(namespace, after)
        keys = self._by_key.irange(first, end, inclusive=(first != after, False))
        return list(map(self._by_key.__getitem__, islice(keys, limit or None)))

    def count(self, namespace: str = "", after: str = "") -> int:
        """How many objects `within` finds without a limit."""
        first, end = self._bounds(namespace, after)
        start = self._by_key.bisect_right(first) if first == after else self._by_key.bisect_left(first)
        return max(0, int((self._by_key.bisect_left(end) if end else len(self._by_key)) - start))

    def _bounds(self, namespace: str, after: str) -> tuple[str, str | None]:
        """The key at which to begin, and the one before which to end."""
        if not namespace:
            return after, None
        prefix = self.kind.key_prefix(namespace)
        return max(prefix, after), prefix[:-1] + "0"  # the character after "/"

    # -- watching ------------------------------------------------------------------------------------------------

    def subscribe(self, watch: Watch) -> None:
        name = watch.selection.name
        (self._named.setdefault(name, {}) if name else self._wide)[watch] = None

    def unsubscribe(self, watch: Watch) -> None:
        name = watch.selection.name
        if not name:
            self._wide.pop(watch, None)
        elif (watches := self._named.get(name)) is not None:
            watches.pop(watch, None)
            if not watches:
                del self._named[name]

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._wide) + sum(len(watches) for watches in self._named.values())

    def publish(self, transition: Transition) -> None:
        """Offer one change to everybody it may concern."""
        for watch in tuple(self._wide):
            watch.offer(transition)
        named = self._named.get(transition.name)
        if named:
            for watch in tuple(named):
                watch.offer(transition)
