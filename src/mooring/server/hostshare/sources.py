"""Tables of sources in shared memory, for all workers of a host: their connections and held bytes, and their token buckets.

Rules kept here:
* Names have any length, and cells have one word. A key is a keyed hash (BLAKE2b, RFC 7693) of a name, under a random secret that is
  made at the start of the server. A client cannot find another name with the same key, nor choose with whom it shares a set.
* A table is divided into sets of WAYS cells. A name has its place in one set only, so that finding it costs the same at any size.
  0 marks a free cell.

Connections and held bytes (`SharedSources`):
* A cell belongs to a source while any worker has a connection of it. Each worker has its own numbers in it, so the parent can
  clear those of a worker that ended.
* A cell is taken under a lock, when the first connection of a source arrives at a worker. After that a worker only writes its own
  numbers, without a lock: its own connection keeps the cell.
* A source that finds its set full is counted by each worker alone. Sets are larger than connections make likely.

Token buckets (`SharedBuckets`, which implements `mooring.authn.guesses.Buckets`):
* A change is made under a lock. Reading takes none: the words of a cell are each read whole, and the worst is a value that is one
  change old.
* A full set loses the bucket that was changed longest ago.
* A worker may be killed between two words. A cell that is taken over gets its level and time before its key, so that an incomplete
  one is the full bucket of its former source.
* Values that no worker writes, such as a time far in the future, count as a full bucket: a damaged cell never refuses a source for
  ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b

from mooring.authn.guesses import Bucket
from mooring.server.hostshare.counts import Count

WAYS = 16
"""Cells of a set. Sets that are a third full on average overflow once in a million."""
SECRET_BYTES = 16


def key_of(name: str, secret: bytes) -> int:
    """Return the key of a name: a word that is not 0."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8, key=secret).digest(), "little") or 1


def first_cell(key: int, cells: int) -> int:
    """Return the first cell of the set of a key, in a table of `cells` cells."""
    return key % (cells // WAYS) * WAYS


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


MAX_AHEAD = 5.0
"""Seconds by which a bucket may be newer than `now` of a change: workers read the clock before they take the lock."""


class SharedBuckets:
    """Table of buckets: three arrays of the same length."""

    def __init__(
        self,
        keys: memoryview[int],
        levels: memoryview[float],
        times: memoryview[float],
        lock: AbstractContextManager[None],
        secret: bytes,
    ) -> None:
        self._keys = keys
        self._levels = levels
        self._times = times
        self._lock = lock
        self._secret = secret

    def find(self, source: str) -> Bucket | None:
        """See `Buckets.find`."""
        key = key_of(source, self._secret)
        cell = self._cell(key, first_cell(key, len(self._keys)))
        return None if cell is None else Bucket(self._levels[cell], self._times[cell])

    def change(self, source: str, fresh: Bucket, change: Callable[[Bucket], float]) -> float:
        """See `Buckets.change`."""
        key = key_of(source, self._secret)
        first = first_cell(key, len(self._keys))
        with self._lock:
            cell = self._cell(key, first)
            if cell is None:
                bucket = fresh
            else:
                bucket = Bucket(self._levels[cell], self._times[cell])
                if not (0.0 <= bucket.level <= fresh.level and bucket.at <= fresh.at + MAX_AHEAD):
                    bucket = fresh
            result = change(bucket)
            if cell is None:
                cell = self._free_cell(first)
                self._levels[cell], self._times[cell] = bucket.level, bucket.at
                self._keys[cell] = key
            else:
                self._levels[cell], self._times[cell] = bucket.level, bucket.at
            return result

    def _cell(self, key: int, first: int) -> int | None:
        keys = self._keys[first : first + WAYS].tolist()
        return first + keys.index(key) if key in keys else None

    def _free_cell(self, first: int) -> int:
        """Return a free cell of a set, or the one that was changed longest ago."""
        keys = self._keys[first : first + WAYS].tolist()
        if 0 in keys:
            return first + keys.index(0)
        times = self._times[first : first + WAYS].tolist()
        return first + times.index(min(times))
