"""Token buckets by source in shared memory: `mooring.authn.guesses.Buckets` for all workers of a host.

Rules kept here:
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

from mooring.authn.guesses import Bucket
from mooring.server.hostshare.hashing import WAYS, first_cell, key_of

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
