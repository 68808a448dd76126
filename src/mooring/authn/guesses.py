"""Limit on failed authentications of one source, so that guessing credentials slows down the guesser and no other caller.

Rules kept here (kube-apiserver has no such limit):
1. Only failures count, and only those of requests with a credential. A request that is accepted is never slowed, whatever fails
   behind the same address. `failed` is called after the chain has rejected, never before.
2. A source is a name that the caller gives. The server names one IPv4 address or one IPv6 /64
   (`mooring.server.transport.sourcenetwork`).
3. Each source has a bucket of `burst` failures that refills at `per_second`. A failure beyond it is refused with the seconds
   until the next one is answered. A refused failure takes nothing from the bucket, so waiting always helps.
4. The table is bounded: the source whose last failure is oldest is evicted first, and starts afresh.
5. A password costs far more to judge than to send. So no password of an `exhausted` source is judged; remembered acceptances
   still count.
6. Times are seconds of a clock that never goes back. A step back counts as no progress.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

BURST = 20  # a node with a stale token and a few retries stays below; a scan does not
PER_SECOND = 1.0  # 10 000 guesses from one source take hours instead of seconds
MAX_SOURCES = 16_384  # some 3 MiB at most; a flood from more sources than that only forgets the oldest


@dataclass(slots=True)
class Counters:
    """Counters for the operator's metrics."""

    failures: int = 0
    refused: int = 0


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


class GuessLimiter:
    """Token buckets by source. One per server process."""

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND, max_sources: int = MAX_SOURCES) -> None:
        if burst < 1 or per_second <= 0 or max_sources < 1:
            raise ValueError("burst, per_second and max_sources must be positive")
        self._burst = float(burst)
        self._per_second = per_second
        self._max_sources = max_sources
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self.counters = Counters()

    @property
    def sources(self) -> int:
        """Number of sources in the table."""
        return len(self._buckets)

    def failed(self, source: str, now: float) -> float:
        """Count one failed authentication. Return 0.0 to answer it, else the seconds for which it is refused."""
        self.counters.failures += 1
        bucket = self._buckets.get(source)
        if bucket is None:
            if len(self._buckets) >= self._max_sources:
                self._buckets.popitem(last=False)
            bucket = self._buckets[source] = _Bucket(self._burst, now)
        else:
            self._buckets.move_to_end(source)
            self._refill(bucket, now)
        if bucket.level >= 1.0:
            bucket.level -= 1.0
            return 0.0
        self.counters.refused += 1
        return (1.0 - bucket.level) / self._per_second

    def exhausted(self, source: str, now: float) -> bool:
        """Return whether a failure of `source` would be refused now. Counts nothing."""
        bucket = self._buckets.get(source)
        if bucket is None:
            return False
        self._refill(bucket, now)
        return bucket.level < 1.0

    def _refill(self, bucket: _Bucket, now: float) -> None:
        if now > bucket.at:
            bucket.level = min(self._burst, bucket.level + (now - bucket.at) * self._per_second)
            bucket.at = now
