"""Verification of a database: in slices beside other work, or of a whole file in one go."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mooring.errors import StorageError
from mooring.storage.contract import UnreadableEntry
from mooring.storage.sqlite.database import (
    APPLICATION_ID,
    BUSY_SECONDS,
    ERRORS,
    MIGRATIONS,
    NEWEST,
    check_log,
    explain,
    read_progress,
)
from mooring.storage.sqlite.record import CHANGED, COLUMNS, MISPLACED, entry_of, is_sound, printed_key

# Verification of a database: every record of the log, and every key, in slices that leave time for other work.
#
# Rules kept here:
# * A pass reads the log in order of the revisions: each record has its checksum, and its key is found at this revision or a later
#   one. It then reads `live` in order of the keys: each key has a sound record. The record of compaction is read last.
# * Damage of pages that SQLite itself notices ends the pass. `integrity_check`, which reads all pages in one go, is for files that
#   no server waits for.

SLICE_RECORDS = 64
SLICE_BYTES = 256 * 1024
"""Records, or bytes of values, of one slice: about 0.5 ms."""
MAX_DAMAGE = 1000
"""Damaged places that are listed."""

_RECORDS = (
    "SELECT log.revision, log.key, log.created, log.prior, log.value, log.checksum,"
    " (SELECT live.revision FROM live WHERE live.key = log.key)"
    " FROM log WHERE log.revision > ? ORDER BY log.revision LIMIT ?"
)
_KEYS = (
    f"SELECT {COLUMNS} FROM live LEFT JOIN log ON log.revision = live.revision"  # noqa: S608 - constants only
    " WHERE live.key > CAST(? AS TEXT) AND live.key < x'' ORDER BY live.key LIMIT ?"
)
_WITHOUT = re.compile(r"(?:log|live)\.checksum")
"""Columns that schema 1 does not have: its records are sound as long as SQLite can read them."""
PROGRESS_CHANGED = "the record of compaction has changed: a start makes it again"
SCHEMA_CHANGED = "the descriptions of the tables have changed: no start can read them; restore a snapshot"
_DESCRIPTIONS = "SELECT type, name, tbl_name, CAST(sql AS BLOB) FROM sqlite_master ORDER BY name"
_NO_TEXTS = "SELECT key, revision FROM live WHERE key < '' OR key >= x'' LIMIT ?"


def is_schema_changed(connection: sqlite3.Connection) -> bool:
    """Return whether the descriptions of the tables are others than those of their version. Raises sqlite3.Error.

    A version that is not known, of a newer Mooring that runs beside this one, is not judged.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 < version <= len(MIGRATIONS):
        return False
    return _descriptions(connection) != _wanted(version)


def _descriptions(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    connection.text_factory = bytes
    return connection.execute(_DESCRIPTIONS).fetchall()


@cache
def _wanted(version: int) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.create_function("mooring_checksum", 5, lambda *columns: None)
        for migration in MIGRATIONS[:version]:
            for statement in migration:
                connection.execute(statement)
        return _descriptions(connection)


class VerificationPart(Enum):
    """Parts of a pass."""

    LOG = "log"
    KEYS = "keys"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place. `key` is "" when it is not known."""

    key: str
    revision: int
    problem: str


class Verification:
    """One pass over a database."""

    def __init__(self, connection: sqlite3.Connection, *, has_checksums: bool = True) -> None:
        """`connection`: for this pass between `advance` and its return. `has_checksums`: False for schema 1."""
        self._execute = connection.cursor().execute
        self._connection = connection
        connection.text_factory = bytes
        self._records, self._keys = _RECORDS, _KEYS
        if not has_checksums:
            self._records, self._keys = _WITHOUT.sub("NULL", _RECORDS), _WITHOUT.sub("NULL", _KEYS)
        self._part = VerificationPart.LOG
        self._position: Any = 0
        self._unnamed: set[int] = set()
        """Revisions of damaged records whose key was not found yet."""
        self.records = 0
        """Records of the log that were read."""
        self.unverified = 0
        """Records without a checksum."""
        self.damage: list[Damage] = []

    @property
    def ended(self) -> bool:
        """True once the pass has read everything."""
        return self._part is VerificationPart.ENDED

    @property
    def damaged(self) -> int:
        """Number of damaged places so far."""
        return len(self.damage) + len(self._unnamed)

    def skip_part(self) -> None:
        """Go on with the next part, after one that SQLite cannot read."""
        if self._part is VerificationPart.LOG:
            self._part, self._position = VerificationPart.KEYS, b""
        else:
            self._part = VerificationPart.ENDED

    def advance(self) -> None:
        """Verify the next slice. Raises sqlite3.Error when SQLite cannot read it."""
        # A slice is one snapshot. Writes between two slices do no harm: what they add has later revisions, or is read
        # with its key.
        with _snapshot(self._connection):
            if self._part is VerificationPart.LOG:
                self._read_log()
            elif self._part is VerificationPart.KEYS:
                self._read_keys()

    def _read_log(self) -> None:
        size = count = 0
        for *record, newest in self._execute(self._records, (self._position, SLICE_RECORDS)):
            revision, key, _, _, value, recorded = record
            self._position = revision
            self.records += 1
            self.unverified += recorded is None
            if not is_sound(*record):
                self._unnamed.add(revision)
            elif key and (not isinstance(newest, int) or newest < revision):
                self._report(printed_key(key), revision, MISPLACED)
            count += 1
            size += len(value) if isinstance(value, bytes) else 0
            if size >= SLICE_BYTES:
                return
        if count < SLICE_RECORDS:
            self._part, self._position = VerificationPart.KEYS, b""
            for key, revision in self._execute(_NO_TEXTS, (MAX_DAMAGE,)):
                self._report(printed_key(key), revision, CHANGED)

    def _read_keys(self) -> None:
        size = count = 0
        for row in self._execute(self._keys, (self._position, SLICE_RECORDS)):
            self._position = row[0]
            entry = entry_of(row)
            if isinstance(entry, UnreadableEntry):
                self._unnamed.discard(entry.revision)
                self._report(entry.key, entry.revision, entry.problem)
            count += 1
            size += len(entry.value) if entry is not None else 0
            if size >= SLICE_BYTES:
                return
        if count < SLICE_RECORDS:
            self._part = VerificationPart.ENDED
            (newest,) = self._execute(NEWEST).fetchone()
            if read_progress(self._connection, newest) is None:
                self._report("", 0, PROGRESS_CHANGED)
            for revision in sorted(self._unnamed):
                self._report("", revision, CHANGED)
            self._unnamed.clear()

    def _report(self, key: str, revision: int, problem: str) -> None:
        if len(self.damage) < MAX_DAMAGE:
            self.damage.append(Damage(key, revision, problem))


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


# Verification of a whole database file in one go, beside a server or without one. The file is not changed.
#
# Rules kept here: SQLite's own `integrity_check` reads the structure of all pages, and a pass of `verification.py` all records. A
# file of an older schema is verified as far as it can be: without checksums.

HEADER = b"SQLite format 3\0"
"""First bytes of every SQLite database."""
_CHECKSUM_SCHEMA = 2
"""Schema from which on records have checksums."""


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """Result of a verification."""

    records: int
    unverified: int
    """Records without a checksum."""
    damage: Sequence[Damage]


def verify_file(path: Path) -> VerificationReport:
    """Read the whole database. Raises StorageError for a file that is not a database of Mooring, or that cannot be opened."""
    path = path.resolve()
    check_log(path)
    try:
        uri = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)) as connection:
            version = _schema(connection, path)
            damage = list(_integrity(connection, path))
            verification = Verification(connection, has_checksums=version >= _CHECKSUM_SCHEMA)
            while not verification.ended:
                try:
                    verification.advance()
                except ERRORS as error:
                    damage.append(Damage("", 0, str(explain(error, path))))
                    verification.skip_part()
            return VerificationReport(verification.records, verification.unverified, (*damage, *verification.damage))
    except ERRORS as error:
        raise explain(error, path) from error


def _schema(connection: sqlite3.Connection, path: Path) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise StorageError(f"{path} is not a database of Mooring: name another file")
    if not 0 < version <= len(MIGRATIONS):
        raise StorageError(f"{path} has schema {version}, which this version does not know: run a newer Mooring")
    return int(version)


def _integrity(connection: sqlite3.Connection, path: Path) -> Iterator[Damage]:
    connection.text_factory = bytes
    try:
        if is_schema_changed(connection):
            yield Damage("", 0, SCHEMA_CHANGED)
        for (line,) in connection.execute(f"PRAGMA integrity_check({MAX_DAMAGE})"):
            if line != b"ok":
                yield Damage("", 0, line.decode(errors="backslashreplace").replace("\n", " "))
    except ERRORS as error:
        yield Damage("", 0, str(explain(error, path)))
