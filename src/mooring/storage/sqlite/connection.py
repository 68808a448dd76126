"""Synchronous reads and writes of one SQLite database, each through one connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

from mooring.storage.contract import (
    CompactedError,
    Entry,
    FutureRevisionError,
    KeyExistsError,
    Page,
    RevisionMismatchError,
    StoredChange,
)
from mooring.storage.keyspace import end_of_prefix
from mooring.storage.sqlite.database import (
    NEWEST,
    begin,
    begin_at_once,
    checkpoint,
    is_busy,
    read_progress,
    sound_progress,
    stored_nothing,
    try_begin,
)
from mooring.storage.sqlite.openfiles import Turn
from mooring.storage.sqlite.record import COLUMNS, checksum, entry_of, is_sound
from mooring.storage.sqlite.verification import Verification

# Synchronous reads of one SQLite database through one connection.
#
# Rules kept here: the result of one call comes from one snapshot. Every record that is read is verified
# (`mooring.storage.sqlite.record`).

SLICE_ENTRIES = 128
SLICE_BYTES = 512 * 1024
"""Bytes of values in one slice of a range, about 0.4 ms of the loop thread."""

_GET = f"SELECT {COLUMNS} FROM live LEFT JOIN log ON log.revision = live.revision WHERE live.key = ?"  # noqa: S608 - constants only
_WITHIN = "live.key >= :start AND live.key < :end"
# A key is left out when its newest record is a deletion. Without a record it is not: it is damaged.
_NOW = (
    f"FROM live LEFT JOIN log ON log.revision = live.revision WHERE {_WITHIN}"
    " AND (NOT live.deleted OR log.value IS NOT NULL OR log.revision IS NULL)"
)
# The state at :revision: from each key's newest write, walk back over `prior` to the first write that is not newer. A write that
# the walk finds, and that is not there, may be a deletion that was swept. A walk that finds none meets a damaged record.
_FOUND = """CASE WHEN live.revision <= :revision THEN live.revision ELSE (
        WITH RECURSIVE chain(revision) AS (
            SELECT live.revision UNION ALL
            SELECT log.prior FROM chain JOIN log ON log.revision = chain.revision WHERE chain.revision > :revision)
        SELECT revision FROM chain WHERE revision <= :revision LIMIT 1
    ) END"""
_AT = f"""FROM live LEFT JOIN log ON log.revision = {_FOUND} WHERE {_WITHIN} AND (log.value IS NOT NULL
    OR (log.revision IS NULL AND (live.revision <= :revision OR {_FOUND} IS NULL)))"""
_RANGE, _RANGE_AT = (f"SELECT {COLUMNS} {state} ORDER BY live.key LIMIT :limit" for state in (_NOW, _AT))
_COUNT, _COUNT_AT = (f"SELECT count(*) {state}" for state in (_NOW, _AT))
_CHANGES = "SELECT revision, key, created, prior, value, checksum FROM log WHERE revision > ? ORDER BY revision LIMIT ?"
_BEYOND_TEXT = b""
"""Greater than every key: SQLite orders a BLOB after all TEXT."""


class LogReader:
    """Reads through a connection that it owns; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.text_factory = bytes
        self._connection = connection
        self._cursor = connection.cursor()
        self._execute = self._cursor.execute
        self._seen_version = -1
        self._newest = 1

    def close(self) -> None:
        self._connection.close()

    def check(self) -> int:
        """Read every table, so that a damaged file is reported when it is opened. Return the newest revision."""
        newest = self.newest()
        self.compacted()
        self.get("/")
        return newest

    def verification(self) -> Verification:
        """Return a new pass over the database, whose slices are read between the calls of this reader."""
        return Verification(self._connection)

    def newest(self) -> int:
        """Return the newest revision that any process committed."""
        # This costs one look at shared memory. The version is read first: after a commit between the two reads, the
        # next call sees a new version and reads again.
        (version,) = self._execute("PRAGMA data_version").fetchone()
        if version != self._seen_version:
            (self._newest,) = self._execute(NEWEST).fetchone()
            self._seen_version = version
        return self._newest

    def compacted(self) -> int:
        """Return the oldest revision that can be read. Without a sound record of it, that is the newest one."""
        (newest,) = self._execute(NEWEST).fetchone()
        progress = read_progress(self._connection, newest)
        return newest if progress is None else progress[0]

    def get(self, key: str) -> Entry | None:
        row = self._execute(_GET, (key,)).fetchone()
        return None if row is None else entry_of(row)

    def get_at(self, key: str, revision: int) -> Entry | None:
        """Return the entry as it was at `revision`."""
        for page in self._page(key, key + "\0", 0, revision, False):
            if page is not None:
                return page.entries[0] if page.entries else None
        raise AssertionError("a page ends in its entries")

    def page(
        self, prefix: str, after: str, limit: int, revision: int, *, counted: bool = True
    ) -> Generator[Page | None, None, None]:
        """Read a page in slices: yield None after each slice but the last, and the page at the end.

        Between two slices the caller may do other work, but must not use this reader.
        """
        start = max(prefix, after + "\0") if after else prefix
        return self._page(start, end_of_prefix(prefix), limit, revision, counted)

    def _page(
        self, start: str, end: str | None, limit: int, revision: int, counted: bool
    ) -> Generator[Page | None, None, None]:
        with self._snapshot():
            (newest,) = self._execute(NEWEST).fetchone()
            at = revision or newest
            if at > newest:
                raise FutureRevisionError(newest)
            # In the snapshot of the range: a compaction that comes later takes nothing out of it.
            if at < newest and at < (oldest := self.compacted()):
                raise CompactedError(oldest)
            bounds = {
                "start": start,
                "end": _BEYOND_TEXT if end is None else end,
                "limit": limit + 1 if limit else -1,
                "revision": at,
            }
            current = at == newest
            entries: list[Entry] = []
            size = 0
            for row in self._execute(_RANGE if current else _RANGE_AT, bounds):
                entry = entry_of(row)
                if entry is None:
                    # A deletion by a row of `live` that says otherwise: see `_NOW`.
                    continue
                entries.append(entry)
                size += len(entry.value)
                if len(entries) % SLICE_ENTRIES == 0 or size >= SLICE_BYTES:
                    size = 0
                    yield None
            if not limit or len(entries) <= limit:
                yield Page(tuple(entries), at)
                return
            bounds["start"] = entries.pop().key
            remaining = 0
            if counted:
                (remaining,) = self._execute(_COUNT if current else _COUNT_AT, bounds).fetchone()
            yield Page(tuple(entries), at, more=True, remaining=remaining)

    def changes(self, after: int, limit: int, limit_bytes: int) -> Sequence[StoredChange]:
        """Return the changes after `after` in order: at most `limit`, and no more once `limit_bytes` of values are read.

        Raises CompactedError when a record was compacted, or the next one is damaged.
        """
        changes: list[StoredChange] = []
        with self._snapshot():
            oldest = self.compacted()
            if after < oldest:
                raise CompactedError(oldest)
            for row in self._execute(_CHANGES, (after, limit)):
                if not is_sound(*row):
                    # The changes before it can be read. The next call begins at it.
                    if changes:
                        break
                    raise CompactedError(row[0])
                revision, name, created, _, value, _ = row
                key = name.decode()
                changes.append(
                    StoredChange(key, revision, None if value is None else Entry(key, value, revision, created))
                )
                limit_bytes -= len(value or b"")
                if limit_bytes <= 0:
                    break
        return changes

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        self._execute("BEGIN")
        try:
            yield
        finally:
            # SQLite ends the transaction itself after some errors.
            if self._connection.in_transaction:
                self._execute("ROLLBACK")


# Synchronous writes to one SQLite database through one connection: the statements of a transaction, and compaction.
#
# Rules kept here:
# * A transaction takes the write lock at its start.
# * Processes take turns (`openfiles.py`). Without them one that writes without a pause keeps the write lock from all others.
# * A record whose bytes have changed counts as present, at the revision that its key has: it can be replaced and deleted.
# * Every write in a transaction has its own outcome; a refused write changes nothing and does not affect the others.
# * An advance is a row without key and value at the new revision, which is then the oldest that can be read. The log after it has
#   no gap.
# * Compaction deletes in bounded transactions, and ends with an empty write-ahead log.

SWEEP_REVISIONS = 1000
"""Revisions in one transaction of compaction: a few milliseconds, a short delay for a waiting write."""

_CURRENT = f"SELECT {COLUMNS} FROM live LEFT JOIN log ON log.revision = live.revision WHERE live.key = ?"  # noqa: S608 - constants only
_APPEND = "INSERT INTO log (revision, key, created, prior, value, checksum) VALUES (?, ?, ?, ?, ?, ?)"
_LIVE_FIRST = "INSERT INTO live (revision, deleted, checksum, key) VALUES (?, ?, ?, ?)"
_LIVE_AGAIN = "UPDATE live SET revision = ?, deleted = ?, checksum = ? WHERE key = ?"

_SET_PROGRESS = "UPDATE progress SET revision = ? WHERE name = ?"
_SWEEP_END = (
    "SELECT max(revision) FROM"
    " (SELECT revision FROM log WHERE revision > ? AND revision <= ? ORDER BY revision LIMIT ?)"
)
# Within a range of the log: values that a later write replaced, and deletions before the oldest revision that can be read.
_SWEEP = (
    "DELETE FROM log WHERE revision IN (SELECT prior FROM log WHERE revision BETWEEN :start AND :end)",
    "DELETE FROM live WHERE (key, revision) IN"
    " (SELECT key, revision FROM log WHERE revision BETWEEN :start AND :end AND revision < :oldest AND value IS NULL)",
    "DELETE FROM log WHERE revision BETWEEN :start AND :end AND revision < :oldest AND value IS NULL",
)


class Operation(Enum):
    """Kinds of writes."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class CommitError(Exception):
    """A COMMIT whose outcome is unknown: the transaction may be there when the file is opened again."""

    def __init__(self, cause: sqlite3.Error) -> None:
        super().__init__(str(cause))
        self.cause = cause


class LogWriter:
    """Writes through a connection that it owns; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, turn: Turn) -> None:
        """Own the connection and the turn."""
        connection.text_factory = bytes
        self._connection = connection
        self._turn = turn
        self._execute = connection.cursor().execute
        self._revision = 1

    def close(self) -> None:
        self._turn.close()
        self._connection.close()

    def try_begin(self) -> bool:
        """Begin a transaction unless another process is in one, or has its turn; return whether it began."""
        if not try_begin(self._connection, self._turn):
            return False
        self._began()
        return True

    def begin_at_once(self) -> None:
        """Begin a transaction. Raises sqlite3.OperationalError while another process is in one."""
        begin_at_once(self._connection, self._turn)
        self._began()

    def begin(self) -> None:
        """Begin a transaction, waiting for that of another process."""
        begin(self._connection, self._turn)
        self._began()

    def _began(self) -> None:
        # With the write lock: revisions follow the order of commits of all processes.
        (self._revision,) = self._execute(NEWEST).fetchone()

    def apply(self, operation: Operation, key: str, value: bytes, expected: int) -> StoredChange:
        """Carry out one write within the transaction. After KeyExistsError or RevisionMismatchError nothing has changed."""
        # Compared within the transaction, which has the write lock: the entry cannot change before the commit.
        row = self._execute(_CURRENT, (key,)).fetchone()
        current = None if row is None else entry_of(row)
        if operation is Operation.CREATE:
            if current is not None:
                raise KeyExistsError(current)
        elif current is None or current.revision != expected:
            raise RevisionMismatchError(current)
        revision = self._revision + 1
        deleted = operation is Operation.DELETE
        created = current.created if current is not None else revision
        # A deleted key has a row, too: the walk back to a past state goes on through its deletion.
        prior = row[1] if row and isinstance(row[1], int) else 0
        written = self._append(revision, key, created, prior, None if deleted else value)
        self._execute(_LIVE_AGAIN if row else _LIVE_FIRST, (revision, deleted, written, key))
        self._revision = revision
        return StoredChange(key, revision, None if deleted else Entry(key, value, revision, created))

    def _append(self, revision: int, key: str, created: int, prior: int, value: bytes | None) -> int:
        """Append a record to the log. Return its checksum."""
        written = checksum(revision, key.encode(), created, prior, value)
        self._execute(_APPEND, (revision, key, created, prior, value, written))
        return written

    def commit(self) -> None:
        """Commit. Raises CommitError when the transaction may be stored nevertheless."""
        try:
            self._execute("COMMIT")
        except sqlite3.Error as error:
            if stored_nothing(error):
                raise
            raise CommitError(error) from error

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the database. SQLite does so itself, after commits, and reports no error of it."""
        checkpoint(self._connection)

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._execute("ROLLBACK")

    def truncate_log(self) -> None:
        """Copy the write-ahead log into the database and empty it, so that deleted values are in neither file.

        While another connection reads, the log stays; the next compaction tries again.
        """
        try:
            self._execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise

    def sweep(self, oldest: int) -> bool:
        """Run one transaction of compaction to `oldest`; return whether more remain. Raises FutureRevisionError."""
        self.begin()
        try:
            if oldest > self._revision:
                raise FutureRevisionError(self._revision)
            compacted, swept = sound_progress(self._connection)
            if oldest > compacted:
                compacted = oldest
                # Recorded with the first deletions: from here on readers refuse older revisions, whose states may
                # lack values.
                self._execute(_SET_PROGRESS, (compacted, "compacted"))
            (end,) = self._execute(_SWEEP_END, (swept, compacted, SWEEP_REVISIONS)).fetchone()
            if end is None:
                end = max(swept, compacted)
            for statement in _SWEEP:
                # `start` was swept before, but its own deletion was kept: the newest revision must stay in the log.
                self._execute(statement, {"start": swept, "end": end, "oldest": compacted})
            self._execute(_SET_PROGRESS, (end, "swept"))
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return bool(end < compacted)

    def advance(self, revision: int) -> int:
        """Make `revision` the newest and the oldest revision unless the newest is beyond it. Return the newest."""
        self.begin()
        try:
            if revision > self._revision:
                # A row without a key: the log has no gap after it, so that watches find no hole.
                self._append(revision, "", revision, 0, None)
                self._execute(_SET_PROGRESS, (revision, "compacted"))
                self._revision = revision
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return self._revision
