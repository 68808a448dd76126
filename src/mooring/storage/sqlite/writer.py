"""Synchronous writes to one SQLite database through one connection: the statements of a transaction, and compaction.

Rules kept here:
* A transaction takes the write lock at its start, so revisions follow the order of commits of all processes, and the entry
  that a write was compared with cannot change before the commit.
* Processes take turns (`turn.py`). Without them one that writes without a pause keeps the write lock from all others.
* A record whose bytes have changed counts as present, at the revision that its key has: it can be replaced and deleted.
* Every write in a transaction has its own outcome; a refused write changes nothing and does not affect the others.
* An advance is a row without key and value at the new revision, which is then the oldest that can be read. The log after it has no
  gap.
* Compaction first records the oldest revision, from when on readers refuse older ones, and then deletes in bounded transactions.
  It ends with an empty write-ahead log: frames of the log hold values that the database has overwritten.
"""

from __future__ import annotations

import sqlite3
from enum import Enum

from mooring.storage.contract import Entry, FutureRevisionError, KeyExistsError, RevisionMismatchError, StoredChange
from mooring.storage.sqlite.database import (
    NEWEST,
    begin,
    begin_at_once,
    checkpoint,
    is_busy,
    sound_progress,
    stored_nothing,
    try_begin,
)
from mooring.storage.sqlite.record import COLUMNS, checksum, entry_of
from mooring.storage.sqlite.turn import Turn

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
        (self._revision,) = self._execute(NEWEST).fetchone()

    def apply(self, operation: Operation, key: str, value: bytes, expected: int) -> StoredChange:
        """Carry out one write within the transaction. After KeyExistsError or RevisionMismatchError nothing has changed."""
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
                self._execute(_SET_PROGRESS, (compacted, "compacted"))
            (end,) = self._execute(_SWEEP_END, (swept, compacted, SWEEP_REVISIONS)).fetchone()
            if end is None:
                end = max(swept, compacted)
            for statement in _SWEEP:
                # `start` was swept before, but its own deletion was kept: the newest revision must stay in the log
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
                self._append(revision, "", revision, 0, None)
                self._execute(_SET_PROGRESS, (revision, "compacted"))
                self._revision = revision
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return self._revision
