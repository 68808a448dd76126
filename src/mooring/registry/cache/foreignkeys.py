"""Keys of the store that are not objects here: kinds that this server does not serve, and values that it cannot read, by namespace.

Rules kept here (docs/protocol/storage.md#keys):
* The namespace of a key follows from its form alone: `/registry/<resource>/<namespace>/<name>`, with the group before the resource
  where that has a dot.
* Keys of the cluster, and Mooring's own, belong to no namespace.
"""

from __future__ import annotations

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
