"""Checksums of records: each row of the log has one over its key, revisions and value, because SQLite has none of its pages.

Rules kept here:
* A row of `live` repeats the checksum of the row of the log that it names, so that a changed key or revision in it is noticed, too.
* A row without a checksum was written by a process of an older schema that still ran. Its value is not verified; the next process
  that opens the file adds the checksum.
* A row is judged as a whole: a record that does not match is an UnreadableEntry, whatever has changed in it.
* Text is compared as bytes. A changed byte may be no UTF-8.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

from mooring.storage.contract import Entry, UnreadableEntry

_HEAD = struct.Struct(">qqqi?").pack

_NoneType = type(None)

COLUMNS = (
    "live.key, live.revision, live.deleted, live.checksum,"
    " log.revision, log.key, log.created, log.prior, log.value, log.checksum"
)
"""Columns of a row for `entry_of`, of `live LEFT JOIN log`."""
CHANGED = "its bytes have changed in the database: the checksum of its record does not match"
LOST = "its record is missing in the database"
MISPLACED = "its key does not lead to its record"


def checksum(revision: Any, key: Any, created: Any, prior: Any, value: Any) -> int:
    """Return the checksum of a record, whose key is encoded. Raises struct.error or TypeError for columns of another type."""
    crc = crc32(key, crc32(_HEAD(revision, created, prior, len(key), value is None)))
    return crc if value is None else crc32(value, crc)


def is_sound(revision: Any, key: Any, created: Any, prior: Any, value: Any, recorded: Any) -> bool:
    """Return whether a row of the log has its checksum, or never had one."""
    if recorded is None:
        return type(key) is bytes and type(created) is int and type(prior) is int and type(value) in (bytes, _NoneType)
    try:
        return bool(checksum(revision, key, created, prior, value) == recorded)
    except (struct.error, TypeError):
        return False


def entry_of(row: tuple[Any, ...]) -> Entry | None:
    """Return the entry of a row of COLUMNS, None for a deletion."""
    key, newest, is_deleted, listed, revision, logged, created, prior, value, recorded = row
    if (
        key == logged
        and is_sound(revision, logged, created, prior, value, recorded)
        and (revision != newest or ((value is None) == is_deleted and (recorded is None or recorded == listed)))
    ):
        return None if value is None else Entry(key.decode(), value, revision, created)
    at = newest if isinstance(newest, int) else 0
    first = created if isinstance(created, int) and 0 < created <= at else at
    problem = LOST if revision is None else CHANGED
    return UnreadableEntry(printed_key(key), b"", at, first, problem)


def printed_key(key: Any) -> str:
    """Return a key that may be damaged."""
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else repr(key)
