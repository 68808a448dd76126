"""`mooring store verify`: a data directory, a database, a snapshot, and files that are neither."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.controlplane.snapshots import save
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support.commandline import CommandLine, mooring

__all__ = ["mooring"]

KEY = "/registry/secrets/default/a"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory with a database and a snapshot of two objects."""
    root = tmp_path / "data"
    (root / "snapshots").mkdir(parents=True)

    async def fill() -> None:
        store = SqliteStorage(root / "mooring.db", SystemClock())
        await store.open()
        await store.create(KEY, b'{"secret":"hidden"}' * 50)
        await store.create("/registry/secrets/default/b", b"{}")
        await save(store, root / "snapshots" / "one.snapshot", SystemClock(), compressed=False)
        await store.close()

    asyncio.run(fill())
    return root


def damage(path: Path) -> None:
    data = path.read_bytes()
    place = data.index(b'{"secret":"hidden"}')
    path.write_bytes(data[:place] + b"!" + data[place + 1 :])


def test_a_whole_data_directory(mooring: CommandLine, data_dir: Path) -> None:
    assert mooring.done("store", "verify", str(data_dir)).splitlines() == [
        f"{data_dir}/mooring.db is whole: 2 records.",
        f"{data_dir}/snapshots/one.snapshot is whole: 2 records.",
    ]
    assert mooring.done("store", "verify", "--data-dir", str(data_dir)) == mooring.done(
        "store", "verify", str(data_dir)
    )
    assert json.loads(mooring.done("store", "verify", str(data_dir / "mooring.db"), "-o", "json")) == {
        "kind": "StoreVerification",
        "files": [
            {
                "file": f"{data_dir}/mooring.db",
                "type": "database",
                "whole": True,
                "records": 2,
                "unverified": 0,
                "damage": [],
            }
        ],
    }


def test_a_damaged_record_is_named_without_its_value_and_the_exit_code_is_1(
    mooring: CommandLine, data_dir: Path
) -> None:
    damage(data_dir / "mooring.db")
    outcome = mooring("store", "verify", str(data_dir))
    assert outcome.code == 1
    assert outcome.out.splitlines()[1].split()[:3] == ["mooring.db", KEY, "2"]
    assert "the checksum of its record does not match" in outcome.out
    assert f"{data_dir}/snapshots/one.snapshot is whole: 2 records." in outcome.out
    assert outcome.err.strip() == (
        f"Damaged: {data_dir}/mooring.db. Restore the last whole snapshot, or delete the objects that cannot be read."
    )
    assert "hidden" not in outcome.all
    outcome = mooring("store", "verify", str(data_dir / "mooring.db"), "-o", "json")
    assert outcome.code == 1
    [file] = json.loads(outcome.out)["files"]
    assert (file["whole"], file["damage"][0]["key"], file["damage"][0]["revision"]) == (False, KEY, 2)


def test_a_damaged_snapshot(mooring: CommandLine, data_dir: Path) -> None:
    file = data_dir / "snapshots" / "one.snapshot"
    damage(file)
    outcome = mooring("store", "verify", str(file))
    assert outcome.code == 1
    assert "the snapshot is damaged after byte" in outcome.out
    shutil.copy(file, data_dir / "copy.snapshot")
    file.unlink()
    (data_dir / "mooring.db").unlink()
    assert mooring("store", "verify", str(data_dir)).code == 1


def test_a_database_without_checksums(mooring: CommandLine, data_dir: Path) -> None:
    with closing(sqlite3.connect(data_dir / "mooring.db")) as connection, connection:
        connection.execute("UPDATE log SET checksum = NULL")
    out = mooring.done("store", "verify", str(data_dir / "mooring.db"))
    assert out == f"{data_dir}/mooring.db is whole: 2 records, 2 of them without a checksum.\n"


def test_what_cannot_be_verified_is_one_line(mooring: CommandLine, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("text" * 1000)
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection, connection:
        connection.execute("CREATE TABLE other (x)")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, message in (
        ((str(text),), "does not begin as an SQLite database does"),
        ((str(tmp_path / "other.db"),), "is not a database of Mooring"),
        ((str(tmp_path / "missing"),), "cannot be read: no such file or directory"),
        ((str(empty),), "has no database mooring.db and no snapshots"),
        (("--storage", "etcd:https://127.0.0.1:2379"), "verifies its data itself"),
    ):
        outcome = mooring("store", "verify", *arguments)
        assert outcome.code not in (0, None)
        assert message in outcome.err
        assert outcome.err.count("\n") == 1
        assert outcome.out == ""
