"""Bound the memory that clients make the server hold, for each source and in all (docs/adr/0025).

Rules kept here:
* Replies that a client has not taken, bodies and headers that are being received, and pipelined requests count as held. Of a long
  list that is made from cached objects every fourth byte counts (`mooring.server.transport.http`).
* A source above its share loses connections, the largest first, of equals the oldest. When all sources together hold too much, the
  source that holds most loses them. A connection that only caused the check by a write is not cut off for that.
* The largest connection of a source does not count against its share: one list may be larger than any share.
* The count of a connection is that of its last write, and may be too high. It is made exact before anything is cut off, and by the
  listener's check every few seconds.
* Connections are cut off until the total is well below the limit, so that the next exact count comes many bytes later.
* Limits hold for the host. Above one, each worker gives up the same part of what it holds itself: at its next write, or at the
  listener's next check.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from typing import Protocol

from mooring.server.sharedmemory import ALONE, Counted, SourceCounts, WorkerMemory

MAX_HELD = 512 << 20
"""Bytes: half of the memory that 20 000 connections with watches take (docs/adr/0017)."""
MAX_HELD_BY_SOURCE = MAX_HELD // 2
"""Bytes: half, as for connections and streams. All clients behind one load balancer may be one source."""
RELIEF = 0.75
"""Part of a limit to which held memory is reduced: the next exact count comes a quarter of the limit later."""

log = logging.getLogger("mooring.server")


class Account(Protocol):
    """A connection for which memory is held."""

    held: int
    """Bytes, as counted last."""

    def recount(self) -> int:
        """Return the exact number of bytes held now."""

    def cut(self) -> None:
        """End the connection at once."""


class SourceNetwork:
    """Connections of one source network to this worker, the oldest first."""

    __slots__ = ("counts", "holders", "largest", "limit", "network", "size")

    def __init__(self, network: str, limit: int, counts: SourceCounts | None) -> None:
        self.network = network
        self.counts = counts
        """Numbers of the source at all workers; None while this process is alone."""
        self.size = 0
        self.largest = 0
        """Bytes of its largest connection, or more: exact at each check. Kept only beside other workers."""
        self.limit = limit
        """Bytes above which its connections are counted exactly: its share, or more after a count that found it in order."""
        self.holders: dict[Account, None] = {}

    @property
    def everywhere(self) -> int:
        """Number of connections to all workers."""
        return len(self.holders) if self.counts is None else self.counts.connections.total

    @property
    def elsewhere_held(self) -> int:
        """Bytes that other workers hold, without the largest connection of each."""
        return 0 if self.counts is None else self.counts.held_bytes.others


class HeldBytes:
    """Memory held for all connections of a listener."""

    def __init__(self, total: int = MAX_HELD, by_source: int = MAX_HELD_BY_SOURCE, share: WorkerMemory = ALONE) -> None:
        self._max_total = total
        self._max_by_source = by_source
        self._sources: dict[str, SourceNetwork] = {}
        self._shared = share.sources()
        self._everywhere = None if share.alone else share.count(Counted.HELD_BYTES)
        """Bytes that all workers hold; None while this process is alone."""
        self.size = 0
        self.cut_off = 0
        """Connections that were cut off, for any reason."""

    def source(self, network: str) -> SourceNetwork | None:
        """Return the source of a network, or None while it has no connection."""
        return self._sources.get(network)

    def admit(self, network: str, holder: Account) -> SourceNetwork:
        """Add a connection that holds nothing yet, and return its source."""
        source = self._sources.get(network)
        if source is None:
            counts = None if self._shared is None else self._shared.claim(network)
            source = self._sources[network] = SourceNetwork(network, self._max_by_source, counts)
        source.holders[holder] = None
        if source.counts is not None:
            source.counts.connections.set(len(source.holders))
        return source

    def dismiss(self, source: SourceNetwork, holder: Account) -> None:
        """Remove a connection. Idempotent."""
        if holder in source.holders:
            del source.holders[holder]
            self._set(source, holder, 0)
            if source.counts is not None:
                source.counts.connections.set(len(source.holders))
            if not source.holders:
                del self._sources[source.network]

    def change(self, source: SourceNetwork, holder: Account, size: int) -> None:
        """Set the bytes that `holder` holds, and cut connections off when that exceeds a limit."""
        grows = size > holder.held
        self._set(source, holder, size)
        if grows and self._is_above(source):
            self._relieve(source)

    def check(self) -> None:
        """Check every source against its share again: now what other workers made it exceed, the rest at its next write."""
        for source in tuple(self._sources.values()):
            source.limit = self._max_by_source
            if source.counts is not None and source.size:
                source.largest = 0
                self._recount(source)
                if self._is_above(source):
                    self._relieve(source)

    def cut(self, holder: Account) -> None:
        """Cut one connection off, and count that."""
        self.cut_off += 1
        holder.cut()

    def _set(self, source: SourceNetwork, holder: Account, size: int) -> None:
        change = size - holder.held
        holder.held = size
        source.size += change
        self.size += change
        if self._everywhere is not None:
            self._everywhere.set(self.size)
            if source.counts is not None:
                source.largest = max(source.largest, size)
                source.counts.held_bytes.set(max(0, source.size - source.largest))

    def _is_above(self, source: SourceNetwork) -> bool:
        if self._everywhere is None:
            return source.size > source.limit or self.size > self._max_total
        return source.size + source.elsewhere_held > source.limit or self._everywhere.total > self._max_total

    def _relieve(self, source: SourceNetwork) -> None:
        self._recount(source)
        largest = max(holder.held for holder in source.holders)
        elsewhere = source.elsewhere_held
        if source.size + elsewhere - largest > self._max_by_source * RELIEF:
            self._cut_down(source, self._max_by_source * RELIEF * _part(source.size, elsewhere))
        held = source.size + elsewhere
        source.limit = max(self._max_by_source, held + int(self._max_by_source * (1 - RELIEF)))
        elsewhere = 0 if self._everywhere is None else self._everywhere.others
        if self.size + elsewhere <= self._max_total:
            return
        for each in self._sources.values():
            self._recount(each)
        self._cut_down_all(self._max_total * RELIEF * _part(self.size, elsewhere))

    def _recount(self, source: SourceNetwork) -> None:
        for holder in source.holders:
            self._set(source, holder, holder.recount())

    def _cut_down(self, source: SourceNetwork, limit: float) -> None:
        before = self.cut_off
        for _ in self._cuts(source):
            if source.size <= limit:
                break
        log.warning(
            "%s made the server hold more memory than its share: %d connections cut off",
            source.network,
            self.cut_off - before,
        )

    def _cut_down_all(self, limit: float) -> None:
        before = self.cut_off
        heap = [(-source.size, number, source) for number, source in enumerate(self._sources.values())]
        heapq.heapify(heap)
        cuts = {number: self._cuts(source) for _, number, source in heap}
        while self.size > limit:
            _, number, source = heap[0]
            next(cuts[number])
            heapq.heapreplace(heap, (-source.size, number, source))
        log.warning(
            "clients made the server hold more memory than its limit: %d connections cut off", self.cut_off - before
        )

    def _cuts(self, source: SourceNetwork) -> Iterator[Account]:
        """Cut connections off one by one and yield them, the largest first, of equals the oldest."""
        for holder in sorted(source.holders, key=lambda holder: -holder.held):
            self._set(source, holder, 0)
            self.cut(holder)
            yield holder


def _part(here: int, elsewhere: int) -> float:
    """Return the part of a worker in what the host holds."""
    return here / max(1, here + elsewhere) if elsewhere else 1.0
