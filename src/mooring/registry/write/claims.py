"""Claim values that no two objects may share, such as Service addresses: each is a key of its own in the store.

Rules kept here:
* Before an object is written, every value that it newly claims is created as a key, which the store lets only one server do. A
  write that is known to have failed gives its claims back. When the outcome of a write is unknown the claims stay, so that no
  value is granted twice.
* A value that an object no longer has is given back once that state is stored.
* A claim whose owner does not have the value, and which is older than any write takes, was left by a server that died. A write that
  needs it takes it over, by compare-and-swap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import datetime, timedelta

import msgspec

from mooring.api.kind import Change, Claim, Kind
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.uid import uuid4
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import StorageError
from mooring.registry.reader import Reader
from mooring.storage.contract import Entry, KeyExistsError, RevisionMismatchError, Storage

GRACE = timedelta(minutes=5)
"""Age from which a claim without an object may be taken over: no request takes longer than one minute, and clocks may differ."""
OWNER = "mooring.dev/owner-uid"
"""Annotation of a claim with the uid of the object that owns it."""

log = logging.getLogger(__name__)


class ClaimedError(Exception):
    """Another object has the claimed value, or is being given it."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim.key)
        self.claim = claim


class Claims:
    """Claims of every kind."""

    def __init__(self, storage: Storage, reader: Reader, entropy: Callable[[int], bytes]) -> None:
        self._storage = storage
        self._reader = reader
        self._entropy = entropy

    async def take(self, kind: Kind, new: Obj, old: Obj | None, change: Change) -> list[str]:
        """Claim the values that `new` has and `old` had not, and return the keys. Raises ClaimedError, having claimed nothing."""
        had = claimed(kind, old)
        taken: list[str] = []
        for claim in kind.claims(new):
            if claim.key in had:
                continue
            value = self._value(claim, new, change.now)
            try:
                await self._storage.create(claim.key, value)
            except KeyExistsError as failure:
                if not await self._take_over(kind, claim, failure.current, value, change.now):
                    await self.give_back(taken, new)
                    raise ClaimedError(claim) from None
            taken.append(claim.key)
        return taken

    async def settle(self, kind: Kind, old: Obj, new: Obj | None) -> None:
        """Give back the values that `old` had and `new`, which is stored now, has not; None for a deleted object."""
        keys = claimed(kind, old)
        if keys:
            await self.give_back(keys - claimed(kind, new), old)

    async def give_back(self, keys: Collection[str], owner: Obj) -> None:
        """Delete the claims that `owner` owns. One that cannot be deleted now may be taken over after `GRACE`."""
        for key in keys:
            try:
                entry = await self._storage.get(key)
                if entry is not None and _owner(entry) == owner["metadata"].get("uid"):
                    await self._storage.delete(key, expected=entry.revision)
            except RevisionMismatchError:
                continue
            except StorageError as error:
                log.warning("the claim %s could not be given back: %s", key, error)

    async def _take_over(self, kind: Kind, claim: Claim, found: Entry, value: bytes, now: datetime) -> bool:
        """Take over a claim that its owner does not use. Return False when it is in use, or too young."""
        stored = _decode(found)
        if not _is_old(stored, now):
            return False
        parent = (stored.get("spec") or {}).get("parentRef") or {}
        holder = await self._reader.current(kind, parent.get("namespace", ""), parent.get("name", ""))
        if holder is not None and claim.key in claimed(kind, holder.obj):
            return False
        try:
            await self._storage.update(claim.key, value, expected=found.revision)
        except RevisionMismatchError:
            return False
        return True

    def _value(self, claim: Claim, owner: Obj, now: datetime) -> bytes:
        metadata = {
            **claim.value["metadata"],
            "uid": uuid4(self._entropy),
            "creationTimestamp": rfc3339(now),
            "annotations": {OWNER: owner["metadata"].get("uid", "")},
        }
        return encode_json({**claim.value, "metadata": metadata})


def claimed(kind: Kind, obj: Obj | None) -> set[str]:
    """Return the keys of the values that `obj` claims."""
    return {claim.key for claim in kind.claims(obj)} if obj is not None else set()


def _decode(entry: Entry) -> Obj:
    """Return the object in a claim, empty when it is not a JSON object."""
    try:
        found = msgspec.json.decode(entry.value)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _owner(entry: Entry) -> str:
    owner: str = ((_decode(entry).get("metadata") or {}).get("annotations") or {}).get(OWNER, "")
    return owner


def _is_old(claim: Obj, now: datetime) -> bool:
    try:
        made = parse_rfc3339((claim.get("metadata") or {}).get("creationTimestamp", ""))
    except ValueError:
        return False
    return now - made > GRACE
