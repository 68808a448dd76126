"""Use of an SQLite database file by other connections, as their locks tell."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from mooring.storage.sqlite.database import check_log, explain, is_busy


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
