"""The SQLite database file: creation, connections, schema migration, and error messages.

Rules kept here:
* The file is 0600 from its first instant, whatever the umask; SQLite gives its `-wal` and `-shm` files the same mode. The mode of
  a wider file is narrowed, or the file is refused when another user owns it.
* `application_id` identifies a Mooring database and `user_version` its schema. The file of another program or of a newer Mooring is
  refused before anything in it is changed; an older schema is migrated in one transaction.
* A commit is on the disk before it returns: WAL with `synchronous=FULL` (https://www.sqlite.org/pragma.html#pragma_synchronous).
* A file whose write-ahead log was deleted while it is open is not opened again.
* `explain` alone turns errors of SQLite into StorageError: a sentence with the path and a remedy, without key or value.

The log keeps every revision: `prior` is the revision of the write before to the same key (0: none), so a past state is
found by walking back from `live` without an index. A row without a value is a deletion.
`mooring.storage.sqlite.record` says what `checksum` is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import struct
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mooring.errors import StorageError
from mooring.storage.sqlite.openfiles import Turn, is_used
from mooring.storage.sqlite.record import checksum

log = logging.getLogger("mooring.storage")

APPLICATION_ID = 0x4D6F6F72  # "Moor"

_CHECKSUM = "mooring_checksum(log.revision, CAST(log.key AS BLOB), log.created, log.prior, log.value)"
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE log (revision INTEGER PRIMARY KEY, key TEXT NOT NULL, created INTEGER NOT NULL,"
        " prior INTEGER NOT NULL, value BLOB)",
        "CREATE TABLE live (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, deleted INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE progress (name TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO progress VALUES ('compacted', 1), ('swept', 1)",
    ),
    (
        "ALTER TABLE log ADD COLUMN checksum INTEGER",
        "ALTER TABLE live ADD COLUMN checksum INTEGER",
        f"UPDATE log SET checksum = {_CHECKSUM}",  # noqa: S608 - constants only
        "UPDATE live SET checksum = (SELECT checksum FROM log WHERE log.revision = live.revision)",
        # empty, unless a process of schema 1 goes on writing to the file
        "CREATE INDEX unverified ON log (revision) WHERE checksum IS NULL",
    ),
)
"""Statements of row n migrate schema n to schema n + 1. Rows are only added."""
ADD_CHECKSUMS = (
    f"UPDATE live SET checksum = (SELECT {_CHECKSUM} FROM log WHERE log.revision = live.revision)"  # noqa: S608 - constants only
    " WHERE key IN (SELECT key FROM log WHERE checksum IS NULL)",
    f"UPDATE log SET checksum = {_CHECKSUM} WHERE checksum IS NULL",  # noqa: S608 - constants only
)
"""Statements that give a checksum to what a process of schema 1 wrote after the migration."""

BUSY_SECONDS = 5.0
"""Seconds that a write waits for another process's commit. A commit takes milliseconds; beyond this the write fails."""
BUSY_PAUSE = 0.0005
"""Seconds between two tries for the write lock: the group of another process takes about that long."""
READ_BUSY_MILLISECONDS = 1000
"""Milliseconds that a reader waits: only while another process recovers the file after a crash."""
CACHE_KIBIBYTES = 16 * 1024
"""KiB of page cache of a connection, for the inner pages of a store of some hundred thousand objects and the largest group."""
CHECKPOINT_PAGES = 4000
"""Pages of the write-ahead log, 16 MiB, after which it is copied into the database: every 2 s of full write load, 4 ms each."""
OLDEST = 1
"""Revision of a fresh store."""
NEWEST = "SELECT coalesce(max(revision), 1) FROM log"
"""Query of the newest revision, which is 1 in a fresh store."""
ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Errors of SQLite. The second is that of a message which quotes damaged names of tables."""
ROOT = 0
"""User id that may change every file."""
KEPT_WAL_BYTES = 64 * 1024 * 1024
"""Bytes to which the `-wal` file is truncated after a burst of writes."""


def create_file(path: Path) -> None:
    """Create an empty database file that only its owner can read, or narrow the mode of an existing one.

    Raises StorageError when the file is missing beside its write-ahead log, which would be the log of another database then.
    """
    log = Path(f"{path}-wal")
    if os.path.lexists(log) and not os.path.lexists(path):
        raise StorageError(
            f"{path} is missing beside {log}, and writes that were acknowledged may be in the log: put the database back; if it is "
            "lost, move the log away and restore a snapshot"
        )
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
            # The mode of `open` is reduced by the umask.
            os.fchmod(descriptor, 0o600)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # The entry of the directory is durable before the file is used: commits to a file without a name would be
        # lost in a crash.
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
        raise StorageError(f"the database file {path} is not a regular file; name one")
    if status.st_uid not in (os.geteuid(), ROOT):
        owner = f"belongs to another user (uid {status.st_uid})"
        raise StorageError(f"the database file {path} {owner}; if it is yours, run chown {os.geteuid()} on it")
    if not os.access(path, os.R_OK | os.W_OK):
        # Refused before SQLite opens it: SQLite would leave read-only -wal and -shm files behind.
        raise StorageError(f"the database file {path} {_READ_ONLY}")
    real = path.resolve()
    for file in (real, Path(f"{real}-wal"), Path(f"{real}-shm")):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(found := file.stat().st_mode) and stat.S_IMODE(found) != 0o600:
                try:
                    file.chmod(0o600)
                except PermissionError as error:
                    text = f"the database file {file} can be used by others and belongs to another user: run `chmod 600` on it"
                    raise StorageError(text) from error


def check_log(path: Path) -> None:
    """Raise StorageError when processes use the index of the write-ahead log (`-shm`), and the log is not there or is not a file.

    The index goes on counting the frames of the old log. One that no process uses was left by a killed one; SQLite makes it again.
    """
    log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    for file in (log, index):
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(file.stat().st_mode):
                raise StorageError(f"{file} is not a regular file; move it away")
    # The log is looked at twice: another process may open the file in between.
    if not os.path.lexists(log) and is_used(index) and not os.path.lexists(log):
        raise StorageError(
            f"{log} is missing beside {index}, and writes that were acknowledged may be in it: put it back; if it is lost, stop"
            f" the server, which may save them, and else restore a snapshot, or move {index.name} away to go on without them"
        )


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Return a connection in autocommit mode, which one thread at a time may use. Raises sqlite3.Error or StorageError."""
    # Before SQLite opens the file: it would make an empty log, go on where the old one ended, and copy zeros from it
    # into the database.
    check_log(path)
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
            # macOS: plain fsync does not reach the disk there.
            "fullfsync=ON",
            "checkpoint_fullfsync=ON",
            # Deleted values are overwritten: they may be secrets.
            "secure_delete=ON",
            "trusted_schema=OFF",
            f"wal_autocheckpoint={CHECKPOINT_PAGES}",
            f"journal_size_limit={KEPT_WAL_BYTES}",
            f"query_only={'ON' if read_only else 'OFF'}",
            # Last, since the pragmas above read the file. A writer waits by itself (`begin`).
            f"busy_timeout={READ_BUSY_MILLISECONDS if read_only else 0}",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def try_begin(connection: sqlite3.Connection, turn: Turn) -> bool:
    """Begin a transaction that writes, unless another process is in one, or has its turn. Return whether it began."""
    if not turn.may_ask():
        return False
    try:
        begin_at_once(connection, turn)
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return False
        raise
    return True


def begin_at_once(connection: sqlite3.Connection, turn: Turn) -> None:
    """Begin a transaction that writes. Raises sqlite3.OperationalError while another process is in one."""
    connection.execute("BEGIN IMMEDIATE")
    turn.give_back()


def begin(connection: sqlite3.Connection, turn: Turn) -> None:
    """Begin a transaction that writes, waiting for that of another process.

    SQLite's own waiting sleeps ever longer, and loses every race. Raises sqlite3.OperationalError after BUSY_SECONDS.
    """
    for _ in range(int(BUSY_SECONDS / BUSY_PAUSE)):
        if try_begin(connection, turn):
            return
        time.sleep(BUSY_PAUSE)
    begin_at_once(connection, turn)


def prepare(connection: sqlite3.Connection, path: Path, turn: Turn) -> None:
    """Check that the file is a Mooring database that can be written, and migrate its schema.

    Several processes may do this at once on a new file, and beside others that write. Raises sqlite3.Error or StorageError.
    """
    connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000:.0f}")
    # One snapshot: another process may be creating the file.
    connection.execute("BEGIN")
    try:
        # Before the switch to WAL, which writes to the file: that of another program stays as it is.
        _refuse_foreign(connection, path)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if not _use_wal(connection):
        raise StorageError(
            f"the database file {path} is on a file system without shared memory: put it on a local disk"
        )
    connection.create_function("mooring_checksum", 5, _checksum_or_null, deterministic=True)
    connection.execute("PRAGMA busy_timeout=0")
    begin(connection, turn)
    try:
        # Read again with the write lock: another process may have migrated the file meanwhile.
        version = _refuse_foreign(connection, path)
        for migration in MIGRATIONS[version:]:
            for statement in migration:
                connection.execute(statement)
        for statement in ADD_CHECKSUMS:
            connection.execute(statement)
        sound_progress(connection)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        # Written even when nothing changed: opening proves that a commit succeeds.
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    # Version 0 is a new file.
    if 0 < version < len(MIGRATIONS):
        log.info("the database file %s was migrated from schema %d to %d", path, version, len(MIGRATIONS))
    # What this start recovered from the log may be in memory alone, after an fsync that failed (docs/adr/0074). It is
    # on the disk before it is used.
    checkpoint(connection)


def sound_progress(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return what `read_progress` does, in a transaction that writes. A damaged record is made again, so that it is never None.

    No revision before the newest one can be read then.
    """
    (newest,) = connection.execute(NEWEST).fetchone()
    found = read_progress(connection, newest)
    if found is None:
        log.warning(
            "the record of compaction in the database has changed on the disk, and is made again: what was before revision %d"
            " cannot be read any more",
            newest,
        )
        found = newest, OLDEST
        connection.execute("DELETE FROM progress")
        connection.execute("INSERT INTO progress VALUES ('compacted', ?), ('swept', ?)", found)
    return found


def read_progress(connection: sqlite3.Connection, newest: int) -> tuple[int, int] | None:
    """Return the oldest revision that can be read, and up to which revision older ones were deleted; None for a damaged record."""
    numbers = "SELECT CAST(name AS BLOB), CASE typeof(revision) WHEN 'integer' THEN revision END FROM progress"
    rows = dict(connection.execute(numbers).fetchall())
    compacted, swept = rows.get(b"compacted"), rows.get(b"swept")
    if not (isinstance(compacted, int) and isinstance(swept, int)):
        return None
    return (compacted, swept) if OLDEST <= swept <= compacted <= newest else None


def _checksum_or_null(*columns: Any) -> int | None:
    """Return the checksum of a record, None for columns of another type: a record that was damaged before it had one."""
    try:
        return checksum(*columns)
    except (struct.error, TypeError):
        return None


def checkpoint(connection: sqlite3.Connection) -> None:
    """Copy the write-ahead log into the database as far as others read no older state, and wait for the disk. Raises sqlite3.Error.

    What could not be written to the disk before is written again.
    """
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version of the file. Raises StorageError for another program's file and for a newer schema."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise StorageError(f"the database file {path} belongs to another program: name another file")
    if version > len(MIGRATIONS):
        raise StorageError(
            f"the database file {path} was written by a newer Mooring (schema {version}, this version supports {len(MIGRATIONS)}):"
            " run that version or a newer one"
        )
    return int(version)


def _use_wal(connection: sqlite3.Connection) -> bool:
    """Switch to a write-ahead log. Several processes may do this at once, and SQLite's own waiting does not cover it."""
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
    """Return whether another connection held the lock."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_damage(error: Exception) -> bool:
    """Return whether an error says that bytes have changed. Another may have passed at the next try."""
    if not isinstance(error, sqlite3.Error):
        return isinstance(error, UnicodeDecodeError)
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def stored_nothing(error: sqlite3.Error) -> bool:
    """Return whether a COMMIT that failed like this has certainly stored nothing: its last page, which has the mark of the commit,
    was not written. After any other error, as that of an fsync, the mark may be on the disk."""
    return (
        is_busy(error)
        or _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)
        or _extended_code(error) == sqlite3.SQLITE_IOERR_WRITE
    )


def _extended_code(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code


def _code(error: Exception) -> int:
    # The low byte is the primary code (https://www.sqlite.org/rescode.html).
    return _extended_code(error) & 0xFF


_READ_AGAIN = "check the disk and the log of the kernel, and start the server again, which reads it again"
_VERIFY = "`mooring store verify` says what is damaged: restore the last snapshot"
_THEN_VERIFY = f"if that does not help, {_VERIFY}"
_READ_ONLY = "is read-only: make the file, its directory and its file system writable and retry"
_UNREACHABLE = "cannot be opened: check that its directory exists and that this user may read and write both"
_READ_ERRORS = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS)
_MEANINGS = {
    sqlite3.SQLITE_ERROR: f"failed: its tables are not as Mooring makes them, or bytes have changed; {_VERIFY}",
    sqlite3.SQLITE_FULL: "cannot be written: the disk is full; free some space and retry",
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error; check the disk, its quota and the file size limit",
    sqlite3.SQLITE_BUSY: f"is locked by another process for more than {BUSY_SECONDS:.0f} s; see which one holds it and retry",
    sqlite3.SQLITE_LOCKED: "is locked by another connection; retry",
    # SQLite gives this code to errors of the disk, too (SQLITE_IOERR_CORRUPTFS)
    sqlite3.SQLITE_CORRUPT: f"could not be read: the disk reported an error, or bytes have changed; {_READ_AGAIN}; {_THEN_VERIFY}",
    sqlite3.SQLITE_NOTADB: f"does not begin as an SQLite database does: is it the right file? Else {_READ_AGAIN}; {_THEN_VERIFY}",
    sqlite3.SQLITE_CANTOPEN: _UNREACHABLE,
    sqlite3.SQLITE_PERM: _UNREACHABLE,
    sqlite3.SQLITE_TOOBIG: "cannot hold a value that large",
    sqlite3.SQLITE_NOMEM: "needs more memory than there is; give the process more and retry",
}


def explain(error: Exception, path: Path) -> StorageError:
    """Return the error for the operator. SQLite's own text is left out: its code is as precise and never quotes a value."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    is_known = hasattr(error, "sqlite_errorcode") or isinstance(error, UnicodeDecodeError)
    meaning = _MEANINGS.get(_code(error), "failed") if is_known else "failed"
    if _extended_code(error) in _READ_ERRORS:
        meaning = f"could not be read: the disk reported an error; {_READ_AGAIN}"
    return StorageError(f"the database file {path} {meaning} ({name})")


def is_open(path: Path) -> bool:
    """Return whether a connection to the database is open, in this process or another. Raises StorageError.

    Each connection in WAL mode has a lock that it shares with the others (https://www.sqlite.org/wal.html#use_of_wal_without_shared_memory);
    an exclusive one is granted only when there is none.
    """
    path = path.resolve()
    check_log(path)
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None, timeout=0)
        ) as connection:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
            return False
    except sqlite3.Error as error:
        if is_busy(error):
            return True
        raise explain(error, path) from error
