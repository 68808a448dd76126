"""Keys in a SQLite file of kine: the newest row of a key counts, and nothing is overwritten."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mooring.errors import ConfigError, StorageError
from mooring.storage.sqlite.kine import create_key, read_prefix

KEY, OTHER = "/bootstrap/0123456789ab", "/bootstrap/ba9876543210"


def rows(path: Path, *more: tuple[str, int, int, int, int, bytes | None]) -> None:
    """Add rows as kine does: name, created, deleted, create_revision, prev_revision, value."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value) VALUES (?, ?, ?, ?, ?, 0, ?)",
            more,
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A datastore with kine's table, and keys of other things."""
    found = tmp_path / "state.db"
    create_key(found, "/registry/health", b"{}", refused="/nothing")
    rows(found, ("compact_rev_key", 1, 0, 0, 0, b""), ("/bootstraq", 1, 0, 0, 0, b"not below"))
    return found


def test_a_key_that_was_created_is_read(path: Path) -> None:
    create_key(path, KEY, b"value", refused="/bootstrap")
    assert read_prefix(path, "/bootstrap") == {KEY: b"value"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_newest_row_counts(path: Path) -> None:
    rows(
        path, (KEY, 1, 0, 0, 0, b"old"), (KEY, 0, 0, 4, 4, b"new"), (OTHER, 1, 0, 0, 0, b"x"), (OTHER, 0, 1, 6, 6, None)
    )
    assert read_prefix(path, "/bootstrap") == {KEY: b"new"}


def test_a_lock_of_k3s_is_an_empty_value(path: Path) -> None:
    rows(path, (KEY, 1, 0, 0, 0, None))
    assert read_prefix(path, "/bootstrap") == {KEY: b""}


def test_a_deleted_key_is_created_again(path: Path) -> None:
    rows(path, (KEY, 1, 0, 0, 0, b"old"), (KEY, 0, 1, 4, 4, None))
    create_key(path, KEY, b"again", refused="/bootstrap")
    assert read_prefix(path, "/bootstrap") == {KEY: b"again"}


@pytest.mark.parametrize("present", [KEY, OTHER], ids=["the same key", "another key"])
def test_a_datastore_with_such_a_key_is_left_as_it_is(path: Path, present: str) -> None:
    create_key(path, present, b"first", refused="/bootstrap")
    with pytest.raises(ConfigError, match=f"has {present} already"):
        create_key(path, KEY, b"second", refused="/bootstrap")
    assert read_prefix(path, "/bootstrap") == {present: b"first"}


def test_files_that_are_no_datastore(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        read_prefix(tmp_path / "missing.db", "/bootstrap")
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, other:
        other.execute("CREATE TABLE x (y)")
    with pytest.raises(ConfigError, match="has no table kine"):
        read_prefix(tmp_path / "other.db", "/bootstrap")
    (tmp_path / "text.db").write_text("not a database, and longer than the header of one " * 9)
    with pytest.raises(StorageError, match="cannot be read"):
        read_prefix(tmp_path / "text.db", "/bootstrap")
    with pytest.raises(StorageError, match="cannot be written"):
        create_key(tmp_path / "text.db", KEY, b"x", refused="/bootstrap")
    with pytest.raises(ConfigError, match="cannot be made"):
        create_key(tmp_path / "no/state.db", KEY, b"x", refused="/bootstrap")
