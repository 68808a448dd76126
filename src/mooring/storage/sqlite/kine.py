"""Datastore of k3s in a SQLite file: the table in which kine keeps keys, as a reader and a writer of single keys.

Rules kept here (docs/protocol/k3s.md#bootstrap-data):
* Each change of a key is a row; the one with the largest `id` counts, unless it is a deletion.
* A key is created in one transaction that sees no key of it. Nothing else is written, and no row is changed.
* A file without kine's table is refused by the reader. The writer makes it in an empty or missing file, as kine does.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from mooring.errors import ConfigError, StorageError

BUSY_SECONDS = 30.0
"""Time for which a running k3s may hold the lock; kine's own limit."""
MAX_ROWS = 64
"""Keys below a prefix that are read: k3s has one below /bootstrap, and a second one for a moment."""
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER, created INTEGER, deleted INTEGER, "
    "create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)",
    "CREATE INDEX IF NOT EXISTS kine_name_index ON kine (name)",
    "CREATE INDEX IF NOT EXISTS kine_name_id_index ON kine (name,id)",
    "CREATE INDEX IF NOT EXISTS kine_id_deleted_index ON kine (id,deleted)",
    "CREATE INDEX IF NOT EXISTS kine_prev_revision_index ON kine (prev_revision)",
    "CREATE UNIQUE INDEX IF NOT EXISTS kine_name_prev_revision_uindex ON kine (name, prev_revision)",
)
"""Types and names are kine's. A column of type INTEGER keeps a text as it is."""


def read_prefix(path: Path, prefix: str) -> Mapping[str, bytes]:
    """Return the values of the keys that start with `prefix`. Raises ConfigError, StorageError."""
    if not path.is_file():
        raise ConfigError(f"{path} is not there; k3s keeps it as server/db/state.db in its data directory")
    try:
        with closing(sqlite3.connect(_uri(path, "ro"), uri=True, timeout=BUSY_SECONDS)) as connection:
            return _read(connection, path, prefix)
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be read as a datastore of k3s: {error}") from None


def create_key(path: Path, key: str, value: bytes, *, refused: str) -> None:
    """Create a key, in a new file if there is none. Raises ConfigError when a key that starts with `refused` exists."""
    try:
        if not path.exists():
            # Made with its mode: SQLite would follow the umask, and the file holds the sealed keys of the cluster.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with closing(
            sqlite3.connect(_uri(path, "rw"), uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            # In the transaction that writes: a server that starts meanwhile cannot create its key in between.
            if present := _read(connection, path, refused):
                raise ConfigError(f"{path} has {min(present)} already; nothing is overwritten")
            [(before,)] = connection.execute("SELECT COALESCE(MAX(id), 0) FROM kine WHERE name = ?", (key,))
            connection.execute(
                "INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value, old_value) "
                "VALUES (?, 1, 0, 0, ?, 0, ?, NULL)",
                (key, before, value),
            )
            connection.execute("COMMIT")
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}") from None
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be written as a datastore of k3s: {error}") from None


def _read(connection: sqlite3.Connection, path: Path, prefix: str) -> Mapping[str, bytes]:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'kine'").fetchone():
        raise ConfigError(f"{path} has no table kine: it is no datastore of k3s")
    rows = connection.execute(
        "SELECT name, value FROM kine JOIN (SELECT MAX(id) AS newest FROM kine WHERE name >= ? AND name < ? GROUP BY name) "
        "ON id = newest WHERE deleted = 0 LIMIT ?",
        (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1), MAX_ROWS),
    )
    return {str(name): bytes(value or b"") for name, value in rows}


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path))}?mode={mode}"
