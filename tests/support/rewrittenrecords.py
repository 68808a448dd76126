"""Change records in the database of a server as an attacker does, who makes their checksums again."""

from __future__ import annotations

import sqlite3

from mooring.storage.sqlite.record import checksum


def rewrite(connection: sqlite3.Connection, key: str, value: bytes) -> None:
    """Give the only record of a key another value and the checksum that belongs to it."""
    found = connection.execute("SELECT revision, created, prior FROM log WHERE key = ?", (key,)).fetchone()
    revision, created, prior = found
    made = checksum(revision, key.encode(), created, prior, value)
    connection.execute("UPDATE log SET value = ?, checksum = ? WHERE key = ?", (value, made, key))
    connection.execute("UPDATE live SET checksum = ? WHERE key = ?", (made, key))
