"""The SQLite file: how it is made, opened, recognised, migrated; and what its errors mean.

Rules kept here:
* The file is 0600 from its first instant, whatever the umask; SQLite gives its `-wal` and `-shm` files the same mode. A file
  found wider is narrowed, or refused when it is not ours to narrow. A new file is durable in its directory before it is used.
* `application_id` says whose file it is and `user_version` which schema it has. A file of somebody else or of a newer Mooring
  is refused before anything in it is changed; an older one is migrated in one transaction.
* A commit is on the disk before it returns: WAL with `synchronous=FULL` (https://www.sqlite.org/pragma.html#pragma_synchronous).
* `explain` is the one place where SQLite's errors become ours: a sentence with the path and what to do, no key, no value.

The log keeps every revision: `prior` is the revision of the write before to the same key (0: none), so a state of the past is
found by walking back from `live`, and no index has to be kept up for it. A row without a value is a deletion.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from pathlib import Path
from urllib.parse import quote

from mooring.errors import StorageError

APPLICATION_ID = 0x4D6F6F72  # "Moor"

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE log (revision INTEGER PRIMARY KEY, key TEXT NOT NULL, created INTEGER NOT NULL,"
        " prior INTEGER NOT NULL, value BLOB)",
        "CREATE TABLE live (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, deleted INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE progress (name TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO progress VALUES ('compacted', 1), ('swept', 1)",
    ),
)
"""Row n leads from schema n to schema n + 1. Rows are only ever added."""

BUSY_SECONDS = 5.0
"""How long a write waits for another process's commit. A commit takes milliseconds; a disk slower than this is told about."""
READ_BUSY_MILLISECONDS = 1000
"""Readers wait only while another process recovers the file after a crash."""
CACHE_KIBIBYTES = 16 * 1024
"""Page cache of a connection: holds the inner pages of a store of some hundred thousand objects and the largest group."""
CHECKPOINT_PAGES = 4000
"""The log of pages is copied into the database each 16 MiB: about once in two seconds of full write load, 4 ms a time."""
NEWEST = "SELECT coalesce(max(revision), 1) FROM log"
"""The newest revision; that of a fresh store is 1."""
ROOT = 0
"""The user who can change every file anyway."""
KEPT_WAL_BYTES = 64 * 1024 * 1024
"""After a burst the `-wal` file is cut back to this."""


def create_file(path: Path) -> None:
    """Make an empty database file that only its owner can read, or narrow the one that is there."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            # O_EXCL: an existing file is never opened here, since closing it would drop the locks that other connections
            # of this process hold on it (POSIX advisory locks).
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            _narrow(path)
            return
        try:
            os.fchmod(descriptor, 0o600)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StorageError(f"the database file {path} cannot be made: {error.strerror}; check its directory") from error


def _narrow(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"the database file {path} is no regular file; name one")
    if status.st_uid not in (os.geteuid(), ROOT):
        who = f"belongs to another user (uid {status.st_uid})"
        raise StorageError(f"the database file {path} {who}; if it is yours, run chown {os.geteuid()} on it")
    if not os.access(path, os.R_OK | os.W_OK):
        # Told before SQLite opens it: that would leave -wal and -shm files behind which are read-only for ever.
        raise StorageError(f"the database file {path} {_READ_ONLY}")
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(found := file.stat().st_mode) and stat.S_IMODE(found) != 0o600:
                try:
                    file.chmod(0o600)
                except PermissionError as error:
                    text = f"the database file {file} can be used by others and belongs to another user: run `chmod 600` on it"
                    raise StorageError(text) from error


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """A connection in autocommit mode that may be handed from thread to thread (never used by two at once)."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )
    try:
        for pragma in (
            f"cache_size=-{CACHE_KIBIBYTES}",
            "synchronous=FULL",
            "fullfsync=ON",  # macOS: plain fsync does not reach the disk there
            "checkpoint_fullfsync=ON",
            "secure_delete=ON",  # what compaction forgets is overwritten: values may be secrets
            "trusted_schema=OFF",
            f"wal_autocheckpoint={CHECKPOINT_PAGES}",
            f"journal_size_limit={KEPT_WAL_BYTES}",
            f"query_only={'ON' if read_only else 'OFF'}",
            # Last, since the others read the file. A writer does its own waiting: sqlite_write.
            f"busy_timeout={READ_BUSY_MILLISECONDS if read_only else 0}",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Check that the file is ours and can be written, and bring its schema up to date.

    Several processes may do this at once on a new file. Raises sqlite3.Error or StorageError.
    """
    connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000:.0f}")
    connection.execute("BEGIN")  # one snapshot: another process may be making the file just now
    try:
        _refuse_foreign(connection, path)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if not _use_wal(connection):
        raise StorageError(
            f"the database file {path} is on a file system without shared memory: put it on a local disk"
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _refuse_foreign(connection, path)
        for migration in MIGRATIONS[version:]:
            for statement in migration:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        # Written even when nothing changed: opening proves that a commit succeeds.
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        connection.execute("COMMIT")
        connection.execute("PRAGMA busy_timeout=0")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> int:
    """The schema of the file; StorageError when it is not ours to use."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise StorageError(f"the database file {path} belongs to another program: name another file")
    if version > len(MIGRATIONS):
        raise StorageError(
            f"the database file {path} was written by a newer Mooring (schema {version}, this one knows {len(MIGRATIONS)}):"
            " run that version or a newer one"
        )
    return int(version)


def _use_wal(connection: sqlite3.Connection) -> bool:
    """Several processes may find a new file at once, and SQLite's own waiting does not cover this statement."""
    pause = 0.005
    for attempts_left in reversed(range(int(BUSY_SECONDS / pause))):
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            return bool(mode == "wal")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or not attempts_left:
                raise
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection was in the way."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the low byte is the primary code


_DAMAGED = "is damaged or not an SQLite database: restore it from a backup, or move it away to start afresh"
_READ_ONLY = "is read-only: make the file, its directory and its file system writable and retry"
_UNREACHABLE = "cannot be opened: check that its directory exists and that this user may read and write both"
_MEANINGS = {
    sqlite3.SQLITE_FULL: "cannot be written: the disk is full; free some space and retry",
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error; check the disk, its quota and the file size limit",
    sqlite3.SQLITE_BUSY: f"is locked by another process for more than {BUSY_SECONDS:.0f} s; see which one holds it and retry",
    sqlite3.SQLITE_LOCKED: "is locked by another connection; retry",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CANTOPEN: _UNREACHABLE,
    sqlite3.SQLITE_PERM: _UNREACHABLE,
    sqlite3.SQLITE_TOOBIG: "cannot hold a value that large",
    sqlite3.SQLITE_NOMEM: "needs more memory than there is; give the process more and retry",
}


def explain(error: Exception, path: Path) -> StorageError:
    """The sentence for the operator. SQLite's own text is left out: its code says as much, and never quotes a value."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StorageError(f"the database file {path} {_MEANINGS.get(_code(error), 'failed')} ({name})")
