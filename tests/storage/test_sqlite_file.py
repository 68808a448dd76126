"""The SQLite file: mode, owner, schema, and the grouping of writes into commits."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.errors import StorageError
from mooring.storage.sqlite import database
from mooring.storage.sqlite.connection import LogWriter
from mooring.storage.sqlite.driver import SqliteStorage
from mooring.storage.sqlite.openfiles import Turn
from tests.support.sqlitefile import nothing, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mooring.db"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- who may read it


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777], ids=lambda umask: f"umask {umask:03o}")
def test_the_files_are_for_their_owner_alone_whatever_the_umask(path: Path, umask: int) -> None:
    async def scenario(store: SqliteStorage) -> None:
        await store.create("/a", b"secret")
        assert {file.name: mode(file) for file in path.parent.iterdir()} == {
            "mooring.db": 0o600,
            "mooring.db-wal": 0o600,
            "mooring.db-shm": 0o600,
        }

    before = os.umask(umask)
    try:
        run(path, scenario)
    finally:
        os.umask(before)


def test_a_file_others_could_read_is_narrowed(path: Path) -> None:
    run(path, nothing)
    path.chmod(0o644)
    run(path, nothing)
    assert mode(path) == 0o600


@pytest.mark.timeout(20)
def test_a_directory_and_the_file_of_another_user_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(path)
    with pytest.raises(StorageError, match="is not a regular file"):
        database.create_file(path)
    path.unlink()
    path.write_bytes(b"")
    owner = path.stat().st_uid
    monkeypatch.setattr(database, "ROOT", owner + 2)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(
        StorageError, match=rf"belongs to another user \(uid {owner}\); if it is yours, run chown {owner + 1}"
    ):
        database.create_file(path)


def test_a_file_others_can_read_and_we_cannot_narrow_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, nothing)
    path.chmod(0o644)

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(StorageError, match=r"mooring\.db can be used by others .* run `chmod 600`"):
        run(path, nothing)


def test_a_directory_that_is_missing_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    run(tmp_path / "data" / "mooring.db", nothing)
    assert mode(tmp_path / "data") == 0o700


def test_a_path_under_a_file_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"mooring\.db cannot be made: .*check its directory"):
        run(tmp_path / "file" / "mooring.db", nothing)


def test_a_path_that_is_a_directory_cannot_be_used(path: Path) -> None:
    path.mkdir(mode=0o700)
    with pytest.raises(StorageError, match=r"mooring\.db is not a regular file; name one"):
        run(path, nothing)


# ---- whose it is


def test_commits_are_synchronous_and_deleted_values_are_overwritten(path: Path) -> None:
    database.create_file(path)
    connection = database.connect(path, read_only=False)
    turn = Turn(path.parent)
    database.prepare(connection, path, turn)
    turn.close()
    settings = {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "secure_delete")
    }
    connection.close()
    assert settings == {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1}


def test_compacted_values_are_gone_from_the_file(path: Path) -> None:
    async def scenario(store: SqliteStorage) -> None:
        await store.create("/a", b"former-secret" * 20)
        await store.update("/a", b"present", expected=2)
        await store.compact(3)

    run(path, scenario)
    assert b"former-secret" not in path.read_bytes()


def change_by_hand(path: Path, *statements: str) -> bytes:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path.read_bytes()


def test_a_file_of_a_newer_mooring_is_refused_and_left_alone(path: Path) -> None:
    run(path, nothing)
    before = change_by_hand(path, f"PRAGMA user_version={len(database.MIGRATIONS) + 1}")
    with pytest.raises(
        StorageError, match=r"written by a newer Mooring \(schema 3, this version supports 2\): run that version"
    ):
        run(path, nothing)
    assert path.read_bytes() == before


@pytest.mark.parametrize("statement", ["CREATE TABLE other (x)", "PRAGMA user_version=1", "PRAGMA application_id=7"])
def test_a_database_of_another_program_is_refused_and_left_alone(path: Path, statement: str) -> None:
    before = change_by_hand(path, statement)
    with pytest.raises(StorageError, match=r"mooring\.db belongs to another program: name another file"):
        run(path, nothing)
    assert path.read_bytes() == before


def test_an_older_file_is_brought_up_to_date_and_keeps_what_it_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def fill(store: SqliteStorage) -> None:
        await store.create("/a", b"kept")

    async def look(store: SqliteStorage) -> None:
        entry = await store.get("/a")
        assert entry is not None
        assert entry.value == b"kept"

    run(path, fill)
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, ("CREATE TABLE added (x)",)))
    run(path, look)
    run(path, look)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
        lines = [line for line in caplog.messages if "migrated" in line]
        assert lines == [f"the database file {path} was migrated from schema 2 to 3"]
        assert connection.execute("SELECT count(*) FROM added").fetchone() == (0,)
    connection.close()


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, nothing)
    with monkeypatch.context() as broken:
        broken.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, ("CREATE TABLE added (x)", "NONSENSE")))
        with pytest.raises(StorageError, match="failed"):
            run(path, nothing)
    run(path, nothing)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "text instead of a database": lambda data: b"This is not a database, it only looks like one.\n" * 100,
    "a header overwritten": lambda data: b"\xff" * 100 + data[100:],
    "a first page overwritten": lambda data: data[:100] + b"\xff" * 3996 + data[4096:],
    "all pages but the first overwritten": lambda data: data[:4096] + b"\xff" * (len(data) - 4096),
    "cut in the middle": lambda data: data[: len(data) // 2],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_when_it_is_opened(path: Path, damage: Callable[[bytes], bytes]) -> None:
    async def fill(store: SqliteStorage) -> None:
        await asyncio.gather(*(store.create(f"/{n}", b"x" * 1000) for n in range(100)))

    run(path, fill)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        StorageError, match=r"mooring\.db (could not be read|does not begin as).* start the server again"
    ) as refused:
        run(path, nothing)
    assert "mooring store verify" in str(refused.value)
    assert "afresh" not in str(refused.value)


def test_a_file_system_without_shared_memory_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_use_wal", lambda connection: False)
    with pytest.raises(StorageError, match="put it on a local disk"):
        run(path, nothing)


def test_many_processes_may_make_the_file_at_once(path: Path) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path; from mooring.clock import SystemClock\n"
        "from mooring.storage.sqlite.driver import SqliteStorage\n"
        "async def main():\n"
        "    store = SqliteStorage(Path(sys.argv[1]), SystemClock())\n"
        "    sys.stdin.readline(); await store.open(); await store.create('/' + sys.argv[2], b''); await store.close()\n"
        "asyncio.run(main())\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(n)], stdin=subprocess.PIPE, text=True)
        for n in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.close()
    assert [process.wait(timeout=60) for process in processes] == [0] * 6

    async def look(store: SqliteStorage) -> None:
        assert [entry.key for entry in (await store.range("")).entries] == [f"/{n}" for n in range(6)]

    run(path, look)


# ---- many writes, one commit


def test_more_waiting_writes_than_the_limit_are_refused_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.sqlite.driver.WAITING_WRITES", 10)

    async def scenario(store: SqliteStorage) -> None:
        outcomes = await asyncio.gather(*(store.create(f"/{n}", b"") for n in range(15)), return_exceptions=True)
        assert [isinstance(outcome, StorageError) for outcome in outcomes] == [False] * 10 + [True] * 5
        assert "10 writes wait for the disk" in str(outcomes[-1])

    run(path, scenario)


def test_large_values_are_spread_over_several_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.sqlite.driver.GROUP_BYTES", 1000)

    async def scenario(store: SqliteStorage) -> None:
        commits = 0
        taken = store._next_group

        def counting() -> list[object]:
            nonlocal commits
            commits += 1
            return list(taken())

        monkeypatch.setattr(store, "_next_group", counting)
        await asyncio.gather(*(store.create(f"/{n}", b"x" * 400) for n in range(9)))
        assert commits == 3

    run(path, scenario)


def test_other_work_has_its_turn_during_a_large_range_and_a_slow_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: SqliteStorage) -> None:
        turns = 0

        async def other_work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        await asyncio.gather(*(store.create(f"/{n}", b"x" * 100) for n in range(1000)))
        working = asyncio.create_task(other_work())
        page, small = await asyncio.gather(store.range("/"), store.range("/99"))
        assert len(page.entries) == 1000
        assert len(small.entries) == 11
        assert turns >= 7  # a turn after each of the slices
        turns = 0
        real = LogWriter.commit

        def slow(writer: LogWriter) -> None:
            time.sleep(0.02)
            real(writer)

        monkeypatch.setattr(LogWriter, "commit", slow)
        await store.create("/slow", b"")
        assert turns > 1
        working.cancel()

    run(path, scenario)


def test_sixteen_writers_share_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = 0

    async def scenario(store: SqliteStorage) -> None:
        real = LogWriter.commit

        def counting(self: LogWriter) -> None:
            nonlocal commits
            commits += 1
            real(self)

        monkeypatch.setattr(LogWriter, "commit", counting)

        async def writer(name: int) -> None:
            for n in range(20):
                await store.create(f"/{name}/{n}", b"")

        await asyncio.gather(*(writer(name) for name in range(16)))
        assert commits <= 40

    run(path, scenario)
