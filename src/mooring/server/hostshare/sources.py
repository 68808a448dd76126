"""Connections and held bytes of each source, of all workers of a host.

Rules kept here:
* A cell belongs to a source while any worker has a connection of it. Each worker has its own numbers in it, so the parent can
  clear those of a worker that ended.
* A cell is taken under a lock, when the first connection of a source arrives at a worker. After that a worker only writes its own
  numbers, without a lock: its own connection keeps the cell.
* A source that finds its set full is counted by each worker alone. Sets are larger than connections make likely.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from mooring.server.hostshare.counts import Count
from mooring.server.hostshare.hashing import WAYS, first_cell, key_of


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Numbers of one source."""

    connections: Count
    held_bytes: Count

    def release(self) -> None:
        """Set the numbers of this worker to 0: another source may get the cell."""
        self.held_bytes.set(0)
        self.connections.set(0)


class SharedSources:
    """Table of sources. `connections` and `held_bytes` have as many numbers for each worker as there are keys."""

    def __init__(
        self,
        keys: memoryview[int],
        connections: memoryview[int],
        held_bytes: memoryview[int],
        lock: AbstractContextManager[None],
        secret: bytes,
        worker: int,
    ) -> None:
        self._keys = keys
        self._connections = connections
        self._held_bytes = held_bytes
        self._lock = lock
        self._secret = secret
        self._worker = worker

    def claim(self, source: str) -> SourceCounts | None:
        """Return the numbers of a source, with one connection of this worker; None when its set is full."""
        key = key_of(source, self._secret)
        first = first_cell(key, len(self._keys))
        with self._lock:
            keys = self._keys[first : first + WAYS].tolist()
            if key in keys:
                counts = self._counts(first + keys.index(key))
                counts.connections.set(1)
                return counts
            for cell in range(first, first + WAYS):
                counts = self._counts(cell)
                if not counts.connections.total:
                    self._keys[cell] = key
                    counts.connections.set(1)
                    return counts
        return None

    def _counts(self, cell: int) -> SourceCounts:
        step = len(self._keys)
        return SourceCounts(
            Count(self._connections[cell::step], self._worker), Count(self._held_bytes[cell::step], self._worker)
        )
