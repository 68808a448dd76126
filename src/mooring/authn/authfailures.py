"""Limit on failed authentications of one source, so that guessing credentials slows down the guesser and no other caller.

Rules kept here (kube-apiserver has no such limit):
1. Only failures count, and only those of requests with a credential. A request that is accepted is never slowed, whatever fails
   behind the same address. `failed` is called after the chain has rejected, never before.
2. A source is a name that the caller gives. The server names one IPv4 address or one IPv6 /64
   (`mooring.server.transport.tlsconnection`).
3. Each source has a bucket of `burst` failures that refills at `per_second`. A failure beyond it is refused with the seconds
   until the next one is answered. A refused failure takes nothing from the bucket, so waiting always helps.
4. The table of buckets is bounded: the source whose last failure is oldest is evicted first, and starts afresh. The workers of one
   host share a table (`mooring.server.sharedmemory`), so that a source has one budget for all of them.
5. A password costs far more to judge than to send. So no password of an `exhausted` source is judged; remembered acceptances
   still count.
6. Times are seconds of a clock that never goes back. A step back counts as no progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mooring.bounded import Bounded

BURST = 20  # a node with a stale token and a few retries stays below; a scan does not
PER_SECOND = 1.0  # 10 000 guesses from one source take hours instead of seconds
MAX_SOURCES = 16_384  # some 3 MiB at most; a flood from more sources than that only forgets the oldest


@dataclass(slots=True)
class GuessCounters:
    """Counters for the operator's metrics."""

    failures: int = 0
    refused: int = 0


@dataclass(slots=True)
class Bucket:
    """Token bucket of one source."""

    level: float
    at: float
    """Time for which `level` is right, in seconds of a clock that never goes back."""

    def refill(self, now: float, burst: float, per_second: float) -> None:
        """Add what was gained until `now`."""
        if now > self.at:
            self.level = min(burst, self.level + (now - self.at) * per_second)
            self.at = now


class Buckets(Protocol):
    """Table of buckets by source, of bounded size."""

    def find(self, source: str) -> Bucket | None:
        """Return a copy of a bucket, or the bucket itself; None for a source that is not in the table."""

    def change(self, source: str, fresh: Bucket, change: Callable[[Bucket], float]) -> float:
        """Apply `change` to the bucket of a source, or to `fresh` when it has none. Keep the bucket, and return the result."""


class LocalBuckets:
    """Table of one process: the source whose last failure is oldest is evicted first."""

    def __init__(self, most: int = MAX_SOURCES) -> None:
        if most < 1:
            raise ValueError("the number of sources must be positive")
        self._buckets: Bounded[str, Bucket] = Bounded(most)

    def __len__(self) -> int:
        return len(self._buckets)

    def find(self, source: str) -> Bucket | None:
        """See `Buckets.find`."""
        return self._buckets.get(source)

    def change(self, source: str, fresh: Bucket, change: Callable[[Bucket], float]) -> float:
        """See `Buckets.change`."""
        bucket = self._buckets.get(source)
        if bucket is None:
            bucket = self._buckets[source] = fresh
        else:
            self._buckets.move_to_end(source)
        return change(bucket)


class AuthFailureLimiter:
    """Token buckets by source. `buckets`: a table that other processes may share; by default one of this process."""

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND, buckets: Buckets | None = None) -> None:
        if burst < 1 or per_second <= 0:
            raise ValueError("burst and per_second must be positive")
        self._burst = float(burst)
        self._per_second = per_second
        self._buckets = LocalBuckets() if buckets is None else buckets
        self.counters = GuessCounters()

    def failed(self, source: str, now: float) -> float:
        """Count one failed authentication. Return 0.0 to answer it, else the seconds for which it is refused."""
        self.counters.failures += 1
        seconds = self._buckets.change(source, Bucket(self._burst, now), partial(self._take, now))
        self.counters.refused += seconds > 0
        return seconds

    def exhausted(self, source: str, now: float) -> bool:
        """Return whether a failure of `source` would be refused now. Counts nothing."""
        bucket = self._buckets.find(source)
        if bucket is None:
            return False
        bucket.refill(now, self._burst, self._per_second)
        return bucket.level < 1.0

    def _take(self, now: float, bucket: Bucket) -> float:
        bucket.refill(now, self._burst, self._per_second)
        if bucket.level >= 1.0:
            bucket.level -= 1.0
            return 0.0
        return (1.0 - bucket.level) / self._per_second
