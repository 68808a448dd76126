"""Parse storage keys: the kind, namespace and name of each stored object, and whether the value is the object of that name.

Rules kept here:
* The name and the namespace inside a value are those of its key. Ciphers such as AES-CBC and secretbox do not bind a value to its
  key, so that one Secret could be copied over another.
* A value that is not JSON throughout is not an object, also when its first bytes are right.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from mooring.api.kind import Kind
from mooring.registry.cache.stored import Stored
from mooring.storage.contract import Entry


class _Metadata(Struct, gc=False):
    name: str = ""
    namespace: str = ""


class _Shape(Struct, gc=False):
    """The part of an object that is compared with its key; the rest is walked over, and must be JSON."""

    metadata: _Metadata


_shape = msgspec.json.Decoder(_Shape).decode


class Keys:
    """Storage keys of the kinds that this server serves."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._namespaced = {kind.storage: kind for kind in kinds if kind.stored and kind.resource.namespaced}
        self._cluster = {kind.storage: kind for kind in kinds if kind.stored and not kind.resource.namespaced}

    def parse(self, key: str) -> tuple[Kind, str, str] | None:
        """Return kind, namespace and name of a key, or None for a kind that is not served."""
        path, _, name = key.rpartition("/")
        prefix, _, namespace = path.rpartition("/")
        kind = self._namespaced.get(prefix)
        if kind is not None:
            return (kind, namespace, name)
        kind = self._cluster.get(path)
        return (kind, "", name) if kind is not None else None

    def stored(self, entry: Entry, is_whole: bool = False) -> Stored | None:
        """Return the object of an entry, or None for a kind that is not served. `is_whole`: see `Stored.of`. Raises
        StorageError."""
        place = self.parse(entry.key)
        if place is None:
            return None
        stored = Stored.of(*place, entry.revision, entry.value, is_whole, entry.key)
        if not is_whole:
            _check_shape(stored, place[1], place[2])
        return stored


def _check_shape(stored: Stored, namespace: str, name: str) -> None:
    """Raise StorageError for bytes that are not an object, or an object of another name."""
    raw = stored.raw
    try:
        metadata = _shape(raw).metadata
        if not raw.isascii():
            raw.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise stored.unreadable("it is not valid JSON") from error
    if metadata.name != name or metadata.namespace != namespace:
        raise stored.unreadable(
            "the object inside has another name or namespace than its key: it was copied from another object"
        )
