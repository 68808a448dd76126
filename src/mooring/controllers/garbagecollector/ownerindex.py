"""Who depends on whom: the index that lets the garbage collector answer an event without looking at every object.

Rules kept here:
* It is fed with every object once and with every change after that, and holds nothing but places: (plural, namespace, name).
  Only objects with owners cost memory.
* It is a hint, never the truth: whoever uses it looks the object up in its view. What was deleted while nobody fed it is
  dropped when it is found missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj

Place = tuple[str, str, str]
"""(plural, namespace, name)."""


def place_of(plural: str, obj: Obj) -> Place:
    metadata = obj["metadata"]
    return (plural, metadata.get("namespace", ""), metadata["name"])


def references(obj: Obj) -> list[Obj]:
    """The owner references; do not change them."""
    found: list[Obj] = obj["metadata"].get("ownerReferences") or []
    return found


class OwnerIndex:
    """Dependents by their owner's uid."""

    __slots__ = ("_dependents", "_owners")

    def __init__(self) -> None:
        self._dependents: dict[str, dict[Place, None]] = {}
        self._owners: dict[Place, list[Obj]] = {}

    def put(self, place: Place, owners: list[Obj]) -> list[Obj]:
        """Note the owner references of the object at `place` (none: it is gone, or owned by nobody); those before."""
        before = self._owners.pop(place, [])
        for owner in before:
            uid = owner.get("uid", "")
            dependents = self._dependents.get(uid, {})
            dependents.pop(place, None)
            if not dependents:
                self._dependents.pop(uid, None)
        if owners:
            self._owners[place] = owners
            for owner in owners:
                self._dependents.setdefault(owner.get("uid", ""), {})[place] = None
        return before

    def places(self, uid: str) -> Iterable[Place]:
        """Where dependents of the object with this uid were last seen."""
        return tuple(self._dependents.get(uid, ()))

    def dependents(self, uid: str, views: Views) -> Iterator[tuple[str, Obj, Obj]]:
        """(plural, dependent, its reference) for everything that names this uid as an owner now."""
        for place in self.places(uid):
            plural, namespace, name = place
            obj = views[plural].get(name, namespace)
            if obj is None:
                self.put(place, [])
                continue
            for owner in references(obj):
                if owner.get("uid") == uid:
                    yield plural, obj, owner
                    break
