"""Memory and locks that the workers of one server share: made before the first fork, and inherited by every worker."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import struct
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, MutableSequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

from mooring.authn.authfailures import MAX_SOURCES, Bucket, Buckets, LocalBuckets

# Locks between the workers of one host: for tables in shared memory that are changed rarely, and for files that all append to.
#
# Rules kept here:
# * A lock is a byte of a file that only the workers have open (fcntl(2), POSIX record locks). The kernel releases it when its
#   holder dies, however it dies.
# * No worker waits for longer than TRIES pauses: a holder that was stopped (SIGSTOP) would stop all others. After that the change
#   is made without the lock. Tables survive that: the worst is one lost or doubled count.
# * While a holder does not give the lock back, later changes do not wait again.
# * A lock is used by one thread of a process at a time: record locks do not separate threads.
# * The workers of one parent write one file, such as the audit log, and no other server does. The first worker that opens it
#   proves that no other server has it, and decides the name for all. The others, and replacements, follow that decision. Anyone
#   who writes or renames the file holds its lock.

TRIES = 50
"""A change takes some 10 µs. A holder that lost its core gets it back within a few milliseconds, and 10 ms are waited for it."""
PAUSE_SECONDS = 0.0002


def nameless_file(purpose: str) -> int:
    """Return a descriptor of a file that has no name, closed at exec. Linux needs no directory for it, other systems use /tmp."""
    memory_file: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    if memory_file is not None:
        return memory_file(purpose)
    descriptor, path = tempfile.mkstemp(prefix=purpose)
    os.unlink(path)  # noqa: PTH108 - a descriptor and a path, as mkstemp gives them
    return descriptor


class HostLock:
    """One byte of the file."""

    __slots__ = ("_descriptor", "_number", "_overdue", "_pause", "is_held")

    def __init__(self, descriptor: int, number: int, pause: float = PAUSE_SECONDS) -> None:
        """`pause`: seconds between two tries. Code that runs beside the event loop may wait longer."""
        self._descriptor = descriptor
        self._number = number
        self._pause = pause
        self.is_held = False
        self._overdue = False

    def __enter__(self) -> None:
        self.is_held = self._try()
        if self.is_held or self._overdue:
            self._overdue = not self.is_held
            return
        for _ in range(TRIES):
            time.sleep(self._pause)
            self.is_held = self._try()
            if self.is_held:
                return
        self._overdue = True

    def __exit__(self, *exception: object) -> None:
        if self.is_held:
            self.is_held = False
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._number)

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._number)
        except OSError:  # another worker has it, or the kernel has no lock left
            return False
        return True


FILE_PAUSE_SECONDS = 0.05
"""Between two tries for the lock of a file. Writing a batch may take seconds on a slow disk, and 2.5 s are waited for it."""
FILE_WORDS = 2


class SharedFile:
    """Lock of one file, and the decision which name it has. `words`: two words of shared memory."""

    def __init__(self, words: memoryview[int], lock: HostLock, workers: int) -> None:
        self._words = words
        self.lock = lock
        self.workers = workers

    def decision(self, path: str) -> int | None:
        """Return what was decided for `path`, None when nothing was. Called with the lock held."""
        key, decision = self._words.tolist()
        return decision if key == _key(path) else None

    def decide(self, path: str, decision: int) -> None:
        """Record a decision for `path`, which replaces that for another path. Called with the lock held."""
        self._words[0] = 0
        self._words[1] = decision
        self._words[0] = _key(path)


def _key(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=7).digest()) or 1


# Numbers that each worker writes for itself and that all workers add up.
#
# Rules kept here:
# * A number is one aligned word of shared memory, written by one process only. So no lock is needed, and a reader sees the value
#   from before or after a write.
# * A sum of several workers may be old by the time in which one word is written. A limit that is compared with it may be exceeded
#   by one for each other worker.
# * The parent clears the words of a worker that ended, before its replacement starts.


class Count:
    """One number of each worker, as seen by one of them."""

    __slots__ = ("_row", "_worker")

    def __init__(self, row: MutableSequence[int] | memoryview[int], worker: int) -> None:
        """`row`: one number for each worker."""
        self._row = row
        self._worker = worker

    def set(self, number: int) -> None:
        """Set the number of this worker."""
        self._row[self._worker] = number

    @property
    def total(self) -> int:
        """Sum over all workers."""
        return sum(self._row)

    @property
    def others(self) -> int:
        """Sum over the other workers."""
        return sum(self._row) - self._row[self._worker]


# Tables of sources in shared memory, for all workers of a host: their connections and held bytes, and their token buckets.
#
# Rules kept here:
# * Names have any length, and cells have one word. A key is a keyed hash (BLAKE2b, RFC 7693) of a name, under a random secret
#   that is made at the start of the server. A client cannot find another name with the same key, nor choose with whom it shares a
#   set.
# * A table is divided into sets of WAYS cells. A name has its place in one set only, so that finding it costs the same at any
#   size. 0 marks a free cell.
#
# Connections and held bytes (`SharedSources`):
# * A cell belongs to a source while any worker has a connection of it. Each worker has its own numbers in it, so the parent can
#   clear those of a worker that ended.
# * A cell is taken under a lock, when the first connection of a source arrives at a worker. After that a worker only writes its
#   own numbers, without a lock: its own connection keeps the cell.
# * A source that finds its set full is counted by each worker alone. Sets are larger than connections make likely.
#
# Token buckets (`SharedBuckets`, which implements `mooring.authn.authfailures.Buckets`):
# * A change is made under a lock. Reading takes none: the words of a cell are each read whole, and the worst is a value that is
#   one change old.
# * A full set loses the bucket that was changed longest ago.
# * A worker may be killed between two words. A cell that is taken over gets its level and time before its key, so that an
#   incomplete one is the full bucket of its former source.
# * Values that no worker writes, such as a time far in the future, count as a full bucket: a damaged cell never refuses a source
#   for ever.

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


# Memory that the workers of one server share: made by the parent before its first fork, and inherited by every worker.
#
# Rules kept here:
# * The parent calls `SharedMemory(slots)` once, `share_of(index)` in each worker after the fork, and `clear(index)` after worker
#   `index` has ended and before its replacement is forked. So a worker that was killed leaves no counts behind.
# * A server of one process calls nothing of this: `WorkerMemory()` is the share of a process that is alone, and takes no shared
#   memory.
# * The kernel gives memory for the pages that were written only: tables for floods cost nothing before one.
# * A document that a worker publishes stands in memory that only the workers have open, with its length and a checksum, in one of
#   two places in turn. A worker that is killed while it writes leaves the one before, and its replacement goes on where it ended.

MAX_SLOTS = 64
"""Workers of one parent that may live at the same time: twice as many as may be configured (`mooring.settings.serving`)."""
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
class WorkerMemory:
    """Part of one worker in the state of its host."""

    worker: int = 0
    """Index of this worker, from 0."""
    workers: int = 1
    """Number of workers among which limits are divided."""
    memory: SharedMemory | None = None
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


ALONE = WorkerMemory()


class SharedMemory:
    """Shared memory of a parent process and its workers.

    `slots`: workers that may live at the same time; a restart has one more than serve otherwise. `workers`: those that serve
    otherwise, by default all. Raises ValueError for numbers outside of 1 to MAX_SLOTS.
    """

    def __init__(self, slots: int, workers: int = 0) -> None:
        self.slots, self.workers = slots, workers or slots
        if not 1 <= self.workers <= slots <= MAX_SLOTS:
            raise ValueError(f"workers must be 1 to {MAX_SLOTS}")
        self._lines = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(slots)]
        published = [nameless_file(f"mooring-{slot}") for slot in range(slots)]
        self._publications = [Publication(descriptor) for descriptor in published]
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self.locks = nameless_file("mooring-locks")
        weakref.finalize(self, _close, self._lines, [*published, self.locks])
        sizes = (
            len(Counted) * slots,
            *(MAX_SOURCES,) * 3,
            SOURCE_CELLS,
            *(SOURCE_CELLS * slots,) * 2,
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

    def share_of(self, worker: int) -> WorkerMemory:
        """Return the share of one worker. Called after the fork, in the worker."""
        return WorkerMemory(worker=worker, workers=self.workers, memory=self)

    def clear(self, worker: int) -> None:
        """Forget what a worker that has ended had counted. Called before its replacement is forked."""
        for counted in Counted:
            self.row(counted)[worker] = 0
        zeros = memoryview(bytes(SOURCE_CELLS * _WORD)).cast("q")
        for numbers in (self._held_bytes, self._connections):
            numbers[worker * SOURCE_CELLS : (worker + 1) * SOURCE_CELLS] = zeros

    def row(self, counted: Counted) -> memoryview[int]:
        """Return one number, of all workers."""
        first = counted * self.slots
        return self._counts[first : first + self.slots]

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
