"""Memory that clients make the server hold: counted for each connection, bounded for each source and for all of them.

Rules kept here:
* Counted are replies that a client has not taken, bodies and headers that are being received, and requests that wait behind
  others of their connection. Of a long list that is made from kept objects every fourth octet counts
  (`mooring.server.transport.http`).
* Whoever holds too much loses it. Connections of a source above its share are cut off, the largest first, of equals the oldest;
  when all sources together hold too much, those of the source that holds most. A connection that is merely written to is not.
* The largest connection of a source does not count against its share: one list may be larger than any share.
* Counts of connections are those of their last write, which may be more than the truth. They are made exact before anything is
  cut, and by the listener's look every few seconds.
* Relief goes below the limit, so that a look at all connections of a source pays for many bytes.
* A reader moves when it takes `MIN_PROGRESS`, or all that waits, within `STALLED_SECONDS`. Time is a value here.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from typing import Protocol

MAX_HELD_IN_ALL = 512 << 20
"""Half of the memory that 20 000 connections with watches weigh (docs/adr/0017)."""
MAX_HELD_OF_SOURCE = MAX_HELD_IN_ALL // 2
"""As with connections and streams, one source may have half. A load balancer that hides its clients is one source."""
RELIEF = 0.75
"""Part of a limit to which it is relieved: the next look at every connection comes a quarter of the limit later."""
STALLED_SECONDS = 20.0
"""A reader that has not moved for so long, and is found out within `LOOK_SECONDS` twice, ends within 30 s."""
LOOK_SECONDS = 5.0
"""Time between two looks at connections for which something waits."""
MIN_PROGRESS = 16 << 10
"""Bytes that a reader takes in `STALLED_SECONDS`: one TLS record. At 0.8 kB/s a list of 64 kB still arrives."""

log = logging.getLogger("mooring.server")


class Holder(Protocol):
    """A connection."""

    held: int
    """Octets, as counted last."""

    def recount(self) -> int:
        """Octets, as of now."""

    def cut(self) -> None:
        """End the connection at once."""


class Source:
    """Connections of one network."""

    __slots__ = ("holders", "limit", "network", "octets")

    def __init__(self, network: str, limit: int) -> None:
        self.network = network
        self.octets = 0
        self.limit = limit
        """Octets above which its connections are looked at: its share, or more for a while when that was found in order."""
        self.holders: dict[Holder, None] = {}
        """The oldest first."""


class Holdings:
    """What all connections of a listener hold."""

    def __init__(self, in_all: int = MAX_HELD_IN_ALL, of_source: int = MAX_HELD_OF_SOURCE) -> None:
        self._in_all = in_all
        self._of_source = of_source
        self._sources: dict[str, Source] = {}
        self.octets = 0
        self.cut_off = 0
        """Connections that were cut off, for whatever reason."""

    def source(self, network: str) -> Source | None:
        """The source of this name, while it has connections."""
        return self._sources.get(network)

    def admit(self, network: str, holder: Holder) -> Source:
        """Add a connection that holds nothing yet."""
        source = self._sources.get(network)
        if source is None:
            source = self._sources[network] = Source(network, self._of_source)
        source.holders[holder] = None
        return source

    def dismiss(self, source: Source, holder: Holder) -> None:
        """Forget a connection. Idempotent."""
        if holder in source.holders:
            del source.holders[holder]
            self._set(source, holder, 0)
            if not source.holders:
                del self._sources[source.network]

    def change(self, source: Source, holder: Holder, octets: int) -> None:
        """Note that `holder` now holds so much, and cut off whoever makes that too much."""
        change = octets - holder.held
        holder.held = octets
        source.octets += change
        self.octets += change
        if change > 0 and (source.octets > source.limit or self.octets > self._in_all):
            self._relieve(source)

    def look(self) -> None:
        """Hold every source to its share again, at its next write."""
        for source in self._sources.values():
            source.limit = self._of_source

    def cut(self, holder: Holder) -> None:
        """Cut one connection off."""
        self.cut_off += 1
        holder.cut()

    def _set(self, source: Source, holder: Holder, octets: int) -> None:
        change = octets - holder.held
        holder.held = octets
        source.octets += change
        self.octets += change

    def _relieve(self, source: Source) -> None:
        self._recount(source)
        largest = max(holder.held for holder in source.holders)
        if source.octets - largest > self._of_source * RELIEF:
            self._cut_down(source)
        source.limit = max(self._of_source, source.octets + int(self._of_source * (1 - RELIEF)))
        if self.octets <= self._in_all:
            return
        for each in self._sources.values():
            self._recount(each)
        self._cut_down_all(self._in_all * RELIEF)

    def _recount(self, source: Source) -> None:
        for holder in source.holders:
            self._set(source, holder, holder.recount())

    def _cut_down(self, source: Source) -> None:
        limit = self._of_source * RELIEF
        before = self.cut_off
        for _ in self._cuts(source):
            if source.octets <= limit:
                break
        log.warning("%s held more than its share: %d connections cut off", source.network, self.cut_off - before)

    def _cut_down_all(self, limit: float) -> None:
        before = self.cut_off
        heap = [(-source.octets, number, source) for number, source in enumerate(self._sources.values())]
        heapq.heapify(heap)
        cuts = {number: self._cuts(source) for _, number, source in heap}
        while self.octets > limit:
            _, number, source = heap[0]
            next(cuts[number])
            heapq.heapreplace(heap, (-source.octets, number, source))
        log.warning("clients held more than the server gives: %d connections cut off", self.cut_off - before)

    def _cuts(self, source: Source) -> Iterator[Holder]:
        """Cut connections off one by one, the largest first, of equals the oldest."""
        for holder in sorted(source.holders, key=lambda holder: -holder.held):
            self._set(source, holder, 0)
            self.cut(holder)
            yield holder


class Progress:
    """How a reader moves for which something waits."""

    __slots__ = ("_mark", "_needed", "_since")

    def __init__(self, taken: int, waiting: int, now: float) -> None:
        self._start(taken, waiting, now)

    def _start(self, taken: int, waiting: int, now: float) -> None:
        self._mark = taken
        self._needed = min(MIN_PROGRESS, waiting)
        self._since = now

    def is_stalled(self, taken: int, waiting: int, now: float) -> bool:
        """Whether the reader has not moved for too long. `taken` counts all octets that it ever took."""
        if taken - self._mark >= self._needed:
            self._start(taken, waiting, now)
        return now - self._since >= STALLED_SECONDS
