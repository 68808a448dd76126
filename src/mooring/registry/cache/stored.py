"""One stored object as bytes that are kept, not rebuilt (law 5), and the events made of it.

Rules kept here:
* `raw` is the stored JSON with `"resourceVersion":"N",` spliced in right behind `"metadata":{`; nothing else is changed, and
  nothing is parsed for it. Bytes of another shape (a foreign writer of the same etcd, an older version that left out what Go
  always writes) are re-encoded once, on arrival; only kinds that have such fields are looked at for them.
* The object is decoded only when somebody asks for a field, and is then shared: nobody may change it. The bytes are the truth and
  stay; the decoded forms of all objects together are bounded (`Decoded`), and are made again from the bytes when needed.
* A watch frame is built once per event and shared by all watchers of all connections (docs/protocol/watch.md).
* A DELETED object is the last state with the revision of the deletion; so is one that only left a selector.
* The other form of a kind with an alias is made when somebody first asks for it, and then shared alike.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from sys import intern
from threading import Lock
from typing import Literal, cast

import msgspec

from mooring.api.kind import Kind
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.codec.zerofields import complete, has_structs
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import bookmark, event_frame
from mooring.errors import StorageError
from mooring.registry.longwork import LONG_BYTES
from mooring.storage.contract import Entry

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]

_decode = msgspec.json.Decoder().decode
_HEADS: dict[str, bytes] = {}


def head(resource: Resource) -> bytes:
    """How the stored bytes of every object of `resource` begin, up to and with the brace that opens its metadata."""
    known = _HEADS.get(resource.kind + resource.api_version)
    if known is None:
        known = f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}","metadata":{{'.encode()
        _HEADS[resource.kind + resource.api_version] = known
    return known


_METADATA = len(b'"metadata":{')

MAX_DECODED_BYTES = 8 << 20
"""Bytes of kept objects whose decoded form stays in memory. A decoded object weighs two to three times its bytes: without a bound
100 000 Secrets held 450 MiB. What a request of an ordinary cluster needs (roles, accounts, tokens) fits many times."""


def joined(resource: Resource, items: Sequence[Stored]) -> bytes:
    """The items of a JSON list, kept bytes without kind and apiVersion: the list says them, and Go clients compare items with
    objects of their own, which carry neither."""
    cut = len(head(resource)) - _METADATA
    return b"{" + b",{".join([item.raw[cut:] for item in items]) if items else b""


def joined_size(resource: Resource, items: Sequence[Stored]) -> int:
    """The size in bytes of what `joined` gives."""
    cut = (
        len(head(resource)) - _METADATA - 2
    )  # each but the first has a comma and a brace in front of what is kept of it
    return sum([len(item.raw) for item in items]) - cut * len(items) - 1 if items else 0


def encoded(resource: Resource, obj: Obj) -> bytes:
    """The bytes to store for `obj`: kind and apiVersion first, no resourceVersion. `obj` is not changed."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return encode_json({**obj, "kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata})


class Decoded:
    """Bounds what decoded objects weigh: beyond `limit` bytes of JSON, the object decoded first gives its decoded form up."""

    def __init__(self, limit: int = MAX_DECODED_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._objects: deque[Stored] = deque()
        self._lock = Lock()  # large objects are computed in a thread (`mooring.registry.longwork`)

    @property
    def size(self) -> int:
        """Bytes of JSON of the objects that are decoded."""
        return self._size

    def add(self, stored: Stored) -> None:
        """Count an object that was just decoded."""
        with self._lock:
            self._objects.append(stored)
            self._size += len(stored.raw)
            while self._size > self._limit:
                first = self._objects.popleft()
                self._size -= len(first.raw)
                first.forget()


SLICE_ITEMS = 500
SLICE_BYTES = 1 << 20
"""Objects of a long list that are handled in one turn of the event loop: decoding and printing this many takes 5 to 25 ms."""


def slices(items: Sequence[Stored], share: int = 1) -> Iterator[Sequence[Stored]]:
    """`items` in runs of at most `SLICE_ITEMS`, and of no more than `SLICE_BYTES` but for the last object of a run; both divided
    by `share`."""
    start = size = 0
    most_items, most_bytes = SLICE_ITEMS // share, SLICE_BYTES // share
    for place, item in enumerate(items, 1):
        size += len(item.raw)
        if size >= most_bytes or place - start >= most_items:
            yield items[start:place]
            start, size = place, 0
    if start < len(items):
        yield items[start:]


DECODED = Decoded()
"""All of this process: memory is the process's, however many registries it holds."""


class Stored:
    """One object at one revision. `revision` 0 means it was never stored (dry run) and shows no resourceVersion."""

    __slots__ = ("_fields", "_obj", "_shown", "kind", "name", "namespace", "raw", "revision")

    def __init__(self, kind: Kind, namespace: str, name: str, revision: int, raw: bytes) -> None:
        self.kind = kind
        self.namespace = intern(namespace)  # thousands of objects share a few
        self.name = name
        self.revision = revision
        self.raw = raw
        self._obj: Obj | None = None
        self._fields: Mapping[str, str] | None = None
        self._shown: Stored | None = None

    @classmethod
    def of(cls, kind: Kind, namespace: str, name: str, revision: int, value: bytes, is_whole: bool = False) -> Stored:
        """From stored bytes. `is_whole`: `encoded` has just made them of a complete object. Raises StorageError when they are not a
        JSON object with metadata."""
        start = head(kind.resource)
        if not is_whole and (not value.startswith(start) or has_structs(kind.resource.schema)):
            value = _rewritten(kind.resource, value)
        if not revision:
            return cls(kind, namespace, name, 0, value)
        cut = len(start)
        return cls(kind, namespace, name, revision, b'%b"resourceVersion":"%d",%b' % (start, revision, value[cut:]))

    @property
    def key(self) -> str:
        return self.kind.key(self.namespace, self.name)

    @property
    def obj(self) -> Obj:
        """The object with metadata.resourceVersion. Shared by everybody: copy it before changing anything."""
        obj = self._obj  # read once: a thread of `longwork` may forget it at any moment
        if obj is None:
            collecting = len(self.raw) > LONG_BYTES and gc.isenabled()
            if collecting:
                gc.disable()  # tens of thousands of new containers would have all others looked at: 5 ms become 55
            try:
                obj = cast("Obj", _decode(self.raw))
            except msgspec.DecodeError as error:
                raise _unreadable(self.kind.resource) from error
            finally:
                if collecting:
                    gc.enable()
            self._obj = obj
            DECODED.add(self)
        return obj

    def forget(self) -> None:
        """Give up whatever can be made again from the bytes."""
        self._obj = self._fields = self._shown = None

    @property
    def fields(self) -> Mapping[str, str]:
        """Every selectable field of this object and its value."""
        fields = self._fields
        if fields is None:
            obj = self.obj
            fields = self._fields = {
                **self.kind.selectable_fields(obj),
                "metadata.name": self.name,
                "metadata.namespace": self.namespace,
            }
        return fields

    @property
    def labels(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.obj["metadata"].get("labels") or {})

    def shown_as(self, kind: Kind) -> Stored:
        """The same object in the form of `kind`, which is its own kind or an alias of it."""
        if kind is self.kind:
            return self
        shown = self._shown
        if shown is None or shown.kind is not kind:
            value = encoded(kind.resource, kind.from_storage(self.obj))
            shown = self._shown = Stored.of(kind, self.namespace, self.name, self.revision, value)
        return shown

    def at(self, revision: int) -> Stored:
        """The same content as of another revision: what a DELETED event carries."""
        start = len(head(self.kind.resource))
        cut = start + (len(f'"resourceVersion":"{self.revision}",') if self.revision else 0)
        spliced = b'%b"resourceVersion":"%d",%b' % (self.raw[:start], revision, self.raw[cut:])
        return Stored(self.kind, self.namespace, self.name, revision, spliced)

    def frame(self, event: EventType) -> bytes:
        """The JSON watch frame of `event` about this object. `Event.frame` keeps what this builds."""
        return event_frame(event, self.raw)

    def __repr__(self) -> str:
        return f"Stored({self.key!r}, revision={self.revision})"


def _unreadable(resource: Resource) -> StorageError:
    return StorageError(
        f"a stored object of {resource.plural} is not valid JSON; restore it from a backup or delete its key"
    )


def _rewritten(resource: Resource, value: bytes) -> bytes:
    try:
        obj = _decode(value)
    except msgspec.DecodeError as error:
        raise _unreadable(resource) from error
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict) or not obj["metadata"]:
        raise _unreadable(resource)
    try:
        changed = complete(obj, resource.schema)
    except (AttributeError, TypeError) as error:
        raise _unreadable(resource) from error
    return encoded(resource, obj) if changed or not value.startswith(head(resource)) else value


class Event:
    """One watch event. A BOOKMARK has no `stored`, only the revision up to which everything was delivered."""

    __slots__ = ("_frame", "_frames", "_shown", "is_initial_end", "resource", "revision", "stored", "type")

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
        self._shown: Event | None = None

    @property
    def obj(self) -> Obj:
        """The object of the event; for a bookmark, the one that carries only the revision."""
        if self.stored is not None:
            return self.stored.obj
        return bookmark(self.resource, self.revision, self.is_initial_end)

    def shown_as(self, kind: Kind) -> Event:
        """The same event to a watcher of `kind`, which is the kind it is about or an alias of it. A bookmark stays what it is."""
        if self.stored is None or self.resource is kind.resource:
            return self
        if self._shown is None or self._shown.resource is not kind.resource:
            self._shown = Event(self.type, kind.resource, self.revision, self.stored.shown_as(kind))
        return self._shown

    def frame(self) -> bytes:
        """The JSON line, built once for all watchers."""
        if self._frame is None:
            if self.stored is not None:
                self._frame = self.stored.frame(self.type)
            else:
                self._frame = event_frame(self.type, encode_json(self.obj))
        return self._frame

    def framed(self, form: str, encode: Callable[[Event], bytes]) -> bytes:
        """The frame in another form, built by `encode` once for all watchers of that form."""
        if self._frames is None:
            self._frames = {}
        frame = self._frames.get(form)
        if frame is None:
            frame = self._frames[form] = encode(self)
        return frame

    def __repr__(self) -> str:
        return f"Event({self.type}, {self.stored or self.revision})"


class Transition:
    """One write of one object, with the events it can mean to different watchers, each built at most once."""

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
        """Bytes this keeps alive: both states, and the frames made of them."""
        return 2 * ((len(self.current.raw) if self.current else 0) + (len(self.previous.raw) if self.previous else 0))

    def event(self, before: bool, after: bool) -> Event | None:
        """What a watcher sees whose selector matched `before` this write and matches `after` it."""
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


class Keys:
    """Which kind, namespace and name a storage key stands for."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._namespaced = {kind.storage: kind for kind in kinds if kind.stored and kind.resource.namespaced}
        self._cluster = {kind.storage: kind for kind in kinds if kind.stored and not kind.resource.namespaced}

    def parse(self, key: str) -> tuple[Kind, str, str] | None:
        """None for a key of a kind this server does not serve."""
        path, _, name = key.rpartition("/")
        prefix, _, namespace = path.rpartition("/")
        kind = self._namespaced.get(prefix)
        if kind is not None:
            return (kind, namespace, name)
        kind = self._cluster.get(path)
        return (kind, "", name) if kind is not None else None

    def stored(self, entry: Entry, is_whole: bool = False) -> Stored | None:
        """None for a kind not served here. `is_whole`: see `Stored.of`. Raises StorageError for bytes that are no object."""
        place = self.parse(entry.key)
        return Stored.of(*place, entry.revision, entry.value, is_whole) if place is not None else None
