"""Index of dependents by owner uid, so that the garbage collector need not scan every object for an event.

Rules kept here:
* The index receives every object once and every later change. It holds keys only: (plural, namespace, name). Only objects with
  owners use memory.
* An entry is a hint: readers look the object up in its view. A stale entry is dropped when its object is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj

ObjectKey = tuple[str, str, str]
"""(plural, namespace, name) of an object."""


def object_key(plural: str, obj: Obj) -> ObjectKey:
    metadata = obj["metadata"]
    return (plural, metadata.get("namespace", ""), metadata["name"])


def references(obj: Obj) -> list[Obj]:
    """Return the owner references; do not change them."""
    found: list[Obj] = obj["metadata"].get("ownerReferences") or []
    return found


class OwnerIndex:
    """Keys of dependents by the uid of their owner."""

    __slots__ = ("_dependents", "_owners")

    def __init__(self) -> None:
        self._dependents: dict[str, dict[ObjectKey, None]] = {}
        self._owners: dict[ObjectKey, list[Obj]] = {}

    def put(self, key: ObjectKey, owners: list[Obj]) -> list[Obj]:
        """Record the owner references of the object at `key` (none when it is gone or unowned); return the previous ones."""
        before = self._owners.pop(key, [])
        for owner in before:
            uid = owner.get("uid", "")
            dependents = self._dependents.get(uid, {})
            dependents.pop(key, None)
            if not dependents:
                self._dependents.pop(uid, None)
        if owners:
            self._owners[key] = owners
            for owner in owners:
                self._dependents.setdefault(owner.get("uid", ""), {})[key] = None
        return before

    def keys(self, uid: str) -> Iterable[ObjectKey]:
        """Return the recorded keys of dependents of the object with this uid."""
        return tuple(self._dependents.get(uid, ()))

    def dependents(self, uid: str, views: Views) -> Iterator[tuple[str, Obj, Obj]]:
        """Yield (plural, dependent, its reference) for every object that currently names this uid as an owner."""
        for key in self.keys(uid):
            plural, namespace, name = key
            obj = views[plural].get(name, namespace)
            if obj is None:
                self.put(key, [])
                continue
            for owner in references(obj):
                if owner.get("uid") == uid:
                    yield plural, obj, owner
                    break
