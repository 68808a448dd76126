"""Stored objects and the watch events that are made of them, shared by all watchers."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Mapping
from threading import Lock
from typing import ClassVar, Literal, cast

import msgspec
from msgspec import Struct

from mooring.api.kind import Kind
from mooring.api.kinds import forms
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.codec.storedvalue import decode_stored_value
from mooring.apimachinery.codec.zerofields import complete, has_structs
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import bookmark, event_frame
from mooring.errors import ApiError, StorageError
from mooring.registry.offload import LONG_BYTES

# Watch events, made of stored objects and shared by all watchers (docs/protocol/watch.md).
#
# Rules kept here:
# * The frame of an event is built once and shared by all watchers of all connections.
# * A DELETED event carries the last state with the revision of the deletion, also when the object only left a selector.

# Stored objects: the encoded bytes of one object at one revision, kept and not rebuilt (law 5).
#
# Rules kept here:
# * `raw` is the stored JSON with `"resourceVersion":"N",` inserted behind `"metadata":{`. Nothing else is changed, and nothing is
#   parsed for it. Bytes of another shape (protobuf or JSON of a kube-apiserver on the same etcd, an older version that left out
#   fields which Go always writes) are re-encoded once, on arrival. Only kinds that have such fields are checked for them.
# * The object is decoded when a field is first read, and then shared: it must not be changed. All decoded forms together are
#   bounded (`DecodedObjects`), and are made again from the bytes when needed.

decode = msgspec.json.Decoder().decode
_HEADS: dict[str, bytes] = {}


def head(resource: Resource) -> bytes:
    """Return the first bytes of every stored object of `resource`, up to the brace that opens its metadata."""
    known = _HEADS.get(resource.kind + resource.api_version)
    if known is None:
        known = f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}","metadata":{{'.encode()
        _HEADS[resource.kind + resource.api_version] = known
    return known


MAX_DECODED_BYTES = 8 << 20
"""Bytes of JSON of the objects whose decoded form stays in memory. A decoded object takes two to three times its bytes: without a
bound 100 000 Secrets took 450 MiB. The objects that requests in an ordinary cluster need (roles, accounts, tokens) fit many
times."""


def encoded(resource: Resource, obj: Obj) -> bytes:
    """Return the bytes to store for `obj`: kind and apiVersion first, no resourceVersion. `obj` is not changed."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return encode_json({**obj, "kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata})


class DecodedObjects:
    """Bound of decoded objects: beyond `limit` bytes of JSON, the object decoded first drops its decoded form."""

    def __init__(self, limit: int = MAX_DECODED_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._objects: deque[Stored] = deque()
        self._lock = Lock()  # large objects are decoded in a thread (`mooring.registry.offload`)

    @property
    def size(self) -> int:
        """Bytes of JSON of all decoded objects."""
        return self._size

    def add(self, stored: Stored) -> None:
        """Add an object that was just decoded."""
        with self._lock:
            self._objects.append(stored)
            self._size += len(stored.raw)
            while self._size > self._limit:
                first = self._objects.popleft()
                self._size -= len(first.raw)
                first.forget()


DECODED = DecodedObjects()
"""Decoded objects of this process, however many registries it has."""


class DecodedForms:
    """Forms that were made of the bytes of one object."""

    __slots__ = ("fields", "obj")

    def __init__(self, obj: Obj) -> None:
        self.obj = obj
        self.fields: Mapping[str, str] | None = None


class Stored(Struct, eq=False, gc=False):
    """One object at one revision. With `revision` 0 it was never stored (dry run) and has no resourceVersion.

    A process may hold a million of these: each is 56 bytes and no work for the garbage collector, which could find no cycle in it.
    """

    kind: Kind
    key: str
    """Key in the store."""
    revision: int
    raw: bytes
    decoded: DecodedForms | None = None
    """Forms made of `raw`; None while they are not in memory."""
    is_partly_known: ClassVar[bool] = False

    @classmethod
    def of(
        cls, kind: Kind, namespace: str, name: str, revision: int, value: bytes, is_whole: bool = False, key: str = ""
    ) -> Stored:
        """Build from stored bytes. `is_whole`: `encoded` has just made them of a complete object. `key`: the key, if known.

        Raises StorageError when they are not an object of this kind.
        """
        start = head(kind.resource)
        is_partly_known = False
        if not is_whole and (not value.startswith(start) or has_structs(kind.resource.schema)):
            value, is_partly_known = normalize(kind, value)
        made = PartlyKnown if is_partly_known else cls
        key = key or kind.key(namespace, name)
        if not revision:
            return made(kind, key, 0, value)
        cut = len(start)
        return made(kind, key, revision, b'%b"resourceVersion":"%d",%b' % (start, revision, value[cut:]))

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.key.rpartition("/")[2]

    @property
    def namespace(self) -> str:
        """Namespace of the object; "" for an object of the cluster."""
        return self.key.rpartition("/")[0].rpartition("/")[2] if self.kind.resource.namespaced else ""

    @property
    def obj(self) -> Obj:
        """Decoded object with metadata.resourceVersion. It is shared: copy it before any change."""
        decoded = self.decoded  # read once: a thread of `offload` may drop it at any moment
        return (decoded or self._decode()).obj

    def _decode(self) -> DecodedForms:
        collecting = len(self.raw) > LONG_BYTES and gc.isenabled()
        if collecting:
            gc.disable()  # a collection, caused by tens of thousands of new containers, would turn 5 ms into 55
        try:
            decoded = DecodedForms(cast("Obj", decode(self.raw)))
        except (msgspec.DecodeError, RecursionError) as error:
            raise _unreadable(self.kind.resource) from error
        finally:
            if collecting:
                gc.enable()
        self.decoded = decoded
        DECODED.add(self)
        return decoded

    def forget(self) -> None:
        """Drop everything that can be made again from the bytes."""
        self.decoded = None

    @property
    def fields(self) -> Mapping[str, str]:
        """Values of all selectable fields of this object."""
        decoded = self.decoded or self._decode()
        fields = decoded.fields
        if fields is None:
            fields = decoded.fields = {
                **self.kind.selectable_fields(decoded.obj),
                "metadata.name": self.name,
                "metadata.namespace": self.namespace,
            }
        return fields

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of this object."""
        return cast("Mapping[str, str]", self.obj["metadata"].get("labels") or {})

    def at(self, revision: int) -> Stored:
        """Return the same content at another revision, for a DELETED event."""
        start = len(head(self.kind.resource))
        cut = start + (len(f'"resourceVersion":"{self.revision}",') if self.revision else 0)
        spliced = b'%b"resourceVersion":"%d",%b' % (self.raw[:start], revision, self.raw[cut:])
        return Stored(self.kind, self.key, revision, spliced)

    def unreadable(self, reason: str) -> StorageError:
        """Return the error of an object that cannot be read."""
        return _unreadable(self.kind.resource, reason)

    def __repr__(self) -> str:
        return f"Stored({self.key!r}, revision={self.revision})"


def _unreadable(resource: Resource, reason: str = "it is not valid JSON") -> StorageError:
    return StorageError(
        f"a stored object of {resource.plural} cannot be read: {reason}; restore it from a backup, delete its key, or leave it to "
        "the server that wrote it"
    )


def _type(kind: Kind) -> tuple[str, str]:
    return kind.resource.api_version, kind.resource.kind


class PartlyKnown(Stored, eq=False, gc=False):
    """An object stored as protobuf with fields that this server does not know. `raw` lacks them, so an update would lose them."""

    is_partly_known: ClassVar[bool] = True


def normalize(kind: Kind, value: bytes) -> tuple[bytes, bool]:
    """Return bytes of another shape as `encoded` would have written them, and whether unknown fields were left out.

    Raises StorageError.
    """
    resource = kind.resource
    try:
        obj, has_unknown = decode_stored_value(value, {_type(form): form.storage_schema for form in forms(kind)})
        if not isinstance(obj.get("metadata"), dict) or not obj["metadata"]:
            raise _unreadable(resource, "it has no metadata")
        for form in forms(kind):
            if form is not kind and (obj["apiVersion"], obj["kind"]) == _type(form):
                obj = form.to_storage(obj)
        changed = complete(obj, kind.storage_schema)
    except ApiError as error:
        raise _unreadable(resource, str(error)) from error
    except (AttributeError, TypeError) as error:
        raise _unreadable(resource, "a field has a value of another type") from error
    return encoded(resource, obj) if changed or not value.startswith(head(resource)) else value, has_unknown


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
