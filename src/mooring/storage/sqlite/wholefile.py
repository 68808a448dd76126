"""Verification of a whole database file in one go, beside a server or without one. The file is not changed.

Rules kept here: SQLite's own `integrity_check` reads the structure of all pages, and a pass of `verification.py` all records. A
file of an older schema is verified as far as it can be: without checksums.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mooring.errors import StorageError
from mooring.storage.sqlite.database import APPLICATION_ID, BUSY_SECONDS, ERRORS, MIGRATIONS, check_log, explain
from mooring.storage.sqlite.verification import MAX_DAMAGE, SCHEMA_CHANGED, Damage, Verification, is_schema_changed

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
