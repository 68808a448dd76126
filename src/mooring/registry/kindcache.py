"""Everything of one kind in memory: the objects in key order, the recent past, and who is watching.

Rules kept here:
* Order is that of the storage keys' UTF-8 bytes; Python compares text by code point, which is the same order.
* A list is made of references: nothing is decoded or copied to answer it.
* A write costs the same among 100 000 objects as among ten: keys are kept sorted in short runs (`sortedcontainers`).
* The past is bounded by count and by bytes. A watch that would need more of it is told to list again (410, 7.7).
* Watches of one name are found by that name: thousands of agents watching their own object do not slow each other.
* A watcher whose sink raises is closed and reported; the others do not notice.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from sortedcontainers import SortedDict

from mooring.errors import ExpiredError
from mooring.kinds.kind import Kind
from mooring.registry.scope import Scope
from mooring.registry.stored import Event, Stored, Transition

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


class Watch:
    """One subscription: events reach its sink in revision order, each once, until `close`."""

    __slots__ = ("_cache", "_revision", "_scope", "_since", "_sink", "closed")

    def __init__(self, cache: KindCache, scope: Scope, since: int, sink: Sink, revision: Callable[[], int]) -> None:
        self._cache = cache
        self._scope = scope
        self._since = since
        self._sink = sink
        self._revision = revision
        self.closed = False

    def close(self) -> None:
        """No event reaches the sink after this. Idempotent."""
        if not self.closed:
            self.closed = True
            self._cache.unsubscribe(self)

    def bookmark(self, initial_end: bool = False) -> Event:
        """A BOOKMARK saying that everything up to now was delivered; the caller sends it when it likes."""
        return Event("BOOKMARK", self._scope.kind.resource, self._revision(), None, initial_end)

    @property
    def scope(self) -> Scope:
        return self._scope

    def offer(self, transition: Transition) -> None:
        """Deliver what `transition` means to this watcher (7.7: entering a selector is ADDED, leaving it DELETED)."""
        if self.closed or transition.revision <= self._since:
            return
        scope = self._scope
        previous, current = transition.previous, transition.current
        if scope.everything:
            event = transition.event(previous is not None, current is not None)
        else:
            event = transition.event(
                previous is not None and scope.matches(previous), current is not None and scope.matches(current)
            )
        if event is not None:
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
        name = watch.scope.name
        (self._named.setdefault(name, {}) if name else self._wide)[watch] = None

    def unsubscribe(self, watch: Watch) -> None:
        name = watch.scope.name
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
