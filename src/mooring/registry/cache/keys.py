"""Parse storage keys: the kind, namespace and name of each stored object."""

from __future__ import annotations

from mooring.api.kind import Kind
from mooring.registry.cache.stored import Stored
from mooring.storage.contract import Entry


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
        return Stored.of(*place, entry.revision, entry.value, is_whole, entry.key) if place is not None else None
