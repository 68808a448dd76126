"""Claims: what no two objects may have is a key of its own in the store, so that no two servers can grant it.

Rules kept here:
* Before an object is written, each thing it newly claims is created as a key; the store lets one server do that. A write that
  fails for certain gives back what it took. When the store does not say how a write ended, the claims stay: nothing is granted
  twice.
* What an object no longer has is given back once that is stored. An object from before there were claims has none to give back.
* A claim whose owner does not have the thing, and which is older than any write takes, was left by a server that died: whoever
  needs it takes it over, by compare-and-swap.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection
from datetime import datetime, timedelta

import msgspec

from mooring.api.kind import Change, Claim, Kind
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import StorageError
from mooring.registry.reading import Reader
from mooring.storage.contract import Entry, KeyExistsError, RevisionMismatchError, Storage

GRACE = timedelta(minutes=5)
"""Age at which a claim without an object is nobody's: no request takes longer than one minute, and clocks may differ."""
OWNER = "mooring.dev/owner-uid"
"""Annotation of a claim: the object that has it."""

log = logging.getLogger(__name__)


class ClaimedError(Exception):
    """Another object has this, or is about to."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(claim.key)
        self.claim = claim


class Claims:
    """Takes and gives back claims for every kind."""

    def __init__(self, storage: Storage, reader: Reader, entropy: Callable[[int], bytes]) -> None:
        self._storage = storage
        self._reader = reader
        self._entropy = entropy

    async def take(self, kind: Kind, new: Obj, old: Obj | None, change: Change) -> list[str]:
        """Claim for `new` what `old` did not have; the keys taken. Raises ClaimedError, and then nothing was taken."""
        had = claimed(kind, old)
        taken: list[str] = []
        for claim in kind.claims(new):
            if claim.key in had:
                continue
            value = self._value(claim, new, change.now)
            try:
                await self._storage.create(claim.key, value)
            except KeyExistsError as failure:
                if not await self._taken_over(kind, claim, failure.current, value, change.now):
                    await self.give_back(taken, new)
                    raise ClaimedError(claim) from None
            taken.append(claim.key)
        return taken

    async def settle(self, kind: Kind, old: Obj, new: Obj | None) -> None:
        """Give back what `old` had and `new`, which is stored now, has not; `new` None: nothing is left."""
        keys = claimed(kind, old)
        if keys:
            await self.give_back(keys - claimed(kind, new), old)

    async def give_back(self, keys: Collection[str], owner: Obj) -> None:
        """Delete those of the claims that are the owner's. What cannot be deleted now becomes nobody's with time."""
        for key in keys:
            try:
                entry = await self._storage.get(key)
                if entry is not None and _owner(entry) == owner["metadata"].get("uid"):
                    await self._storage.delete(key, expected=entry.revision)
            except RevisionMismatchError:
                continue
            except StorageError as error:
                log.warning("%s could not be given back: %s", key, error)

    async def _taken_over(self, kind: Kind, claim: Claim, found: Entry, value: bytes, now: datetime) -> bool:
        """Whether the claim was nobody's and is ours now."""
        left = _decoded(found)
        if not _is_old(left, now):
            return False
        parent = (left.get("spec") or {}).get("parentRef") or {}
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
            "uid": str(uuid.UUID(bytes=self._entropy(16), version=4)),
            "creationTimestamp": rfc3339(now),
            "annotations": {OWNER: owner["metadata"].get("uid", "")},
        }
        return encode_json({**claim.value, "metadata": metadata})


def claimed(kind: Kind, obj: Obj | None) -> set[str]:
    """The keys of what `obj` has and no other may have."""
    return {claim.key for claim in kind.claims(obj)} if obj is not None else set()


def _decoded(entry: Entry) -> Obj:
    """What a claim says; nothing, when it was written by somebody who writes it otherwise."""
    try:
        found = msgspec.json.decode(entry.value)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _owner(entry: Entry) -> str:
    owner: str = ((_decoded(entry).get("metadata") or {}).get("annotations") or {}).get(OWNER, "")
    return owner


def _is_old(claim: Obj, now: datetime) -> bool:
    try:
        made = parse_rfc3339((claim.get("metadata") or {}).get("creationTimestamp", ""))
    except ValueError:
        return False
    return now - made > GRACE
