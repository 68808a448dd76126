"""Claim values that no two objects may share, such as Service addresses: each is a key of its own in the store.

Rules kept here:
* Before an object is written, every value that it newly claims is created as a key, which the store lets only one server do. A
  write that is known to have failed gives its claims back. When the outcome of a write is unknown the claims stay, so that no
  value is granted twice.
* A value that an object no longer has is given back once that state is stored.
* A claim whose owner does not have the value, and which is older than any write takes, was left by a server that
  died. A write that needs it takes it over.
* A kube-apiserver on the same store claims addresses by the same keys, without the annotation of the owner: the parent decides who
  owns such a claim. It keeps node ports in a bitmap: where the bitmap exists, the bit is part of the claim. A bit without a Service
  that a dead server left is cleared by kube-apiserver (docs/protocol/storage.md#allocations).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime, timedelta

from mooring.api.core.servicevalidation import decode_record, is_allocated, with_bit
from mooring.api.kind import Change, Kind, ValueClaim
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.names import uuid4
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import StorageError
from mooring.registry.reader import RegistryReader
from mooring.storage.contract import Entry, KeyExistsError, RevisionMismatchError, Storage

GRACE = timedelta(minutes=5)
"""Age from which a claim without an object may be taken over: no request takes longer than one minute, and clocks may differ."""
BIT_TRIES = 20
"""Attempts to change one bit of the bitmap while other servers change others."""
OWNER = "mooring.dev/owner-uid"
"""Annotation of a claim with the uid of the object that owns it."""

log = logging.getLogger(__name__)


class ClaimedError(Exception):
    """Another object has the claimed value, or is being given it."""

    def __init__(self, claim: ValueClaim) -> None:
        super().__init__(claim.key)
        self.claim = claim


class Claims:
    """Claims of every kind."""

    def __init__(self, storage: Storage, reader: RegistryReader, entropy: Callable[[int], bytes]) -> None:
        self._storage = storage
        self._reader = reader
        self._entropy = entropy

    async def take(self, kind: Kind, new: Obj, old: Obj | None, change: Change) -> list[ValueClaim]:
        """Claim the values that `new` has and `old` had not, and return the claims. Raises ClaimedError, having claimed nothing."""
        had = claimed(kind, old)
        taken: list[ValueClaim] = []
        for claim in kind.claims(new):
            if claim.key in had:
                continue
            if not await self._take(kind, claim, self._value(claim, new, change.now), change.now):
                # A refused write has claimed nothing: its caller has no list of claims that it could give back.
                await self.give_back(taken, new)
                raise ClaimedError(claim)
            taken.append(claim)
        return taken

    async def _take(self, kind: Kind, claim: ValueClaim, value: bytes, now: datetime) -> bool:
        try:
            revision = (await self._storage.create(claim.key, value)).revision
        except KeyExistsError as failure:
            found = await self._take_over(kind, claim, failure.current, value, now)
            if found is None:
                return False
            revision = found
        if claim.bit is None or await self._set_bit(claim.bit, True):
            return True
        # The bit belongs to another Service, or could not be set. The key must not stay without it.
        with suppress(RevisionMismatchError):  # then another server has taken the claim over
            await self._storage.delete(claim.key, expected=revision)
        return False

    async def settle(self, kind: Kind, old: Obj, new: Obj | None) -> None:
        """Give back the values that `old` had and `new`, which is stored now, has not; None for a deleted object."""
        had = kind.claims(old)
        if had:
            kept = claimed(kind, new)
            await self.give_back([claim for claim in had if claim.key not in kept], old)

    async def give_back(self, claims: Collection[ValueClaim], owner: Obj) -> None:
        """Delete the claims that `owner` owns. One that cannot be deleted now may be taken over after `GRACE`."""
        for claim in claims:
            try:
                entry = await self._storage.get(claim.key)
                # Another server may have taken the claim over. Its value must stay claimed.
                if entry is not None and not _owns(owner, decode_record(entry.value)):
                    continue
                # The bit first: after the key, another server may claim the value, and its bit must not be cleared.
                if claim.bit is not None:
                    await self._set_bit(claim.bit, False)
                if entry is not None:
                    await self._storage.delete(claim.key, expected=entry.revision)
            except RevisionMismatchError:
                continue
            except StorageError as error:
                log.warning("the claim %s could not be given back: %s", claim.key, error)

    async def _set_bit(self, place: tuple[str, int], allocated: bool) -> bool:
        """Set or clear a bit of kube-apiserver's bitmap. Return False when it is so already, or changes all the time.

        Without a bitmap there is nothing to change, and the result is True.
        """
        key, offset = place
        for _ in range(BIT_TRIES):
            entry = await self._storage.get(key)
            bitmap = decode_record(entry.value) if entry is not None else {}
            if entry is None or not bitmap:
                return True
            if is_allocated(bitmap, offset) == allocated:
                return False
            with suppress(RevisionMismatchError):
                await self._storage.update(
                    key, encode_json(with_bit(bitmap, offset, allocated)), expected=entry.revision
                )
                return True
        return False

    async def _take_over(self, kind: Kind, claim: ValueClaim, found: Entry, value: bytes, now: datetime) -> int | None:
        """Take over a claim that its owner does not use, and return its revision. Return None when it is in use, or too young."""
        stored = decode_record(found.value)
        # The writer of a young claim may still be about to store its object.
        if not _is_old(stored, now):
            return None
        parent = (stored.get("spec") or {}).get("parentRef") or {}
        holder = await self._reader.current(kind, parent.get("namespace", ""), parent.get("name", ""))
        if holder is not None and claim.key in claimed(kind, holder.obj):
            return None
        # By compare-and-swap: of two servers that take the claim over, one gets it.
        try:
            return (await self._storage.update(claim.key, value, expected=found.revision)).revision
        except RevisionMismatchError:
            return None

    def _value(self, claim: ValueClaim, owner: Obj, now: datetime) -> bytes:
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


def _owns(owner: Obj, claim: Obj) -> bool:
    """Return whether `owner` has `claim`: by uid, or by name when a kube-apiserver made the claim."""
    metadata = owner["metadata"]
    uid = ((claim.get("metadata") or {}).get("annotations") or {}).get(OWNER)
    if uid is not None:
        return bool(uid == metadata.get("uid"))
    parent = (claim.get("spec") or {}).get("parentRef") or {}
    return (parent.get("namespace"), parent.get("name")) == (metadata.get("namespace"), metadata.get("name"))


def _is_old(claim: Obj, now: datetime) -> bool:
    try:
        made = parse_rfc3339((claim.get("metadata") or {}).get("creationTimestamp", ""))
    except ValueError:
        return False
    return now - made > GRACE
