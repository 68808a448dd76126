"""Storage keys: the kind, namespace and name of each stored object, and keys that are no objects here."""

from __future__ import annotations

import msgspec

from mooring.api.kind import Kind
from mooring.apimachinery.codec.storedvalue import shape_decoder
from mooring.registry.cache.events import Stored
from mooring.storage.contract import Entry

# Parse storage keys: the kind, namespace and name of each stored object, and whether the value is the object of that name.
#
# Rules kept here:
# * The name and the namespace inside a value are those of its key. Ciphers such as AES-CBC and secretbox do not bind a value to its
#   key, so that one Secret could be copied over another.
# * A value that is not JSON throughout is not an object, also when its first bytes are right. Neither is one with a field of
#   another type than its kind has: what judges by an object need not expect that, and must not fail for everybody.
# * An object whose uid decides (`Kind.is_known_by_uid`) has one: its absence would be taken for another object.
# * deletionGracePeriodSeconds comes with a deletionTimestamp. Without one the object was deleted, and its time is damaged.
# * An object of a kind that says who may come in (`Kind.is_exact`) has no field that the kind does not have: of a field whose name
#   is damaged nothing is left but its absence.


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
    """Raise StorageError for bytes that are not an object of their kind, or an object of another name."""
    raw, kind = stored.raw, stored.kind
    try:
        metadata = shape_decoder(kind.storage_schema, exact=kind.is_exact)(raw).metadata_
        if not raw.isascii():
            raw.decode()
    except msgspec.ValidationError as error:
        raise stored.unreadable("a field has a value of another type, or another name") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise stored.unreadable("it is not valid JSON") from error
    if metadata is None or metadata.name_ != name or (metadata.namespace_ or "") != namespace:
        raise stored.unreadable(
            "the object inside has another name or namespace than its key: it was copied from another object"
        )
    if kind.is_known_by_uid and not metadata.uid_:
        raise stored.unreadable("it has no uid")
    if metadata.deletionGracePeriodSeconds_ is not None and metadata.deletionTimestamp_ is None:
        raise stored.unreadable("it was deleted, and has no deletionTimestamp")


# Keys of the store that are not objects here: kinds that this server does not serve, and values that it cannot read, by
# namespace.
#
# Rules kept here (docs/protocol/storage.md#keys):
# * The namespace of a key follows from its form alone: `/registry/<resource>/<namespace>/<name>`, with the group before the
#   resource where that has a dot.
# * Keys of the cluster, and Mooring's own, belong to no namespace.

_OWN = "mooring"
_WITH_TWO_SEGMENTS = "services"
"""First segment of the resources `services/specs` and `services/endpoints`."""


class ForeignKeys:
    """Foreign keys of each namespace."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, set[str]] = {}

    def add(self, key: str) -> None:
        """Add a key that is in the store."""
        namespace = namespace_of(key)
        if namespace:
            self._by_namespace.setdefault(namespace, set()).add(key)

    def discard(self, key: str) -> None:
        """Remove a key that was deleted, or whose value can be read now."""
        namespace = namespace_of(key) if self._by_namespace else ""
        keys = self._by_namespace.get(namespace)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._by_namespace[namespace]

    def resources(self, namespace: str) -> dict[str, int]:
        """Return the number of keys of each resource in a namespace."""
        found: dict[str, int] = {}
        for key in sorted(self._by_namespace.get(namespace, ())):
            resource = "/".join(key.split("/")[2:-2])
            found[resource] = found.get(resource, 0) + 1
        return found


def namespace_of(key: str) -> str:
    """Return the namespace of a key; "" for a key of the cluster."""
    parts = key.split("/")
    if len(parts) < 5 or parts[2] == _OWN:
        return ""
    has_two_segments = "." in parts[2] or parts[2] == _WITH_TWO_SEGMENTS
    return parts[-2] if len(parts) == 5 + has_two_segments else ""
