"""Synchronous reads of one SQLite database through one connection.

Rules kept here: the result of one call comes from one snapshot, and the check that a revision is not compacted is made in the same
snapshot. `newest` costs one look at shared memory when no process has written. Every record that is read is verified
(`mooring.storage.sqlite.record`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from mooring.storage.contract import CompactedError, Entry, FutureRevisionError, Page, StoredChange
from mooring.storage.keys import end_of_prefix
from mooring.storage.sqlite.database import NEWEST, read_progress
from mooring.storage.sqlite.record import COLUMNS, entry_of, is_sound
from mooring.storage.sqlite.verification import Verification

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

    def check(self) -> None:
        """Read every table, so that a damaged file is reported when it is opened."""
        self.newest()
        self.compacted()
        self.get("/")

    def verification(self) -> Verification:
        """Return a new pass over the database, whose slices are read between the calls of this reader."""
        return Verification(self._connection)

    def newest(self) -> int:
        """Return the newest revision that any process committed."""
        (version,) = self._execute("PRAGMA data_version").fetchone()
        if version != self._seen_version:
            # The version is read first: after a commit between the two reads, the next call sees a new version and reads again.
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
                    continue  # a deletion by a row of `live` that says otherwise: see `_NOW`
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
                    if changes:
                        break  # the changes before it can be read
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
            if self._connection.in_transaction:  # SQLite ends the transaction itself after some errors
                self._execute("ROLLBACK")
