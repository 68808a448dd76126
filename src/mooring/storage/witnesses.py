"""Witnesses: a count for each server, by which it knows at its next start whether the store still has what it remembers.

Rules kept here:
* A server adds one after something ended, and before it remembers that. A store whose count is lower was restored from a copy that
  is older, whatever other servers have written to it since: their writes move revisions, and not this count.
* The key belongs to the cluster, and is copied with it.
"""

from __future__ import annotations

from mooring.errors import StorageError
from mooring.storage.contract import KeyExistsError, RevisionMismatchError, Storage
from mooring.storage.keyspace import WITNESSES

MAX_TRIES = 10
"""Attempts while a copy of the server writes the key, too."""


async def read_witness(storage: Storage, identity: str) -> int:
    """Return the count of a server in the store; 0 without one. Raises StorageError."""
    entry = await storage.get(f"{WITNESSES}{identity}")
    return _count(entry.value) if entry is not None else 0


async def add_witness(storage: Storage, identity: str, before: int) -> tuple[int, int]:
    """Store a count that is greater than `before` and than the stored one. Return it, and its revision. Raises StorageError."""
    key = f"{WITNESSES}{identity}"
    for _ in range(MAX_TRIES):
        entry = await storage.get(key)
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
