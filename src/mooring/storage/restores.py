"""Records of restores inside a store: between which revisions a store left out what another copy of it had.

Rules kept here:
* A restore leaves out every revision after the one it was saved at, up to a floor below all later writes. Each server compares the
  newest revision that it remembers with the records: a revision inside one was seen on a copy that is gone.
* A record is written before revisions jump. A server that is killed in between writes it again.
* The key belongs to the cluster, and is copied with it. The newest records are kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from mooring.errors import StorageError
from mooring.storage.contract import KeyExistsError, RevisionMismatchError, Storage
from mooring.storage.keyspace import RESTORES

MAX_RECORDS = 64
"""Restores that are remembered; a server that was away for longer compares the store with too few of them."""
MAX_TRIES = 10
"""Attempts while other servers write the key, too."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Writes after `saved` are lost; writes since have revisions above `floor`."""

    saved: int
    floor: int

    def lost(self, revision: int) -> bool:
        """Return whether a state at `revision` was seen on the copy that is gone."""
        return self.saved < revision <= self.floor


async def read_restores(storage: Storage) -> tuple[Restore, ...]:
    """Return the records, the oldest first. Raises StorageError for a value that cannot be read."""
    found = await storage.get(RESTORES)
    return _parsed(found.value) if found is not None else ()


async def record_restore(storage: Storage, saved: int, floor: int) -> None:
    """Add a record. Raises StorageError."""
    new = Restore(saved, floor)
    for _ in range(MAX_TRIES):
        entry = await storage.get(RESTORES)
        value = with_record(entry.value if entry is not None else None, new)
        if entry is not None and value == entry.value:
            return
        try:
            if entry is None:
                await storage.create(RESTORES, value)
            else:
                await storage.update(RESTORES, value, expected=entry.revision)
            return
        except (KeyExistsError, RevisionMismatchError):
            continue
    raise StorageError("the restore of the store could not be recorded: other servers write at the same time")


def with_record(value: bytes | None, new: Restore) -> bytes:
    """Return the value of the key with another record. Raises StorageError."""
    records = _parsed(value) if value is not None else ()
    kept = records if new in records else (*records, new)
    return json.dumps([[one.saved, one.floor] for one in kept[-MAX_RECORDS:]]).encode()


def _parsed(value: bytes) -> tuple[Restore, ...]:
    try:
        pairs: Sequence[Sequence[int]] = json.loads(value)
        return tuple(Restore(int(saved), int(floor)) for saved, floor in pairs)
    except (ValueError, TypeError):
        raise StorageError(
            f"the key {RESTORES} of the store, which records restores, cannot be read; delete it, and settle what "
            "`mooring ends list` then shows"
        ) from None
