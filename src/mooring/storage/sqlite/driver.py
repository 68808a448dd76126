"""The SQLite storage driver: one file with an append-only log, shared by the processes of one machine.

Rules kept here:
* One task owns the writing connection. It runs all waiting writes within one transaction, commits once on a thread of its own
  (the fsync), and acknowledges all of them: one thread hop and one fsync for each group. The statements run on the loop thread:
  they touch only cached pages, and on another thread each statement would have to wait for the interpreter lock.
* The loop thread takes the write lock too, and only then the group: while another process writes, the group grows. A thread with
  the write lock would have to wait for the interpreter lock, and all processes for the thread.
* A failed group fails all of its writes. The connection is then replaced before the next group.
* A COMMIT that may be stored although it failed, as after an fsync that failed, ends the use of the file by this process: its group
  has an unknown outcome, later writes are refused, and `failed` is set (docs/adr/0074).
* The paths of the open files are compared with the files before each group, and every LOOK_SECONDS. Writes are refused while they
  differ: they would be lost with this process.
* A failed checkpoint is in the log, in `alarm` and in `counters`.
* Reads run on the loop thread. Ranges and long parts of the log run in slices of less than 1 ms, in one snapshot, with other work
  in between.
* Writes of other processes are noticed by any call of `revision`, by a signal of another worker of the same server, and every
  POLL_SECONDS while there are watches (SIGNALLED_POLL_SECONDS beside other workers).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from mooring.clock import Clock
from mooring.errors import StorageError, UnknownOutcomeError
from mooring.storage.commitsignal import CommitSignal
from mooring.storage.contract import (
    Entry,
    FutureRevisionError,
    KeyExistsError,
    Page,
    RevisionMismatchError,
    StoreCounters,
    StoredChange,
)
from mooring.storage.feed import INLINE_CHANGES, Feed
from mooring.storage.keyspace import check_key
from mooring.storage.sqlite import database
from mooring.storage.sqlite.connection import CommitError, LogReader, LogWriter, Operation
from mooring.storage.sqlite.openfiles import OpenFiles, Turn, close_deleted
from mooring.storage.sqlite.verification import SCHEMA_CHANGED, Verification, is_schema_changed

POLL_SECONDS = 0.01
"""Seconds between two reads of the revision for watches of other processes' writes. One read costs 3 µs."""
SIGNALLED_POLL_SECONDS = 0.1
"""Seconds between two reads where the workers of the server signal their commits: only writes of other programs wait for a poll. An
idle worker takes 0.3 % of a CPU then, and 1.5 % at POLL_SECONDS."""
BUSY_RETRY_SECONDS = 0.001
"""Seconds between two tries for the write lock while another process has it. Commits of other workers are signalled besides."""
GROUP_WRITES = 128
"""Writes in one commit: about 2 ms of statements on the loop thread."""
GROUP_BYTES = 4 * 1024 * 1024
"""Bytes of values in one commit; a larger group would not fit the page cache."""
WAITING_WRITES = 16_384
"""Writes that may wait for the disk. With more the disk cannot keep up, and further writes are refused."""
INLINE_BYTES = 1024 * 1024
"""Bytes of values that a watch reads at once when it catches up."""
CATCH_UP_CHANGES = 256
"""Changes that a watch far behind reads at once, about 1 ms of the loop thread; other work runs in between."""
YIELD_AFTER_SECONDS = 0.001
"""Seconds after which the loop thread first yields to a commit, which takes about 0.3 ms; the pause doubles each time. A slow
commit may be waiting for the interpreter lock, which a loop that never idles can withhold for seconds (measured with uvloop: 1.8
s)."""
YIELD_SECONDS = 0.0005
"""Seconds for which the loop thread yields at most; it continues as soon as the commit is done."""

LOOK_SECONDS = 2.0
"""Seconds between two looks at the paths of the open files."""
CHECKPOINT_LOOKS = 15
"""Looks between two checkpoints: half a minute, of whose writes some pages are copied and waited for."""

_CLOSED = "the store is closed"
log = logging.getLogger(__name__)
_T = TypeVar("_T")


class _Write:
    """One waiting write, and the future of its caller."""

    __slots__ = ("done", "expected", "key", "operation", "outcome", "value")

    def __init__(
        self, operation: Operation, key: str, value: bytes, expected: int, done: asyncio.Future[StoredChange]
    ) -> None:
        self.operation = operation
        self.key = key
        self.value = value
        self.expected = expected
        self.done = done
        self.outcome: StoredChange | StorageError | None = None
        """Result or error; set before the write is acknowledged."""


class _Compaction:
    """One waiting compaction, and the future of its caller. `advances`: the revision is made the newest one before."""

    __slots__ = ("advances", "done", "revision")

    def __init__(self, revision: int, *, advances: bool) -> None:
        self.revision = revision
        self.advances = advances
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Connections:
    """Connections between `open` and `close`."""

    def __init__(
        self, loop_reader: LogReader, scanner: LogReader, writer: LogWriter, files: OpenFiles, newest: int
    ) -> None:
        self.newest = newest
        """Newest revision when they were made."""
        self.loop_reader = loop_reader
        self.scanner = scanner
        self.files = files
        self.writer: LogWriter | None = writer
        """None from a failure until the next write."""


class SqliteStorage:
    """Implements `contract.Storage` on one SQLite file."""

    def __init__(self, path: Path, clock: Clock, commits: CommitSignal | None = None) -> None:
        """`commits`: signals between the processes of one server."""
        self.failed = asyncio.Event()
        self.counters = StoreCounters()
        self._path = path
        self._clock = clock
        self._commits = commits
        self._failure = ""
        """Reason why the file is not used any more."""
        self._gone = ""
        """Message about a file that is not in its place."""
        self._unchecked = ""
        """Message of the last checkpoint, when it failed."""
        self._unwritten = ""
        """Message of the last write, when it failed. A later write of any process of the server takes it back."""
        self._damage = ""
        """Message about damage that `verify` has found."""
        self._verification: Verification | None = None
        self._checkpoint_at = 0
        """Newest revision at the last checkpoint."""
        self._checkpoint_due = False
        self._open: _Connections | None = None
        self._closing = False
        self._feed = Feed(self, 1)
        self._tail_wanted = False
        self._newest_this_turn: int | None = None
        self._waiting: deque[_Write] = deque()
        self._compactions: deque[_Compaction] = deque()
        self._work = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._committed: asyncio.Future[None] | None = None
        """Set while a write waits for the write lock."""
        self._scanning = asyncio.Lock()
        self._thread: ThreadPoolExecutor

    @property
    def problem(self) -> str:
        return self._failure or self._gone

    @property
    def alarm(self) -> str:
        unwritten = f"the last write failed: {self._unwritten}" if self._unwritten and not self.problem else ""
        return "; ".join(filter(None, (unwritten, self._unchecked, self._damage)))

    @property
    def refuses_writes(self) -> bool:
        return bool(self._unwritten or self.problem)

    # ---- opening and closing

    async def open(self) -> None:
        if self._open is not None:
            return
        self._thread = ThreadPoolExecutor(1, "mooring-sqlite")
        try:
            self._open = await self._run_on_thread(self._connect)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self._closing = False
        self._failure = self._gone = self._unwritten = self._unchecked = self._damage = ""
        self.failed.clear()
        self._verification = None
        self._work = asyncio.Event()
        self._scanning = asyncio.Lock()
        self._feed = Feed(self, self._open.newest)
        self._tasks = tuple(asyncio.create_task(work) for work in (self._write_all(), self._poll(), self._look()))
        if self._commits is not None:
            self._commits.follow(self._follow_commit)

    def _connect(self) -> _Connections:
        def connect(*, read_only: bool) -> sqlite3.Connection:
            connection = database.connect(path, read_only=read_only)
            unfinished.callback(connection.close)
            return connection

        with contextlib.ExitStack() as unfinished:
            database.create_file(self._path)
            # SQLite puts the log beside the file that links lead to, so all connections open that one.
            path = self._path.resolve()
            turn = Turn(path.parent)
            unfinished.callback(turn.close)
            # The writer comes first: it makes the tables that the readers check.
            writing = connect(read_only=False)
            database.prepare(writing, path, turn)
            loop_reader, scanner = LogReader(connect(read_only=True)), LogReader(connect(read_only=True))
            newest = loop_reader.check()
            try:
                files = OpenFiles(path, self._path)
            except OSError as error:
                raise StorageError(f"the files of {self._path} cannot be looked at: {error.strerror}; retry") from error
            made = _Connections(loop_reader, scanner, LogWriter(writing, turn), files, newest)
            unfinished.pop_all()
            return made

    async def close(self) -> None:
        if self._open is None or self._closing:
            return
        self._closing = True
        self._work.set()
        # Waiting writes are carried out, so that their callers learn the outcome.
        writing, *others = self._tasks
        await writing
        for task in others:
            task.cancel()
        if self._commits is not None:
            self._commits.unfollow()
        self._feed.close()
        # A range that is being read has the connection that is closed below.
        async with self._scanning:
            opened, self._open = self._open, None
        opened.loop_reader.close()
        opened.scanner.close()
        if opened.writer is not None:
            # Closed last, because the last connection copies the write-ahead log into the database.
            await self._run_on_thread(opened.writer.close)
        close_deleted()
        self._thread.shutdown(wait=False)

    def _connections(self) -> _Connections:
        if self._open is None or self._closing:
            raise StorageError(_CLOSED)
        return self._open

    async def _run_on_thread(self, function: Callable[[], _T]) -> _T:
        """Run on the writing thread a function that waits for the disk or for a lock; yield to the thread when it takes long."""
        loop = asyncio.get_running_loop()
        finished = threading.Event()

        def run() -> _T:
            try:
                return function()
            finally:
                finished.set()

        def yield_to_thread(pause: float) -> None:
            # The commit may be waiting for the interpreter lock, and not for the disk. This wait releases the lock.
            if not finished.wait(YIELD_SECONDS):
                timers.append(loop.call_later(2 * pause, yield_to_thread, 2 * pause))

        timers = [loop.call_later(YIELD_AFTER_SECONDS, yield_to_thread, YIELD_AFTER_SECONDS)]
        try:
            return await loop.run_in_executor(self._thread, run)
        except (*database.ERRORS, CommitError) as error:
            raise self._storage_error(error) from error
        finally:
            timers[-1].cancel()

    def _storage_error(self, error: Exception) -> StorageError:
        if isinstance(error, CommitError):
            return self._fail(error.cause)
        if isinstance(error, UnknownOutcomeError):
            return UnknownOutcomeError(*error.args)
        return StorageError(*error.args) if isinstance(error, StorageError) else database.explain(error, self._path)

    def _fail(self, cause: sqlite3.Error) -> UnknownOutcomeError:
        """Use the file no more, after a COMMIT whose outcome is unknown. Return the error of its writes."""
        name = getattr(cause, "sqlite_errorname", type(cause).__name__)
        text = f"a commit to the database file {self._path} failed ({name}), and may be stored nevertheless"
        if not self._failure:
            self._failure = f"{text}: this process ends; check the disk and the log of the kernel, and start it again"
            log.critical("%s", self._failure)
            self.failed.set()
        return UnknownOutcomeError(text)

    def _refuse_problem(self) -> None:
        """Raise StorageError when nothing may be written now."""
        self._look_at_files()
        if self.problem:
            raise StorageError(self.problem)

    def _look_at_files(self) -> None:
        opened = self._open
        if opened is None or self._failure:
            return
        gone = opened.files.gone()
        if bool(gone) == bool(self._gone):
            return
        self._gone = gone and (
            f"the file {gone} was deleted, replaced or cut while it is open: writes are refused, because they would be lost; put "
            "back the file that was there, or stop the server and restore a snapshot"
        )
        log.log(
            logging.CRITICAL if gone else logging.INFO,
            "%s",
            self._gone or f"the files of {self._path} are in their places",
        )

    def _read(self, function: Callable[[], _T]) -> _T:
        try:
            return function()
        except database.ERRORS as error:
            raise self._storage_error(error) from error

    # ---- reading

    async def get(self, key: str, *, revision: int = 0) -> Entry | None:
        check_key(key)
        # On the loop thread: a point read takes 3–6 µs, a tenth of a thread hop.
        reader = self._connections().loop_reader
        return self._read(lambda: reader.get_at(key, revision) if revision else reader.get(key))

    async def range(
        self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0, counted: bool = True
    ) -> Page:
        async with self._scanning:
            scanner = self._connections().scanner
            with contextlib.closing(scanner.page(prefix, after, limit, revision, counted=counted)) as slices:
                while True:
                    page = self._read(lambda: next(slices))
                    if page is not None:
                        return page
                    # Slices, and no thread: SQLite releases the interpreter lock at every row, and beside a busy loop
                    # gets it back only after milliseconds.
                    await asyncio.sleep(0)

    async def revision(self) -> int:
        reader, newest = self._connections().loop_reader, self._newest_this_turn
        if newest is None:
            # Read once in a turn of the loop, for all callers of that turn: a caller that depends on a write of
            # another process learned of it before the turn began.
            newest = self._newest_this_turn = self._read(reader.newest)
            asyncio.get_running_loop().call_soon(self._forget_newest)
        if newest > self._feed.revision and not self._tail_wanted:
            # The caller now waits until its watch reaches this revision: the next poll would be too late.
            self._tail_wanted = True
            asyncio.get_running_loop().call_soon(self._tail)
        return newest

    def _forget_newest(self) -> None:
        self._newest_this_turn = None

    async def compacted(self) -> int:
        return self._read(self._connections().loop_reader.compacted)

    async def verify(self) -> None:
        async with self._scanning:
            scanner = self._connections().scanner
            # Taken out before the slice: after an error the next pass begins at the first record.
            found, self._verification = self._verification or scanner.verification(), None
            before = found.records
            try:
                self._read(found.advance)
            except StorageError as error:
                self._set_damage(str(error), found)
                return
            self.counters.verified += found.records - before
            if not found.ended:
                self._verification = found
            if found.ended or found.damaged > self.counters.damaged:
                self._set_damage(await self._run_on_thread(self._read_as_a_start) if found.ended else "", found)

    def _read_as_a_start(self) -> str:
        """Return what keeps a start from reading the file, "" when nothing does, or when it cannot be told now."""
        self._look_at_files()
        if self.problem:
            return ""
        try:
            # A new connection reads the descriptions of the tables. An open one does not read them again.
            with contextlib.closing(database.connect(self._path.resolve(), read_only=True)) as connection:
                if is_schema_changed(connection):
                    return f"the database file {self._path}: {SCHEMA_CHANGED}"
                LogReader(connection).check()
        except database.ERRORS as error:
            if database.is_damage(error):
                return str(self._storage_error(error))
        except StorageError:
            # The files are not in their places, which `problem` reports.
            pass
        return ""

    def _set_damage(self, message: str, found: Verification) -> None:
        self.counters.damaged = found.damaged + bool(message)
        if found.damaged and not message:
            message = (
                f"records of the database file {self._path} have changed on the disk (damaged: {found.damaged}): `mooring store"
                " verify` names them; delete them, or restore a snapshot"
            )
        if message and not self._damage:
            log.error("%s", message)
        elif self._damage and not message:
            log.info("every record of %s is whole again", self._path)
        self._damage = message

    # ---- watching

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        self._connections()
        return self._feed.watch(prefix, after)

    def read_now(self, after: int) -> Sequence[StoredChange]:
        """Return changes for `feed.Feed`, which calls this only between `open` and `close`."""
        assert self._open is not None
        reader = self._open.loop_reader
        return self._read(lambda: reader.changes(after, INLINE_CHANGES, INLINE_BYTES))

    async def read(self, after: int) -> Sequence[StoredChange]:
        """Return more changes for `feed.Feed`, and let other work run."""
        assert self._open is not None
        reader = self._open.loop_reader
        changes = self._read(lambda: reader.changes(after, CATCH_UP_CHANGES, INLINE_BYTES))
        await asyncio.sleep(0)
        return changes

    async def _poll(self) -> None:
        while True:
            await self._clock.sleep(POLL_SECONDS if self._commits is None else SIGNALLED_POLL_SECONDS)
            if self._feed.watched:
                self._tail()

    async def _look(self) -> None:
        """Look at the files, and let checkpoints be made, until cancelled."""
        looks = 0
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self._look_at_files()
            looks += 1
            if looks % CHECKPOINT_LOOKS == 0 and (self._unchecked or self._feed.revision != self._checkpoint_at):
                self._checkpoint_due = True
                self._work.set()

    def _follow_commit(self) -> None:
        """Feed what another worker has committed. Its write lock is free for a moment."""
        self._wake_begin()
        self._tail()

    def _tail(self) -> None:
        """Feed writes of other processes. After a read error the tip stays, and the next poll retries."""
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
        if missing > 0:
            # Another process of the server could write, so the disk takes writes again.
            self._unwritten = ""
        if 0 < missing <= INLINE_CHANGES and self._feed.watched:
            # When the changes are compacted, each watch reads the log and gets the error itself.
            with contextlib.suppress(StorageError):
                self._feed.publish(self.read_now(self._feed.revision))
        self._feed.skip_to(newest)

    # ---- writing

    async def create(self, key: str, value: bytes, *, ttl: int = 0) -> Entry:
        change = await self._submit(Operation.CREATE, key, value, 0)
        assert change.entry is not None
        return change.entry

    async def update(self, key: str, value: bytes, *, expected: int, ttl: int = 0) -> Entry:
        change = await self._submit(Operation.UPDATE, key, value, expected)
        assert change.entry is not None
        return change.entry

    async def delete(self, key: str, *, expected: int) -> int:
        return (await self._submit(Operation.DELETE, key, b"", expected)).revision

    async def claim_compaction(self, revision: int) -> bool:
        return True

    async def compact(self, revision: int) -> None:
        await self._compact(_Compaction(revision, advances=False))

    async def advance(self, revision: int) -> None:
        await self._compact(_Compaction(revision, advances=True))

    async def _compact(self, compaction: _Compaction) -> None:
        self._connections()
        self._refuse_problem()
        self._compactions.append(compaction)
        self._work.set()
        await compaction.done

    def _submit(self, operation: Operation, key: str, value: bytes, expected: int) -> asyncio.Future[StoredChange]:
        self._connections()
        check_key(key)
        # The files are compared once for each group. Here they are compared only to notice that a problem is over.
        if self.problem:
            self._refuse_problem()
        if len(self._waiting) >= WAITING_WRITES:
            raise StorageError(
                f"{WAITING_WRITES} writes wait for the disk of {self._path} already: it is too slow; retry later"
            )
        done: asyncio.Future[StoredChange] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Write(operation, key, value, expected, done))
        self._work.set()
        return done

    async def _write_all(self) -> None:
        """Write groups and compact until the store closes: the only user of the writing connection."""
        while self._waiting or not self._closing:
            if self._waiting:
                await self._write_group()
            if self._compactions and not self._closing:
                # One bounded step, which alternates with the writes.
                await self._sweep()
            if self._checkpoint_due and not self._closing:
                await self._checkpoint()
            if not self._waiting and not self._compactions and not self._checkpoint_due:
                self._work.clear()
                if not self._closing:
                    await self._work.wait()
        # The compaction of the next start continues where these stopped.
        for compaction in self._compactions:
            if not compaction.done.done():
                compaction.done.set_exception(StorageError(_CLOSED))
        self._compactions.clear()

    def _next_group(self) -> list[_Write]:
        group: list[_Write] = []
        size = 0
        while self._waiting and len(group) < GROUP_WRITES and size < GROUP_BYTES:
            write = self._waiting.popleft()
            # A write that its caller has cancelled is left out.
            if not write.done.done():
                group.append(write)
                size += len(write.value)
        return group

    async def _begin(self, writer: LogWriter) -> None:
        """Begin a transaction, waiting for that of another process."""
        loop = asyncio.get_running_loop()
        end = loop.time() + database.BUSY_SECONDS
        while not writer.try_begin():
            if loop.time() >= end:
                writer.begin_at_once()
                return
            self._committed = loop.create_future()
            timer = loop.call_later(BUSY_RETRY_SECONDS, self._wake_begin)
            await self._committed
            timer.cancel()

    def _wake_begin(self) -> None:
        if self._committed is not None and not self._committed.done():
            self._committed.set_result(None)

    async def _write_group(self) -> None:
        group: list[_Write] = []
        try:
            writer = await self._writer()
            await self._begin(writer)
            # After the wait for the lock, in which a file may have been replaced: a write to the old file would be
            # lost.
            self._refuse_problem()
            # Taken only now, with the writes that came while another process wrote.
            group = self._next_group()
            for write in group:
                try:
                    write.outcome = writer.apply(write.operation, write.key, write.value, write.expected)
                except (KeyExistsError, RevisionMismatchError) as error:
                    write.outcome = error
            # A group of refused writes has changed nothing, and needs no fsync.
            if any(isinstance(write.outcome, StoredChange) for write in group):
                await self._run_on_thread(writer.commit)
                if self._commits is not None:
                    self._commits.send()
            else:
                writer.rollback()
        except Exception as error:  # every waiting caller must get a result
            # Closing the connection also ends its transaction, and so frees the write lock for other processes.
            await self._drop_writer()
            group = group or self._next_group()
            for write in group:
                failed = self._storage_error(error)
                if isinstance(failed, UnknownOutcomeError) and isinstance(write.outcome, StorageError):
                    # It was refused in the transaction, so nothing of it is stored.
                    failed = StorageError(*failed.args)
                write.outcome = failed
            self._unwritten = str(self._storage_error(error))
        self._acknowledge(group)

    def _acknowledge(self, group: list[_Write]) -> None:
        changes = [write.outcome for write in group if isinstance(write.outcome, StoredChange)]
        if changes:
            # Other processes may have committed before this group: watches get the changes in order of revisions.
            self._feed_until(changes[0].revision - 1)
            # Watches get the changes before their writers are answered, so that a writer finds its own write in the caches.
            self._feed.publish(changes)
            self._unwritten = ""
        for write in group:
            if write.done.done():
                continue
            if isinstance(write.outcome, StoredChange):
                write.done.set_result(write.outcome)
            else:
                assert write.outcome is not None  # set by `_write_group`
                write.done.set_exception(write.outcome)

    async def _sweep(self) -> None:
        compaction = self._compactions[0]
        revision, done = compaction.revision, compaction.done
        more = False
        try:
            self._refuse_problem()
            writer = await self._writer()
            if compaction.advances:
                # Once only. The sweep takes several rounds, between which other writes are made.
                self._feed_until(await self._run_on_thread(lambda: writer.advance(revision)))
                compaction.advances = False
            more = await self._run_on_thread(lambda: writer.sweep(revision))
            if not more:
                # Frames of the log hold values that the database has overwritten.
                await self._run_on_thread(writer.truncate_log)
        except FutureRevisionError as error:
            if not done.done():
                done.set_exception(error)
        except Exception as error:  # the waiting caller must get a result
            await self._drop_writer()
            if not done.done():
                done.set_exception(self._storage_error(error))
        if not more:
            self._compactions.popleft()
            if not done.done():
                done.set_result(None)

    async def _checkpoint(self) -> None:
        """Copy the write-ahead log into the database. A failure loses nothing, but the log grows until one succeeds."""
        self._checkpoint_due = False
        # Noted before the checkpoint: a write that comes meanwhile makes another one due.
        self._checkpoint_at = self._feed.revision
        problem = ""
        try:
            self._refuse_problem()
            writer = await self._writer()
            # SQLite makes checkpoints too, after commits, and does not report that one failed.
            await self._run_on_thread(writer.checkpoint)
        except StorageError as error:
            if self.problem:
                return
            self.counters.checkpoint_failures += 1
            problem = (
                f"the write-ahead log could not be copied into the database; nothing is lost, but it grows: {error}"
            )
        if bool(problem) != bool(self._unchecked):
            log.log(logging.ERROR if problem else logging.INFO, "%s", problem or "the write-ahead log was copied again")
        self._unchecked = problem

    async def _writer(self) -> LogWriter:
        opened = self._open
        assert opened is not None  # the writing task ends before the connections do
        if opened.writer is None:
            # A connection opens what the path names now, which may be another file.
            self._refuse_problem()
            opened.writer = await self._run_on_thread(self._connect_writer)
        return opened.writer

    def _connect_writer(self) -> LogWriter:
        path = self._path.resolve()
        turn = Turn(path.parent)
        try:
            return LogWriter(database.connect(path, read_only=False), turn)
        except BaseException:
            turn.close()
            raise

    async def _drop_writer(self) -> None:
        """Close the writing connection after a failure: a new one has no read-only descriptor and no cached error."""
        opened = self._open
        assert opened is not None
        writer, opened.writer = opened.writer, None
        if writer is not None:
            with contextlib.suppress(StorageError):
                await self._run_on_thread(writer.close)
