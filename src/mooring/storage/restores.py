"""Records of restores in a store: the epoch of each server, and the revisions that a restored store left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from mooring.errors import StorageError
from mooring.storage.contract import KeyExistsError, RevisionMismatchError, Storage
from mooring.storage.keyspace import RESTORES, SERVER_EPOCHS

# Epochs of servers: a count for each server, by which it knows at its next start whether the store still has what it remembers.
#
# Rules kept here:
# * A server adds one to its epoch after something ended, and before it remembers that. A store with a lower one was restored from a
#   copy that is older, whatever other servers have written to it since: their writes move revisions, and not this count.
# * The key belongs to the cluster, and is copied with it.

MAX_TRIES = 10
"""Attempts while a copy of the server writes the key, too."""


async def read_epoch(storage: Storage, identity: str) -> int:
    """Return the epoch of a server in the store; 0 without one. Raises StorageError."""
    entry = await storage.get(f"{SERVER_EPOCHS}{identity}")
    return _count(entry.value) if entry is not None else 0


async def add_epoch(storage: Storage, identity: str, before: int) -> tuple[int, int]:
    """Store an epoch that is greater than `before` and than the stored one. Return it, and its revision. Raises StorageError."""
    key = f"{SERVER_EPOCHS}{identity}"
    for _ in range(MAX_TRIES):
        entry = await storage.get(key)
        # Greater than both: a copy of this server with the same identity may count, too.
        count = max(before, _count(entry.value) if entry is not None else 0) + 1
        try:
            if entry is None:
                written = await storage.create(key, str(count).encode())
            else:
                written = await storage.update(key, str(count).encode(), expected=entry.revision)
        except (KeyExistsError, RevisionMismatchError):
            continue
        return count, written.revision
    raise StorageError("another server with a copy of this data directory writes to the store all the time")


def _count(value: bytes) -> int:
    """Return the count in a value. One that cannot be read is none: the server compares, and writes it again."""
    return int(value) if value.isdigit() and len(value) < 20 else 0


# Records of restores inside a store: between which revisions a store left out what another copy of it had.
#
# Rules kept here:
# * A restore leaves out every revision after the one it was saved at, up to a floor below all later writes. Each server compares
#   the newest revision that it remembers with the records: a revision inside one was seen on a copy that is gone.
# * A record is written before revisions jump. A server that is killed in between writes it again.
# * The key belongs to the cluster, and is copied with it. The newest records are kept.

MAX_RECORDS = 64
"""Restores that are remembered; a server that was away for longer compares the store with too few of them."""


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
    except (ValueError, TypeError, RecursionError):
        raise StorageError(
            f"the key {RESTORES} of the store, which records restores, cannot be read; delete it, and settle what "
            "`mooring restore-check list` then shows"
        ) from None
