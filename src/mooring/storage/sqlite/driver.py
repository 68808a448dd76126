"""The SQLite driver: one file, one append-only log, any number of processes on one machine.

Rules kept here:
* One task owns the writing connection. It takes the writes that wait, runs each within one transaction, commits once on a thread
  of its own (the fsync), and acknowledges all: one thread hop and one fsync a group, however many writes. The statements run on
  the loop thread: they touch only cached pages, and on another thread each would have to win the interpreter lock back.
* What was committed is given to watches first and to the writers then, in one callback.
* A failed group fails all of its writes, the connection is made anew, and the next group tries again.
* Reads run on the loop thread: a point read or a look at the revision takes 3–6 µs, a tenth of a thread hop; ranges and long
  stretches of the log run in slices of less than a millisecond, in one snapshot, with other work in between. On a thread, SQLite
  gives the interpreter lock up at every row, and behind a busy loop gets it back only after milliseconds.
* For the same reason the loop gives way when a commit takes long: what it waits for may be the lock, not the disk.
* Other processes' writes are noticed by any call of `revision`, and every POLL_SECONDS while anybody watches. The file is looked
  at once in a turn of the loop, for all who ask in that turn: what they may have heard of another process's write came in
  before the turn began.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.storage.contract import Change, Entry, FutureRevisionError, KeyExistsError, Page, RevisionMismatchError
from mooring.storage.feed import INLINE_CHANGES, Feed
from mooring.storage.keys import check_key
from mooring.storage.sqlite import schema
from mooring.storage.sqlite.reader import Reader
from mooring.storage.sqlite.writer import Operation, Writer

POLL_SECONDS = 0.01
"""How late a watch may hear of another process's write. One look costs 3 µs."""
GROUP_WRITES = 128
"""Writes in one commit: about 2 ms of statements on the loop thread."""
GROUP_BYTES = 4 * 1024 * 1024
"""Bytes of values in one commit; with it the page cache never has to spill before the commit."""
WAITING_WRITES = 16_384
"""Writes that may wait for the disk; more means that it cannot keep up, and callers are told rather than queued."""
INLINE_BYTES = 1024 * 1024
"""Bytes of values read on the loop thread at once when catching up."""
STRETCH_CHANGES = 256
"""Changes read at once by a watch that is far behind: about a millisecond of the loop thread; other work has its turn between."""
GIVE_WAY_AFTER = 0.001
"""A commit takes about 0.3 ms. One that is not done after this (then after twice, four times, … this) may be waiting for the
interpreter lock, which a loop that never idles would keep from it for seconds (measured with uvloop: up to 1.8 s)."""
GIVE_WAY_SECONDS = 0.0005
"""How long the loop thread then stands still at most; it goes on the moment the commit is done."""

_CLOSED = "the store is closed"
_T = TypeVar("_T")


class _Write:
    """One write that waits: what to do and who wants to know."""

    __slots__ = ("done", "expected", "key", "operation", "outcome", "value")

    def __init__(
        self, operation: Operation, key: str, value: bytes, expected: int, done: asyncio.Future[Change]
    ) -> None:
        self.operation = operation
        self.key = key
        self.value = value
        self.expected = expected
        self.done = done
        self.outcome: Change | StorageError
        """What became of it; set before it is acknowledged."""


class _Connections:
    """What is open between `open` and `close`."""

    def __init__(self, loop_reader: Reader, scanner: Reader, writer: Writer) -> None:
        self.loop_reader = loop_reader
        self.scanner = scanner
        self.writer: Writer | None = writer
        """None after a failure, until the next write."""


class SqliteStorage:
    """Implements `contract.Storage` on one file."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._open: _Connections | None = None
        self._closing = False
        self._feed = Feed(self, 1)
        self._tail_wanted = False
        self._looked: int | None = None
        self._waiting: deque[_Write] = deque()
        self._compactions: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._work = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._scanning = asyncio.Lock()
        self._thread: ThreadPoolExecutor

    # ---- life

    async def open(self) -> None:
        if self._open is not None:
            return
        self._thread = ThreadPoolExecutor(1, "mooring-sqlite")
        try:
            self._open = await self._on_thread(self._connect)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self._closing = False
        self._work = asyncio.Event()
        self._scanning = asyncio.Lock()
        self._feed = Feed(self, self._open.loop_reader.newest())
        self._tasks = (asyncio.create_task(self._write_all()), asyncio.create_task(self._poll()))

    def _connect(self) -> _Connections:
        made: list[sqlite3.Connection] = []
        try:
            schema.create_file(self._path)
            made.append(schema.connect(self._path, read_only=False))
            schema.prepare(made[0], self._path)
            made += [schema.connect(self._path, read_only=True) for _ in range(2)]
            opened = _Connections(Reader(made[1]), Reader(made[2]), Writer(made[0]))
            opened.loop_reader.check()
            return opened
        except BaseException:
            for connection in made:
                connection.close()
            raise

    async def close(self) -> None:
        if self._open is None or self._closing:
            return
        self._closing = True
        self._work.set()
        writing, polling = self._tasks
        await writing
        polling.cancel()
        self._feed.close()
        async with self._scanning:  # after a range under way
            opened, self._open = self._open, None
        opened.loop_reader.close()
        opened.scanner.close()
        if opened.writer is not None:
            await self._on_thread(opened.writer.close)  # the last to close copies the log into the database
        self._thread.shutdown(wait=False)

    def _connections(self) -> _Connections:
        if self._open is None or self._closing:
            raise StorageError(_CLOSED)
        return self._open

    async def _on_thread(self, function: Callable[[], _T]) -> _T:
        """Run what waits for the disk or for a lock on the writing thread, giving way to it when it takes long."""
        loop = asyncio.get_running_loop()
        finished = threading.Event()

        def run() -> _T:
            try:
                return function()
            finally:
                finished.set()

        def give_way(patience: float) -> None:
            if not finished.wait(GIVE_WAY_SECONDS):
                timers.append(loop.call_later(2 * patience, give_way, 2 * patience))

        timers = [loop.call_later(GIVE_WAY_AFTER, give_way, GIVE_WAY_AFTER)]
        try:
            return await loop.run_in_executor(self._thread, run)
        except sqlite3.Error as error:
            raise self._explain(error) from error
        finally:
            timers[-1].cancel()

    def _explain(self, error: Exception) -> StorageError:
        return StorageError(*error.args) if isinstance(error, StorageError) else schema.explain(error, self._path)

    def _now(self, function: Callable[[], _T]) -> _T:
        try:
            return function()
        except sqlite3.Error as error:
            raise self._explain(error) from error

    # ---- reading

    async def get(self, key: str, *, revision: int = 0) -> Entry | None:
        check_key(key)
        reader = self._connections().loop_reader
        return self._now(lambda: reader.get_at(key, revision) if revision else reader.get(key))

    async def range(self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0) -> Page:
        async with self._scanning:
            with contextlib.closing(self._connections().scanner.page(prefix, after, limit, revision)) as slices:
                while True:
                    page = self._now(lambda: next(slices))
                    if page is not None:
                        return page
                    await asyncio.sleep(0)

    async def revision(self) -> int:
        reader, newest = self._connections().loop_reader, self._looked
        if newest is None:
            newest = self._looked = self._now(reader.newest)
            asyncio.get_running_loop().call_soon(self._look_again)
        if newest > self._feed.revision and not self._tail_wanted:
            # Whoever asked will wait for its watch to get there: do not let it wait for the next poll.
            self._tail_wanted = True
            asyncio.get_running_loop().call_soon(self._tail)
        return newest

    def _look_again(self) -> None:
        self._looked = None

    async def compacted(self) -> int:
        return self._now(self._connections().loop_reader.compacted)

    # ---- watching

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[Change, ...]]:
        self._connections()
        return self._feed.watch(prefix, after)

    def read_now(self, after: int) -> Sequence[Change]:
        """The log for `feed.Feed`, which asks only between `open` and `close`."""
        assert self._open is not None
        reader = self._open.loop_reader
        return self._now(lambda: reader.changes(after, INLINE_CHANGES, INLINE_BYTES))

    async def read(self, after: int) -> Sequence[Change]:
        """The log for `feed.Feed`, as above."""
        assert self._open is not None
        reader = self._open.loop_reader
        changes = self._now(lambda: reader.changes(after, STRETCH_CHANGES, INLINE_BYTES))
        await asyncio.sleep(0)
        return changes

    async def _poll(self) -> None:
        while True:
            await self._clock.sleep(POLL_SECONDS)
            if self._feed.watched:
                self._tail()

    def _tail(self) -> None:
        """Feed what other processes wrote. When it cannot be read now nothing is lost: the tip stays, and the next look retries."""
        self._tail_wanted = False
        if self._open is None:
            return
        try:
            newest = self._open.loop_reader.newest()
        except sqlite3.Error:
            return
        self._feed_until(newest)

    def _feed_until(self, newest: int) -> None:
        missing = newest - self._feed.revision
        if 0 < missing <= INLINE_CHANGES and self._feed.watched:
            # also when they were compacted: each watch then meets the error itself
            with contextlib.suppress(StorageError):
                self._feed.publish(self.read_now(self._feed.revision))
        self._feed.skip_to(newest)

    # ---- writing

    async def create(self, key: str, value: bytes) -> Entry:
        change = await self._submit(Operation.CREATE, key, value, 0)
        assert change.entry is not None
        return change.entry

    async def update(self, key: str, value: bytes, *, expected: int) -> Entry:
        change = await self._submit(Operation.UPDATE, key, value, expected)
        assert change.entry is not None
        return change.entry

    async def delete(self, key: str, *, expected: int) -> int:
        return (await self._submit(Operation.DELETE, key, b"", expected)).revision

    async def compact(self, revision: int) -> None:
        self._connections()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._compactions.append((revision, done))
        self._work.set()
        await done

    def _submit(self, operation: Operation, key: str, value: bytes, expected: int) -> asyncio.Future[Change]:
        self._connections()
        check_key(key)
        if len(self._waiting) >= WAITING_WRITES:
            raise StorageError(
                f"{WAITING_WRITES} writes wait for the disk of {self._path} already: it is too slow; retry later"
            )
        done: asyncio.Future[Change] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Write(operation, key, value, expected, done))
        self._work.set()
        return done

    async def _write_all(self) -> None:
        """The only user of the writing connection, from `open` to `close`."""
        while self._waiting or not self._closing:
            if self._waiting:
                await self._write_group(self._take_group())
            if self._compactions and not self._closing:
                await self._sweep()  # one bounded step, in turn with the writes
            if not self._waiting and not self._compactions:
                self._work.clear()
                if not self._closing:
                    await self._work.wait()
        for _, done in self._compactions:  # the next compaction goes on where these stopped
            if not done.done():
                done.set_exception(StorageError(_CLOSED))
        self._compactions.clear()

    def _take_group(self) -> list[_Write]:
        group: list[_Write] = []
        size = 0
        while self._waiting and len(group) < GROUP_WRITES and size < GROUP_BYTES:
            write = self._waiting.popleft()
            if not write.done.done():  # given up before it began
                group.append(write)
                size += len(write.value)
        return group

    async def _write_group(self, group: list[_Write]) -> None:
        try:
            writer = await self._writer()
            if not writer.try_begin():
                await self._on_thread(writer.begin)
            for write in group:
                try:
                    write.outcome = writer.apply(write.operation, write.key, write.value, write.expected)
                except (KeyExistsError, RevisionMismatchError) as error:
                    write.outcome = error
            if any(isinstance(write.outcome, Change) for write in group):
                await self._on_thread(writer.commit)
            else:
                writer.rollback()
        except Exception as error:  # whatever it was, those who wait must hear of it
            await self._start_over()
            for write in group:
                write.outcome = self._explain(error)
        self._acknowledge(group)

    def _acknowledge(self, group: list[_Write]) -> None:
        changes = [write.outcome for write in group if isinstance(write.outcome, Change)]
        if changes:
            self._feed_until(changes[0].revision - 1)  # what other processes committed before us
            self._feed.publish(changes)
        for write in group:
            if write.done.done():
                continue
            if isinstance(write.outcome, Change):
                write.done.set_result(write.outcome)
            else:
                write.done.set_exception(write.outcome)

    async def _sweep(self) -> None:
        revision, done = self._compactions[0]
        more = False
        try:
            writer = await self._writer()
            more = await self._on_thread(lambda: writer.sweep(revision))
        except FutureRevisionError as error:
            if not done.done():
                done.set_exception(error)
        except Exception as error:  # as above
            await self._start_over()
            if not done.done():
                done.set_exception(self._explain(error))
        if not more:
            self._compactions.popleft()
            if not done.done():
                done.set_result(None)

    async def _writer(self) -> Writer:
        opened = self._open
        assert opened is not None  # the writing task ends before the connections do
        if opened.writer is None:
            opened.writer = await self._on_thread(lambda: Writer(schema.connect(self._path, read_only=False)))
        return opened.writer

    async def _start_over(self) -> None:
        """Drop the writing connection after a failure: what ails it (a read-only descriptor, a cached error) goes with it."""
        opened = self._open
        assert opened is not None
        writer, opened.writer = opened.writer, None
        if writer is not None:
            with contextlib.suppress(StorageError):
                await self._on_thread(writer.close)
