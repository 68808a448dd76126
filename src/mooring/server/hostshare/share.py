"""Memory that the workers of one server share: made by the parent before its first fork, and inherited by every worker.

Rules kept here:
* The parent calls `HostMemory(seats)` once, `share_of(index)` in each worker after the fork, and `clear(index)` after worker
  `index` has ended and before its replacement is forked. So a worker that was killed leaves no counts behind.
* A server of one process calls nothing of this: `HostShare()` is the share of a process that is alone, and takes no shared memory.
* The kernel gives memory for the pages that were written only: tables for floods cost nothing before one.
* A document that a worker publishes stands in memory that only the workers have open, with its length and a checksum, in one of two
  places in turn. A worker that is killed while it writes leaves the one before, and its replacement goes on where it ended.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import struct
import weakref
import zlib
from dataclasses import dataclass
from enum import IntEnum

from mooring.authn.guesses import MAX_SOURCES, Buckets, LocalBuckets
from mooring.server.hostshare.counts import Count
from mooring.server.hostshare.lock import FILE_PAUSE_SECONDS, FILE_WORDS, HostLock, SharedFile, nameless_file
from mooring.server.hostshare.sources import SECRET_BYTES, SharedBuckets, SharedSources

MAX_SEATS = 64
"""Workers of one parent that may live at the same time: twice as many as may be configured (`mooring.settings.workers`)."""
SOURCE_CELLS = 65_536
"""Cells for sources with connections: three for each of the connections that a host accepts."""
_WORD = 8


MAX_DOCUMENT = 4 << 20
"""Bytes of a document: some 20 000 series of metrics. A longer one is not published."""
_DOCUMENT_HEADER = struct.Struct("<QII")
"""Number of the document, its length, and the CRC-32 of both and of its bytes."""
_PLACE = _DOCUMENT_HEADER.size + MAX_DOCUMENT


class Publication:
    """Documents that one worker publishes for the others, and that stay when it ends.

    `descriptor`: a file that belongs to the worker. No other one writes it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> bytes | None:
        """Return the newest whole document; None before the first."""
        found = [self._document(place) for place in (0, 1)]
        _, document = max(found, key=lambda one: one[0])
        return document

    def write(self, document: bytes) -> bool:
        """Publish a document. Return False when it is too long."""
        if len(document) > MAX_DOCUMENT:
            return False
        number = max(self._document(place)[0] for place in (0, 1)) + 1
        header = _DOCUMENT_HEADER.pack(number, len(document), _checksum(number, document))
        os.pwrite(self._descriptor, header + document, number % 2 * _PLACE)
        return True

    def _document(self, place: int) -> tuple[int, bytes | None]:
        header = os.pread(self._descriptor, _DOCUMENT_HEADER.size, place * _PLACE)
        if len(header) < _DOCUMENT_HEADER.size:
            return 0, None
        number, length, checksum = _DOCUMENT_HEADER.unpack(header)
        document = os.pread(self._descriptor, min(length, MAX_DOCUMENT), place * _PLACE + _DOCUMENT_HEADER.size)
        is_whole = number % 2 == place and len(document) == length and _checksum(number, document) == checksum
        return (number, document) if number and is_whole else (0, None)


def _checksum(number: int, document: bytes) -> int:
    return zlib.crc32(document, zlib.crc32(b"%d %d" % (number, len(document))))


class Counted(IntEnum):
    """Numbers that workers add up, in the order in which they stand in memory."""

    SEATS = 0
    """Requests that run."""
    ANONYMOUS_SEATS = 1
    """Anonymous requests that run."""
    QUEUED_USERS = 2
    """Users with a waiting request."""
    QUEUED_ANONYMOUS = 3
    """Anonymous requests that wait."""
    CONNECTIONS = 4
    """Client connections that were admitted."""
    HELD_BYTES = 5
    """Bytes held for clients."""
    PRESENT = 6
    """1 while the worker answers questions of the others."""
    BEATS = 7
    """Heartbeats of the worker. The parent reads them; they are not added up."""
    ACCEPTING = 8
    """0 while the worker accepts no connections, else 1 and the connections that it has accepted and not admitted yet."""
    SUPERVISOR_READING = 9
    """Requests at agent level of the supervisor API that run: those that change nothing."""
    SUPERVISOR_CHANGING = 10
    """Others of them."""


class Shared(IntEnum):
    """Files that all workers write."""

    AUDIT_LOG = 0
    REFUSED_AUDIT_LOG = 1


class _Lock(IntEnum):
    """Bytes of the file of locks. Those of files follow."""

    GUESSES = 0
    SOURCES = 1
    FILES = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostShare:
    """Part of one worker in the state of its host."""

    worker: int = 0
    """Index of this worker, from 0."""
    workers: int = 1
    """Number of workers among which limits are divided."""
    memory: HostMemory | None = None
    """None for a process that is alone."""

    @property
    def alone(self) -> bool:
        """True for a server of one process."""
        return self.memory is None

    def count(self, counted: Counted) -> Count:
        """Return a number of this worker that all workers add up."""
        return Count([0], 0) if self.memory is None else Count(self.memory.row(counted), self.worker)

    def buckets(self) -> Buckets:
        """Return the token buckets of sources."""
        return LocalBuckets() if self.memory is None else self.memory.buckets()

    def sources(self) -> SharedSources | None:
        """Return the numbers of sources with connections; None for a process that is alone."""
        return None if self.memory is None else self.memory.sources(self.worker)

    def file(self, shared: Shared) -> SharedFile | None:
        """Return a file that all workers write; None for a process that is alone."""
        return None if self.memory is None else self.memory.file(shared)


ALONE = HostShare()


class HostMemory:
    """Shared memory of a parent process and its workers.

    `seats`: workers that may live at the same time; a restart has one more than serve otherwise. `workers`: those that serve
    otherwise, by default all. Raises ValueError for numbers outside of 1 to MAX_SEATS.
    """

    def __init__(self, seats: int, workers: int = 0) -> None:
        self.seats, self.workers = seats, workers or seats
        if not 1 <= self.workers <= seats <= MAX_SEATS:
            raise ValueError(f"workers must be 1 to {MAX_SEATS}")
        self._lines = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(seats)]
        published = [nameless_file(f"mooring-{seat}") for seat in range(seats)]
        self._publications = [Publication(descriptor) for descriptor in published]
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self.locks = nameless_file("mooring-locks")
        weakref.finalize(self, _close, self._lines, [*published, self.locks])
        sizes = (
            len(Counted) * seats,
            *(MAX_SOURCES,) * 3,
            SOURCE_CELLS,
            *(SOURCE_CELLS * seats,) * 2,
            len(Shared) * FILE_WORDS,
        )
        memory, start, parts = memoryview(mmap.mmap(-1, sum(sizes) * _WORD)), 0, []
        for size in sizes:
            end = start + size * _WORD
            parts.append(memory[start:end])
            start = end
        counts, bucket_keys, levels, times, keys, connections, held_bytes, files = parts
        self._counts = counts.cast("q")
        self._bucket_keys, self._levels, self._times = bucket_keys.cast("Q"), levels.cast("d"), times.cast("d")
        self._source_keys = keys.cast("Q")
        self._connections, self._held_bytes = connections.cast("q"), held_bytes.cast("q")
        self._files = files.cast("q")

    def share_of(self, worker: int) -> HostShare:
        """Return the share of one worker. Called after the fork, in the worker."""
        return HostShare(worker=worker, workers=self.workers, memory=self)

    def clear(self, worker: int) -> None:
        """Forget what a worker that has ended had counted. Called before its replacement is forked."""
        for counted in Counted:
            self.row(counted)[worker] = 0
        zeros = memoryview(bytes(SOURCE_CELLS * _WORD)).cast("q")
        for numbers in (self._held_bytes, self._connections):
            numbers[worker * SOURCE_CELLS : (worker + 1) * SOURCE_CELLS] = zeros

    def row(self, counted: Counted) -> memoryview[int]:
        """Return one number, of all workers."""
        first = counted * self.seats
        return self._counts[first : first + self.seats]

    def questions(self, worker: int) -> socket.socket:
        """Return the socket at which a worker receives questions of the others."""
        return self._lines[worker][0]

    def line_to(self, worker: int) -> socket.socket:
        """Return the socket for questions to a worker."""
        return self._lines[worker][1]

    def publication(self, worker: int) -> Publication:
        """Return what a worker publishes for the others. `clear` does not forget it."""
        return self._publications[worker]

    def buckets(self) -> SharedBuckets:
        """Return the token buckets of sources."""
        lock = HostLock(self.locks, _Lock.GUESSES)
        return SharedBuckets(self._bucket_keys, self._levels, self._times, lock, self._secret)

    def sources(self, worker: int) -> SharedSources:
        """Return the numbers of sources with connections, as seen by one worker."""
        lock = HostLock(self.locks, _Lock.SOURCES)
        return SharedSources(self._source_keys, self._connections, self._held_bytes, lock, self._secret, worker)

    def file(self, shared: Shared) -> SharedFile:
        """Return a file that all workers write."""
        lock = HostLock(self.locks, _Lock.FILES + shared, FILE_PAUSE_SECONDS)
        return SharedFile(self._files[shared * FILE_WORDS : (shared + 1) * FILE_WORDS], lock, self.workers)


def _close(lines: list[tuple[socket.socket, socket.socket]], descriptors: list[int]) -> None:
    for ends in lines:
        for end in ends:
            end.close()
    for descriptor in descriptors:
        os.close(descriptor)
