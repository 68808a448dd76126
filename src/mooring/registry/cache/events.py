"""Watch events, made of stored objects and shared by all watchers (docs/protocol/watch.md).

Rules kept here:
* The frame of an event is built once and shared by all watchers of all connections.
* A DELETED event carries the last state with the revision of the deletion, also when the object only left a selector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import bookmark, event_frame
from mooring.registry.cache.stored import Stored

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


class Event:
    """One watch event. A BOOKMARK has no `stored`, only the revision up to which all events were delivered."""

    __slots__ = ("_frame", "_frames", "is_initial_end", "resource", "revision", "stored", "type")

    def __init__(
        self,
        type: EventType,  # noqa: A002 - the field's own name on the wire
        resource: Resource,
        revision: int,
        stored: Stored | None = None,
        is_initial_end: bool = False,
    ) -> None:
        self.type = type
        self.resource = resource
        self.revision = revision
        self.stored = stored
        self.is_initial_end = is_initial_end
        self._frame: bytes | None = None
        self._frames: dict[str, bytes] | None = None

    @property
    def obj(self) -> Obj:
        """Object of the event; for a bookmark one that carries only the revision."""
        if self.stored is not None:
            return self.stored.obj
        return bookmark(self.resource, self.revision, self.is_initial_end)

    def frame(self) -> bytes:
        """Return the JSON line, built once for all watchers."""
        if self._frame is None:
            if self.stored is not None:
                self._frame = event_frame(self.type, self.stored.raw)
            else:
                self._frame = event_frame(self.type, encode_json(self.obj))
        return self._frame

    def framed(self, form: str, encode: Callable[[Event], bytes]) -> bytes:
        """Return the frame in another form, built by `encode` once for all watchers of that form."""
        if self._frames is None:
            self._frames = {}
        frame = self._frames.get(form)
        if frame is None:
            frame = self._frames[form] = encode(self)
        return frame

    def __repr__(self) -> str:
        return f"Event({self.type}, {self.stored or self.revision})"


class Transition:
    """One write of one object, and the events that it means to different watchers, each built at most once."""

    __slots__ = ("_added", "_changed", "_deleted", "current", "kind", "name", "namespace", "previous", "revision")

    def __init__(self, revision: int, current: Stored | None, previous: Stored | None) -> None:
        either = current or previous
        assert either is not None  # a write has at least one side
        self.kind = either.kind
        self.namespace = either.namespace
        self.name = either.name
        self.revision = revision
        self.current = current
        self.previous = previous
        self._added: Event | None = None
        self._changed: Event | None = None
        self._deleted: Event | None = None

    @property
    def size(self) -> int:
        """Bytes that this keeps in memory: both states, and the frames made of them."""
        return 2 * ((len(self.current.raw) if self.current else 0) + (len(self.previous.raw) if self.previous else 0))

    def event(self, before: bool, after: bool) -> Event | None:
        """Return the event for a watcher whose selector matched `before` this write and matches `after` it."""
        resource = self.kind.resource
        if after:
            if before:
                if self._changed is None:
                    self._changed = Event("MODIFIED", resource, self.revision, self.current)
                return self._changed
            if self._added is None:
                self._added = Event("ADDED", resource, self.revision, self.current)
            return self._added
        if not before or self.previous is None:
            return None
        if self._deleted is None:
            self._deleted = Event("DELETED", resource, self.revision, self.previous.at(self.revision))
        return self._deleted
