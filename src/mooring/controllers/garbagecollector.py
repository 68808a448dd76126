"""garbage-collector-controller: deletes objects whose owners are gone, and finishes foreground and orphan deletions.

Rules kept here (docs/protocol/objects.md#owner-references):
* An object whose owners are all absent is deleted. While one owner exists, references to absent owners are removed.
* An owner exists when its kind has an object of that name and uid, in the dependent's own namespace or cluster-wide. An owner in
  another namespace is absent. An owner of a kind that is not collected here, and a namespaced owner of a cluster-scoped object,
  cannot be looked up: they count as existing.
* What says which machines may come in is never collected: revocations, identities, authorized machines, rollovers, the issuance
  log. A right to update one would be a right to delete it.
* An object is a dependent of the owner that it names in full: a uid alone, or an owner in another namespace, blocks no deletion.
* Foreground: an object with the finalizer `foregroundDeletion` waits until no dependent blocks it. Its dependents are deleted,
  those with dependents of their own also in the foreground. Owners in a circle stop blocking each other.
* Orphan: an object with the finalizer `orphan` is removed from its dependents' references, then loses the finalizer.
* Every change carries the resourceVersion it was planned on. Events neither own nor are owned, as upstream.
* The views must show the whole cluster at one revision, as the registry's do: an owner missing from them would count as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL
from mooring.api.objectmeta import FOREGROUND, ORPHAN
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Entropy, Key, Update

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
    """Keys of dependents by the uid of their owner, so that no event needs a scan of every object.

    It receives every object once and every later change, and holds keys only, of objects with owners. An entry is a hint: readers
    look the object up in its view, and a stale one is dropped when its object is missing.
    """

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


COLLECTED = tuple(
    sorted(plural for plural, kind in BY_PLURAL.items() if kind.garbage_collected and "create" in kind.resource.verbs)
)
_BY_GROUP_AND_KIND = {
    (kind.resource.group, kind.resource.kind): kind for kind in (BY_PLURAL[plural] for plural in COLLECTED)
}


class Owner(Enum):
    """State of the object that an owner reference names."""

    PRESENT = "present"
    ABSENT = "absent"
    WAITING = "waiting"
    """Deleted in the foreground, and waiting for its dependents."""


@dataclass(frozen=True, slots=True)
class GarbageCollector:
    """Deletes dependents of absent owners. `keys` updates the index; `plan` reads it."""

    name: str = "garbage-collector-controller"
    watches: tuple[str, ...] = COLLECTED
    index: OwnerIndex = field(default_factory=OwnerIndex, compare=False)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        changed = object_key(plural, obj)
        owners = references(obj)
        before = self.index.put(changed, [] if deleted else owners)
        metadata = obj["metadata"]
        enqueued: list[ObjectKey] = [changed] if not deleted and (owners or _awaits_collector(obj)) else []
        if deleted or _deleted_in_foreground(obj):
            enqueued += self.index.keys(metadata.get("uid", ""))
        for reference in before:
            owner = _lookup(reference, metadata.get("namespace", ""), views)
            if owner is not None and _awaits_collector(owner[1]):
                enqueued.append(object_key(*owner))
        return [(namespace, f"{plural}/{name}") for plural, namespace, name in enqueued]

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        plural, _, name = key[1].partition("/")
        obj = views[plural].get(name, key[0])
        if obj is None:
            return ()
        if obj["metadata"].get("deletionTimestamp"):
            finalizers = _finalizers(obj)
            if ORPHAN in finalizers:
                return self._orphan(plural, obj, views)
            if FOREGROUND in finalizers:
                return self._finish_foreground(plural, obj, views)
            return ()
        return self._collect(plural, obj, views)

    def _orphan(self, plural: str, obj: Obj, views: Views) -> Sequence[Action]:
        """Update every dependent, then the owner: a dependent that changed meanwhile makes the whole key be planned again."""
        uid = obj["metadata"]["uid"]
        actions: list[Action] = [
            Update(
                kind, _with_references(dependent, [other for other in references(dependent) if other.get("uid") != uid])
            )
            for kind, dependent, _ in self._dependents(uid, views)
        ]
        # The owner last: without its finalizer it is deleted, and dependents that still name it would be collected.
        return [*actions, Update(plural, _without_finalizer(obj, ORPHAN))]

    def _finish_foreground(self, plural: str, obj: Obj, views: Views) -> Sequence[Action]:
        """Remove the finalizer once no dependent blocks; each dependent is planned under its own key."""
        uid = obj["metadata"]["uid"]
        dependents = self._dependents(uid, views)
        if any(ref.get("blockOwnerDeletion") and item["metadata"]["uid"] != uid for _, item, ref in dependents):
            return ()
        return (Update(plural, _without_finalizer(obj, FOREGROUND)),)

    def _dependents(self, uid: str, views: Views) -> Iterator[tuple[str, Obj, Obj]]:
        """Yield (plural, dependent, its reference) for each object from whose reference the owner can be looked up."""
        for plural, dependent, reference in self.index.dependents(uid, views):
            if _lookup(reference, dependent["metadata"].get("namespace", ""), views) is not None:
                yield plural, dependent, reference

    def _collect(self, plural: str, obj: Obj, views: Views) -> Sequence[Action]:
        owners = [(reference, _owner_state(reference, plural, obj, views)) for reference in references(obj)]
        present = [reference for reference, state in owners if state is Owner.PRESENT]
        if len(present) == len(owners):
            return ()
        if present:
            return (Update(plural, _with_references(obj, present)),)
        propagation = "Background"
        if any(state is Owner.WAITING for _, state in owners):
            dependents = [dependent for _, dependent, _ in self._dependents(obj["metadata"]["uid"], views)]
            if dependents:
                propagation = "Foreground"
                blocking = any(reference.get("blockOwnerDeletion") for reference, _ in owners)
                if blocking and any(
                    map(_deleted_in_foreground, dependents)
                ):  # a circle: its members would wait for each other
                    free = [{**reference, "blockOwnerDeletion": False} for reference, _ in owners]
                    return (Update(plural, _with_references(obj, free)),)
        propagation = _PROPAGATION.get(next(iter(_finalizers(obj) & _PROPAGATION.keys()), ""), propagation)
        return (Delete.of(plural, obj, propagation=propagation),)


_PROPAGATION = {FOREGROUND: "Foreground", ORPHAN: "Orphan"}
"""Deletion propagation by the finalizer that an object had before its delete."""


def _lookup(reference: Obj, namespace: str, views: Views) -> tuple[str, Obj] | None:
    """Return (plural, owner) for a reference of an object in `namespace`; None when the owner is absent."""
    kind = _owner_kind(reference)
    if kind is None:
        return None
    plural = kind.resource.plural
    owner = views[plural].get(reference.get("name", ""), namespace if kind.resource.namespaced else "")
    if owner is None or owner["metadata"].get("uid") != reference.get("uid"):
        return None
    return plural, owner


def _owner_kind(reference: Obj) -> Kind | None:
    group, slash, _ = reference.get("apiVersion", "").partition("/")
    return _BY_GROUP_AND_KIND.get((group if slash else "", reference.get("kind", "")))


def _owner_state(reference: Obj, plural: str, obj: Obj, views: Views) -> Owner:
    kind = _owner_kind(reference)
    if kind is None or (kind.resource.namespaced and not BY_PLURAL[plural].resource.namespaced):
        return Owner.PRESENT
    owner = _lookup(reference, obj["metadata"].get("namespace", ""), views)
    if owner is None:
        return Owner.ABSENT
    return Owner.WAITING if _deleted_in_foreground(owner[1]) else Owner.PRESENT


def _finalizers(obj: Obj) -> set[str]:
    return set(obj["metadata"].get("finalizers") or ())


def _deleted_in_foreground(obj: Obj) -> bool:
    """Return true when the object is being deleted in the foreground."""
    return bool(obj["metadata"].get("deletionTimestamp")) and FOREGROUND in _finalizers(obj)


def _awaits_collector(obj: Obj) -> bool:
    """Return true when the object is being deleted and has a finalizer of the garbage collector."""
    return bool(obj["metadata"].get("deletionTimestamp")) and not _finalizers(obj).isdisjoint(_PROPAGATION)


def _with_references(obj: Obj, wanted: list[Obj]) -> Obj:
    """Return a copy with these owner references."""
    metadata = {name: value for name, value in obj["metadata"].items() if name != "ownerReferences"}
    return {**obj, "metadata": metadata | ({"ownerReferences": wanted} if wanted else {})}


def _without_finalizer(obj: Obj, finalizer: str) -> Obj:
    """Return a copy without the finalizer."""
    metadata = {name: value for name, value in obj["metadata"].items() if name != "finalizers"}
    others = [other for other in obj["metadata"]["finalizers"] if other != finalizer]
    return {**obj, "metadata": metadata | ({"finalizers": others} if others else {})}
