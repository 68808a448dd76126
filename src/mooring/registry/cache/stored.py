"""Stored objects: the encoded bytes of one object at one revision, kept and not rebuilt (law 5).

Rules kept here:
* `raw` is the stored JSON with `"resourceVersion":"N",` inserted behind `"metadata":{`. Nothing else is changed, and nothing is
  parsed for it. Bytes of another shape (another writer of the same etcd, an older version that left out fields which Go always
  writes) are re-encoded once, on arrival. Only kinds that have such fields are checked for them.
* The object is decoded when a field is first read, and then shared: it must not be changed. All decoded forms together are bounded
  (`DecodedObjects`), and are made again from the bytes when needed.
* The other form of a kind with an alias is made when it is first needed, and then shared alike.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Mapping
from sys import intern
from threading import Lock
from typing import cast

import msgspec

from mooring.api.kind import Kind
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.codec.zerofields import complete, has_structs
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj
from mooring.errors import StorageError
from mooring.registry.longwork import LONG_BYTES

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
        self._lock = Lock()  # large objects are decoded in a thread (`mooring.registry.longwork`)

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


class Stored:
    """One object at one revision. With `revision` 0 it was never stored (dry run) and has no resourceVersion."""

    __slots__ = ("_converted", "_fields", "_obj", "kind", "name", "namespace", "raw", "revision")

    def __init__(self, kind: Kind, namespace: str, name: str, revision: int, raw: bytes) -> None:
        self.kind = kind
        self.namespace = intern(namespace)  # thousands of objects share a few
        self.name = name
        self.revision = revision
        self.raw = raw
        self._obj: Obj | None = None
        self._fields: Mapping[str, str] | None = None
        self._converted: Stored | None = None

    @classmethod
    def of(cls, kind: Kind, namespace: str, name: str, revision: int, value: bytes, is_whole: bool = False) -> Stored:
        """Build from stored bytes. `is_whole`: `encoded` has just made them of a complete object.

        Raises StorageError when they are not a JSON object with metadata.
        """
        start = head(kind.resource)
        if not is_whole and (not value.startswith(start) or has_structs(kind.resource.schema)):
            value = normalize(kind.resource, value)
        if not revision:
            return cls(kind, namespace, name, 0, value)
        cut = len(start)
        return cls(kind, namespace, name, revision, b'%b"resourceVersion":"%d",%b' % (start, revision, value[cut:]))

    @property
    def key(self) -> str:
        """Key in the store."""
        return self.kind.key(self.namespace, self.name)

    @property
    def obj(self) -> Obj:
        """Decoded object with metadata.resourceVersion. It is shared: copy it before any change."""
        obj = self._obj  # read once: a thread of `longwork` may drop it at any moment
        if obj is None:
            collecting = len(self.raw) > LONG_BYTES and gc.isenabled()
            if collecting:
                gc.disable()  # a collection, caused by tens of thousands of new containers, would turn 5 ms into 55
            try:
                obj = cast("Obj", decode(self.raw))
            except msgspec.DecodeError as error:
                raise _unreadable(self.kind.resource) from error
            finally:
                if collecting:
                    gc.enable()
            self._obj = obj
            DECODED.add(self)
        return obj

    def forget(self) -> None:
        """Drop everything that can be made again from the bytes."""
        self._obj = self._fields = self._converted = None

    @property
    def fields(self) -> Mapping[str, str]:
        """Values of all selectable fields of this object."""
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
        """Labels of this object."""
        return cast("Mapping[str, str]", self.obj["metadata"].get("labels") or {})

    def converted_to(self, kind: Kind) -> Stored:
        """Return this object in the form of `kind`, its own kind or an alias of it."""
        if kind is self.kind:
            return self
        converted = self._converted
        if converted is None or converted.kind is not kind:
            value = encoded(kind.resource, kind.from_storage(self.obj))
            converted = self._converted = Stored.of(kind, self.namespace, self.name, self.revision, value)
        return converted

    def at(self, revision: int) -> Stored:
        """Return the same content at another revision, for a DELETED event."""
        start = len(head(self.kind.resource))
        cut = start + (len(f'"resourceVersion":"{self.revision}",') if self.revision else 0)
        spliced = b'%b"resourceVersion":"%d",%b' % (self.raw[:start], revision, self.raw[cut:])
        return Stored(self.kind, self.namespace, self.name, revision, spliced)

    def __repr__(self) -> str:
        return f"Stored({self.key!r}, revision={self.revision})"


def _unreadable(resource: Resource) -> StorageError:
    return StorageError(
        f"a stored object of {resource.plural} is not valid JSON; restore it from a backup or delete its key"
    )


def normalize(resource: Resource, value: bytes) -> bytes:
    """Return bytes of another shape as `encoded` would have written them. Raises StorageError."""
    try:
        obj = decode(value)
    except msgspec.DecodeError as error:
        raise _unreadable(resource) from error
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict) or not obj["metadata"]:
        raise _unreadable(resource)
    try:
        changed = complete(obj, resource.schema)
    except (AttributeError, TypeError) as error:
        raise _unreadable(resource) from error
    return encoded(resource, obj) if changed or not value.startswith(head(resource)) else value
