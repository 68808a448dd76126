"""Cache of one kind: its objects in key order, its recent changes and watches; selections and slices of long lists."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sortedcontainers import SortedDict

from mooring.api.kind import Kind
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.selectors import NAME, NAMESPACE, FieldSelector, LabelSelector, check_field_labels
from mooring.errors import ExpiredError
from mooring.registry.cache.events import Event, Stored, Transition, head

# Select objects for a list, watch or deletecollection: one kind, optionally a namespace, and selectors.
#
# Rules kept here (docs/protocol/selectors.md):
# * Every kind can be selected by metadata.name and metadata.namespace, and by the field labels that its stored kind declares.
#   Any other field label is 400.
# * An object is decoded only when the selectors need more than its name and namespace.
# * A selector that requires one metadata.name narrows the search to that name: kubelets watch their own objects that way.


class SelectionPredicate:
    """Filter of the objects of one kind. Raises BadRequestError for a field label that the kind does not declare."""

    __slots__ = ("_by_place", "_fields", "_labels", "by_place", "everything", "kind", "name", "namespace", "selective")

    def __init__(self, kind: Kind, namespace: str, labels: LabelSelector, fields: FieldSelector) -> None:
        self.kind = kind
        self.name = ""
        self.namespace = namespace
        self._labels = None if labels.empty else labels
        self._fields = None if fields.empty else fields
        self._by_place = False
        if self._fields is not None:
            check_field_labels(fields, kind.storage_kind.field_labels)
            self._by_place = all(label in (NAME, NAMESPACE) for label in fields.labels())
            self.name = fields.requires(NAME) or ""
            if kind.resource.namespaced and not namespace:
                self.namespace = fields.requires(NAMESPACE) or ""
        self.selective = self._labels is not None or self._fields is not None
        """True with selectors: a list then must not return how many objects remain (docs/protocol/lists.md)."""
        self.everything = not self.selective and not self.namespace
        self.by_place = self._labels is None and (self._fields is None or self._by_place)
        """True when name and namespace decide, which an object never changes."""
        if self.name and all(
            (term.label, term.value, term.negated) == (NAME, self.name, False) for term in fields.terms
        ):
            self._fields = None  # `name` says all

    @property
    def key(self) -> str:
        """The only key that can match, "" when several can."""
        if not self.name or (self.kind.resource.namespaced and not self.namespace):
            return ""
        return self.kind.key(self.namespace, self.name)

    def matches(self, stored: Stored) -> bool:
        """Return True when an object of this kind is selected."""
        if self.namespace and stored.namespace != self.namespace:
            return False
        if self.name and stored.name != self.name:
            return False
        if self._fields is not None:
            place = {NAME: stored.name, NAMESPACE: stored.namespace} if self._by_place else stored.fields
            if not self._fields.matches(place):
                return False
        return self._labels is None or self._labels.matches(stored.labels)


# Handle long lists in slices, and join stored bytes into the items of a JSON list.

_METADATA = len(b'"metadata":{')

SLICE_ITEMS = 500
SLICE_BYTES = 1 << 20
"""Objects, and bytes, of a long list that are handled in one turn of the event loop: 5 to 25 ms when they are decoded and
encoded."""


def slices(items: Sequence[Stored], share: int = 1) -> Iterator[Sequence[Stored]]:
    """Yield `items` in runs of at most `SLICE_ITEMS`, which end with the object that reaches `SLICE_BYTES`. `share` divides
    both."""
    start = size = 0
    most_items, most_bytes = SLICE_ITEMS // share, SLICE_BYTES // share
    for place, item in enumerate(items, 1):
        size += len(item.raw)
        if size >= most_bytes or place - start >= most_items:
            yield items[start:place]
            start, size = place, 0
    if start < len(items):
        yield items[start:]


def joined(resource: Resource, items: Sequence[Stored]) -> bytes:
    """Return the items of a JSON list as stored bytes without kind and apiVersion.

    The list carries these; Go clients compare items with objects of their own, which have neither.
    """
    cut = len(head(resource)) - _METADATA
    return b"{" + b",{".join([item.raw[cut:] for item in items]) if items else b""


def joined_size(resource: Resource, items: Sequence[Stored]) -> int:
    """Return the size in bytes of the result of `joined`."""
    cut = len(head(resource)) - _METADATA - 2  # two bytes for the comma and brace before each item but the first
    return sum([len(item.raw) for item in items]) - cut * len(items) - 1 if items else 0


# Cache of one kind: its objects in key order, its recent changes, and its watches.
#
# Rules kept here:
# * Order is that of the storage keys' UTF-8 bytes. Python compares text by code point, which gives the same order.
# * A list consists of references: nothing is decoded or copied to answer it.
# * A write costs the same among 100 000 objects as among ten: keys are kept sorted in short runs (`sortedcontainers`).
# * Recent changes are bounded by number and by bytes. A watch that needs older ones must list again (410,
#   docs/protocol/watch.md).
# * Watches of one name are found by that name, so that thousands of agents that watch their own object do not slow each other.
# * A watch whose sink raises is closed and logged; the other watches go on.

WINDOW_EVENTS = 8192
"""Recent changes kept for each kind: a client that was away for a minute of 100 writes a second resumes without a new list."""
WINDOW_BYTES = 32 * 1024 * 1024
"""Bytes of recent changes kept for each kind. One object takes up to 1.5 MiB."""

Sink = Callable[[Event], None]

log = logging.getLogger(__name__)


class Window:
    """Recent changes of one kind, oldest first."""

    def __init__(self, events: int = WINDOW_EVENTS, size: int = WINDOW_BYTES) -> None:
        self.floor = 0
        """Lowest revision at which a watch may start."""
        self._limit = events
        self._limit_size = size
        self._transitions: deque[Transition] = deque()
        self._size = 0

    def restart(self, revision: int) -> None:
        """Drop all changes: those before `revision` are unknown."""
        self._transitions.clear()
        self._size = 0
        self.floor = revision

    def __len__(self) -> int:
        return len(self._transitions)

    def append(self, transition: Transition) -> None:
        """Add a change; drop the oldest beyond the limits."""
        self._transitions.append(transition)
        self._size += transition.size
        while len(self._transitions) > self._limit or self._size > self._limit_size:
            dropped = self._transitions.popleft()
            self._size -= dropped.size
            self.floor = dropped.revision

    def after(self, revision: int) -> list[Transition]:
        """Return every change after `revision`. Raises ExpiredError when some of them were dropped."""
        if revision < self.floor:
            raise ExpiredError(f"too old resource version: {revision} ({self.floor})")
        found = []
        for transition in reversed(self._transitions):
            if transition.revision <= revision:
                break
            found.append(transition)
        found.reverse()
        return found


@dataclass(frozen=True, slots=True)
class Replay:
    """Events that a watch delivers before live ones: the present state and a bookmark that ends it, or past changes."""

    state: Sequence[Stored] = ()
    bookmark: bool = False
    changes: Sequence[Transition] = ()


Pause = Callable[[], Awaitable[None]]


async def give_way() -> None:
    """Give way to other tasks of the event loop."""
    await asyncio.sleep(0)


class Watch:
    """One subscription: events reach its sink in revision order, each once, from `replay` until `close`.

    Changes wait until `replay` has delivered the earlier events. They are references to changes that the window of the cache holds
    too, and are bounded alike.
    """

    __slots__ = ("_cache", "_replay", "_revision", "_selection", "_since", "_sink", "_waiting", "closed")

    def __init__(
        self,
        cache: KindCache,
        selection: SelectionPredicate,
        since: int,
        sink: Sink,
        revision: Callable[[], int],
        replay: Replay = Replay(),
    ) -> None:
        self._cache = cache
        self._selection = selection
        self._since = since
        self._sink = sink
        self._revision = revision
        self._replay = replay
        self._waiting: Window | None = Window()
        self._waiting.restart(since)
        self.closed = False

    async def replay(self, pause: Pause = give_way) -> None:
        """Deliver the replay, then the changes that happened meanwhile, then go live. `pause` is awaited between slices.

        Raises ExpiredError, and closes the watch, when more changed meanwhile than the window holds.
        """
        replay, self._replay = self._replay, Replay()
        try:
            for run in slices(replay.state):
                for stored in run:
                    if not self.closed and self._selection.matches(stored):
                        self.send(Event("ADDED", stored.kind.resource, stored.revision, stored))
                await pause()
            if replay.bookmark and not self.closed:
                self.send(Event("BOOKMARK", self._selection.kind.resource, self._since, None, True))
            changes = replay.changes
            while True:
                for place, transition in enumerate(changes, 1):
                    self._deliver(transition)
                    if not place % SLICE_ITEMS:
                        await pause()
                # No `await` between an empty queue and the line that ends the waiting: no change is lost in between.
                if not (changes := self._take_waiting()):
                    break
        except BaseException:
            self.close()
            raise
        self._waiting = None

    def _take_waiting(self) -> Sequence[Transition]:
        """Take the waiting changes. Raises ExpiredError."""
        waiting = self._waiting
        assert waiting is not None  # until the end of `replay`
        changes = waiting.after(self._since)
        if changes:
            self._since = changes[-1].revision
            waiting.restart(self._since)
        return changes

    @property
    def waiting(self) -> Sequence[Transition]:
        """Changes that wait until `replay` has ended."""
        return self._waiting.after(self._waiting.floor) if self._waiting is not None else ()

    def close(self) -> None:
        """End the subscription: no event reaches the sink any more. Idempotent."""
        if not self.closed:
            self.closed = True
            self._cache.unsubscribe(self)

    def bookmark(self, initial_end: bool = False) -> Event:
        """Return a BOOKMARK for all events delivered so far. The caller sends it."""
        return Event("BOOKMARK", self._selection.kind.resource, self._revision(), None, initial_end)

    @property
    def selection(self) -> SelectionPredicate:
        """Objects that are watched."""
        return self._selection

    def offer(self, transition: Transition) -> None:
        """Deliver the event that a change means to this watch, or let the change wait for the end of `replay`."""
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
        if selection.by_place:
            either = current or previous
            assert either is not None  # a write has at least one side
            if not (selection.everything or selection.matches(either)):
                return
            event = transition.event(previous is not None, current is not None)
        else:
            event = transition.event(
                previous is not None and selection.matches(previous), current is not None and selection.matches(current)
            )
        if event is not None and not self.closed:
            self.send(event)

    def send(self, event: Event) -> None:
        """Pass an event to the sink; close the watch when it raises."""
        try:
            self._sink(event)
        except Exception:  # one broken connection must not keep the event from other watches
            log.exception("a watch of %s failed and was closed", self._cache.kind.resource.plural)
            self.close()


class KindCache:
    """State of one kind at the cache's revision, and its watches."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.revision = 0
        """Revision of the last change of this kind."""
        self.relists = 0
        """Number of listings after which other objects can be read than before: the store has no new revision for that."""
        self.window = Window()
        self.unreadable: dict[str, str] = {}
        """Keys of objects whose newest state cannot be decrypted or decoded, each with the reason. The state keeps their last
        readable one, for the next event; readers and views must not show it."""
        self._listed = 0
        self._by_key: Any = SortedDict()  # Stored by key; the library has no types
        self._unnamed: dict[Watch, None] = {}
        self._named: dict[str, dict[Watch, None]] = {}

    # -- state ---------------------------------------------------------------------------------------------------

    def load(self, items: Iterable[tuple[str, Stored]], revision: int) -> None:
        """Replace the state by that of a listing at `revision`, given as pairs in key order."""
        self._by_key = SortedDict(items)
        self.revision = max(self.revision, max((item.revision for item in self._by_key.values()), default=0))
        self._listed = revision
        self.window.restart(revision)

    def state(self) -> dict[str, Stored]:
        """Return a copy of the state, by key."""
        return dict(self._by_key)

    def lose(self, key: str, problem: str, revision: int) -> None:
        """Apply one write whose value cannot be read. Indexes that follow the view begin again; open watches have no event."""
        self.unreadable[key] = problem
        self.revision = revision
        self.window.restart(revision)

    def change(self, key: str, current: Stored | None, revision: int) -> Transition | None:
        """Apply one write, None for a deletion. Return None when it changed nothing."""
        if self.unreadable and self.unreadable.pop(key, None) is not None:
            self.revision = revision
        previous: Stored | None = self._by_key.get(key)
        if current is not None:
            if previous is not None:
                current.key = previous.key  # the text that the mapping has, so that it is in memory once
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
        """Return one object, or None."""
        found: Stored | None = self._by_key.get(key)
        return found

    def is_state_of(self, revision: int) -> bool:
        """Return True when the present state is also that at `revision`, which must have been applied."""
        return revision >= self._listed and revision >= self.revision

    def within(self, namespace: str = "", after: str = "", limit: int = 0) -> Sequence[Stored]:
        """Return up to `limit` objects (0: all) in key order, of all namespaces or of one, behind the key `after`."""
        first, end = self._bounds(namespace, after)
        keys = self._by_key.irange(first, end, inclusive=(first != after, False))
        return list(map(self._by_key.__getitem__, islice(keys, limit or None)))

    def count(self, namespace: str = "", after: str = "") -> int:
        """Return the number of objects that `within` finds without a limit."""
        first, end = self._bounds(namespace, after)
        start = self._by_key.bisect_right(first) if first == after else self._by_key.bisect_left(first)
        return max(0, int((self._by_key.bisect_left(end) if end else len(self._by_key)) - start))

    def _bounds(self, namespace: str, after: str) -> tuple[str, str | None]:
        """Return the first key, and the key before which to end."""
        if not namespace:
            return after, None
        prefix = self.kind.key_prefix(namespace)
        return max(prefix, after), prefix[:-1] + "0"  # the character after "/"

    # -- watching ------------------------------------------------------------------------------------------------

    def subscribe(self, watch: Watch) -> None:
        """Add a watch."""
        name = watch.selection.name
        (self._named.setdefault(name, {}) if name else self._unnamed)[watch] = None

    def unsubscribe(self, watch: Watch) -> None:
        """Remove a watch. Idempotent."""
        name = watch.selection.name
        if not name:
            self._unnamed.pop(watch, None)
        elif (watches := self._named.get(name)) is not None:
            watches.pop(watch, None)
            if not watches:
                del self._named[name]

    @property
    def watches(self) -> int:
        """Number of open watches."""
        return len(self._unnamed) + sum(len(watches) for watches in self._named.values())

    def publish(self, transition: Transition) -> None:
        """Offer one change to all watches that may select it."""
        for watch in tuple(self._unnamed):
            watch.offer(transition)
        named = self._named.get(transition.name)
        if named:
            for watch in tuple(named):
                watch.offer(transition)
