"""A database whose files are deleted or replaced while it is open (docs/faults.md)."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.errors import StorageError
from mooring.storage.sqlite.database import is_open
from mooring.storage.sqlite.driver import LOOK_SECONDS, SqliteStorage
from mooring.storage.sqlite.verification import verify_file
from tests.support.manualclock import ManualClock, settle


def replace_with_a_copy(file: Path) -> None:
    shutil.copy(file, f"{file}.copy")
    os.replace(f"{file}.copy", file)


CHANGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "moved away": lambda file: file.rename(file.with_name("aside")),
    "replaced by a copy": replace_with_a_copy,
}


def test_a_database_that_was_cut_is_noticed_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "mooring.db"

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        await store.create("/kept", b"v")
        assert path.stat().st_size > 4096
        os.truncate(path, 4096)
        with pytest.raises(StorageError, match="was deleted, replaced or cut while it is open"):
            await store.create("/next", b"v")
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("part", [0, 0.5], ids=["emptied", "cut"])
def test_a_log_that_was_cut_in_its_place_is_noticed_and_nothing_is_written_behind_its_end(
    tmp_path: Path, part: float
) -> None:
    path, log = tmp_path / "mooring.db", tmp_path / "mooring.db-wal"

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        entries = [await store.create(f"/{n}", b"v" * 4096) for n in range(20)]
        whole = log.read_bytes()
        os.truncate(log, int(len(whole) * part))
        with pytest.raises(StorageError, match=r"mooring\.db-wal was deleted, replaced or cut while it is open"):
            await store.create("/next", b"v")
        with pytest.raises(StorageError):
            await store.compact(2)
        log.write_bytes(whole)
        await store.create("/next", b"v")
        assert store.problem == ""
        await store.close()
        assert not verify_file(path).damage
        again = SqliteStorage(path, SystemClock())
        await again.open()
        assert [await again.get(one.key) for one in entries] == entries
        await again.close()

    asyncio.run(scenario())


def test_a_log_that_another_process_empties_is_in_its_place(tmp_path: Path) -> None:
    path, log = tmp_path / "mooring.db", tmp_path / "mooring.db-wal"
    program = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA wal_checkpoint(TRUNCATE)')"

    def empty() -> None:
        subprocess.run([sys.executable, "-c", program, path], check=True)

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        for n in range(3):
            await store.create(f"/{n}", b"v" * 4096)
            await asyncio.to_thread(empty)
            assert log.stat().st_size == 0
        await store.create("/next", b"v")
        assert store.problem == ""
        await store.close()

    asyncio.run(scenario())


def test_an_older_copy_over_a_database_that_has_just_grown_is_noticed_by_the_next_write(tmp_path: Path) -> None:
    path, copy = tmp_path / "mooring.db", tmp_path / "copy"

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        shutil.copy(path, copy)
        for n in range(5):
            await store.create(f"/{n}", b"v" * 4096)
        await store.compact(2)
        with copy.open("rb") as older, path.open("r+b") as inplace:
            inplace.truncate()
            shutil.copyfileobj(older, inplace)
        with pytest.raises(StorageError, match=r"mooring\.db was deleted, replaced or cut while it is open"):
            await store.create("/next", b"v")
        await store.close()

    asyncio.run(scenario())


def test_a_store_that_was_closed_has_no_file_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStorage(tmp_path / "mooring.db", SystemClock())
        for _ in range(2):
            await store.open()
            await store.close()

    asyncio.run(scenario())
    opened = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert not [one for one in opened if one.is_symlink() and str(tmp_path) in str(one.readlink())]


def test_no_database_is_made_beside_the_log_of_one_that_was_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "mooring.db"

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        kept = await store.create("/kept", b"v")
        path.rename(tmp_path / "aside")
        other = SqliteStorage(path, SystemClock())
        with pytest.raises(StorageError, match="is missing beside"):
            await other.open()
        assert not path.exists()
        (tmp_path / "aside").rename(path)
        await other.open()
        assert await other.get("/kept") == kept
        await other.close()
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"], ids=["the database", "the log", "the shared memory"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_is_not_in_its_place_is_noticed_by_the_next_write_and_nothing_is_stored(
    tmp_path: Path, suffix: str, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "mooring.db"

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        kept = await store.create("/kept", b"v")
        change(Path(f"{path}{suffix}"))
        outcomes = await asyncio.gather(*(store.create(f"/{n}", b"v") for n in range(3)), return_exceptions=True)
        assert [type(one) for one in outcomes] == [StorageError] * 3
        assert f"the file {path}{suffix} was deleted, replaced or cut while it is open" in str(outcomes[0])
        assert str(outcomes[0]) == store.problem
        assert not store.failed.is_set()
        with pytest.raises(StorageError, match="put back the file that was there"):
            await store.compact(2)
        assert await store.get("/kept") == kept
        assert await store.revision() == kept.revision
        await store.close()

    asyncio.run(scenario())


def test_a_database_behind_a_symbolic_link_is_opened_and_followed(tmp_path: Path) -> None:
    link, path, other = tmp_path / "mooring.db", tmp_path / "disk" / "mooring.db", tmp_path / "other.db"

    async def scenario() -> None:
        for one in (path, other):
            made = SqliteStorage(one, SystemClock())
            await made.open()
            await made.close()
        link.symlink_to("disk/mooring.db")
        store = SqliteStorage(link, SystemClock())
        await store.open()
        kept = await store.create("/kept", b"v")
        assert is_open(link)
        assert verify_file(link).records == 1
        link.unlink()
        link.symlink_to("other.db")
        with pytest.raises(StorageError, match=f"the file {link} was deleted, replaced or cut while it is open"):
            await store.create("/next", b"v")
        link.unlink()
        link.symlink_to("disk/mooring.db")
        await store.create("/next", b"v")
        assert await store.get("/kept") == kept
        await store.close()

    asyncio.run(scenario())


def test_a_database_that_is_moved_behind_a_link_while_it_is_open_is_noticed_because_its_log_stays(
    tmp_path: Path,
) -> None:
    path, moved = tmp_path / "mooring.db", tmp_path / "disk.db"

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        path.rename(moved)
        path.symlink_to(moved)
        with pytest.raises(StorageError, match="was deleted, replaced or cut while it is open"):
            await store.create("/lost", b"v")
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("change", [CHANGES["deleted"], CHANGES["moved away"]], ids=["deleted", "moved away"])
def test_a_database_whose_log_is_gone_is_not_opened_by_another_and_stays_whole(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "mooring.db"

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        for n in range(20):
            await store.create(f"/{n}", b"v" * 4096)
        change(Path(f"{path}-wal"))
        for _ in range(2):  # the first refusal leaves no empty log, with which the second would begin
            with pytest.raises(StorageError, match=r"mooring\.db-wal is missing beside"):
                await SqliteStorage(path, SystemClock()).open()
            with pytest.raises(StorageError, match="put it back"):
                is_open(path)
            with pytest.raises(StorageError, match="put it back"):
                verify_file(path)
        assert not Path(f"{path}-wal").exists()
        await store.close()
        assert not verify_file(path).damage
        again = SqliteStorage(path, SystemClock())
        await again.open()
        for n in range(20):
            entry = await again.get(f"/{n}")
            assert entry is not None
            assert entry.value == b"v" * 4096
        await again.close()

    asyncio.run(scenario())


def test_an_idle_server_notices_it_within_seconds_and_goes_on_when_the_file_is_back(tmp_path: Path) -> None:
    path = tmp_path / "mooring.db"

    async def scenario() -> None:
        clock = ManualClock()
        store = SqliteStorage(path, clock)
        await store.open()
        assert store.problem == ""
        path.rename(tmp_path / "aside")
        await clock.advance(LOOK_SECONDS)
        await settle()
        assert "was deleted, replaced or cut" in store.problem
        (tmp_path / "aside").rename(path)
        await clock.advance(LOOK_SECONDS)
        await settle()
        assert store.problem == ""
        await store.create("/a", b"v")
        await store.close()

    asyncio.run(scenario())


def test_the_log_of_the_database_that_took_the_place_survives_the_end_of_the_process(tmp_path: Path) -> None:
    """SQLite removes a write-ahead log by its path with the last connection, unless the database is in another place."""
    path = tmp_path / "mooring.db"
    program = """
import asyncio, os, sys
from pathlib import Path
from mooring.clock import SystemClock
from mooring.storage.sqlite.driver import SqliteStorage

async def main(path):
    store = SqliteStorage(path, SystemClock())
    await store.open()
    await store.create("/old", b"v")
    for suffix in ("", "-wal", "-shm"):
        os.unlink(f"{path}{suffix}")
    print(flush=True)
    sys.stdin.readline()
    await store.close()

asyncio.run(main(Path(sys.argv[1])))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()

        async def fill() -> None:
            store = SqliteStorage(path, SystemClock())
            await store.open()
            await store.create("/new", b"v")
            await asyncio.to_thread(process.communicate, b"\n", 30)
            assert process.returncode == 0
            assert Path(f"{path}-wal").exists()
            await store.create("/newer", b"v")
            assert store.problem == ""
            await store.close()

        asyncio.run(fill())
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT key FROM live ORDER BY key").fetchall() == [("/new",), ("/newer",)]
    connection.close()
