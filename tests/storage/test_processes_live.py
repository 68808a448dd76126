"""Several processes on one SQLite file (rules 1, 4, 6 and 7 of the contract)."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.errors import StorageError
from mooring.storage.contract import CompactedError, StoredChange
from mooring.storage.sqlite.connection import LogReader, LogWriter
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support import storageprocess

PROGRAM = storageprocess.__file__


def start(*arguments: str | int | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output.splitlines()


async def collect(store: SqliteStorage, count: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    async for batch in store.watch("", after=1):
        found += [(change.revision, change.key) for change in batch]
        if len(found) >= count:
            break
    return found


@pytest.mark.parametrize("concurrency", [1, 16])
def test_writers_in_three_processes_get_one_order_in_every_watch(tmp_path: Path, concurrency: int) -> None:
    path = tmp_path / "mooring.db"
    each = 400
    total = 3 * each
    follower = start("follow", path, total)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "watching\n"

    async def here() -> tuple[list[tuple[int, str]], list[tuple[int, str]], list[list[str]]]:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        watching = asyncio.create_task(collect(store, total))
        await asyncio.sleep(0)
        others = [start("write", path, name, each, concurrency) for name in ("p", "q")]
        numbers = iter(range(each))
        mine: list[tuple[int, str]] = []

        async def write() -> None:
            for n in numbers:
                entry = await store.create(f"/own/{n}", b"v")
                mine.append((entry.revision, entry.key))

        await asyncio.gather(*(write() for _ in range(concurrency)))
        theirs = [await asyncio.to_thread(finish, process) for process in others]
        assert await store.revision() == total + 1
        assert len((await store.range("")).entries) == total
        told = await asyncio.wait_for(watching, 30)
        late = await asyncio.wait_for(collect(store, total), 30)
        assert late == told
        await store.close()
        return told, mine, theirs

    told, mine, theirs = asyncio.run(here())
    assert [revision for revision, _ in told] == list(range(2, total + 2))
    acknowledged = dict(mine)
    for name, lines in zip("pq", theirs, strict=True):
        for line in lines:
            n, revision = line.split()
            acknowledged[int(revision)] = f"/{name}/{n}"
    assert dict(told) == acknowledged
    assert [tuple(line.split()) for line in finish(follower)] == [(str(revision), key) for revision, key in told]


def test_compare_and_swap_holds_across_processes(tmp_path: Path) -> None:
    path = tmp_path / "mooring.db"
    for process in [start("contend", path, 100) for _ in range(3)]:
        finish(process)

    async def check() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        counter = await store.get("/counter")
        assert counter is not None
        assert (counter.value, counter.revision) == (b"300", 301)
        await store.close()

    asyncio.run(check())


async def following(watch: AsyncIterator[tuple[StoredChange, ...]]) -> tuple[StoredChange, ...]:
    return await anext(watch)


def pair(path: Path) -> tuple[SqliteStorage, SqliteStorage]:
    """Two stores on one file: to SQLite as foreign to one another as two processes, to a test easier to interleave."""
    return SqliteStorage(path, SystemClock()), SqliteStorage(path, SystemClock())


def test_what_one_acknowledged_the_other_sees_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, other = pair(tmp_path / "mooring.db")
        await asyncio.gather(one.open(), other.open())
        for n in range(100):
            writer, reader = (one, other) if n % 2 else (other, one)
            entry = await writer.create(f"/{n}", b"v")
            assert await reader.revision() == entry.revision
            assert await reader.get(entry.key) == entry
            assert (await reader.range(entry.key)).entries == (entry,)
            assert (await reader.update(entry.key, b"w", expected=entry.revision)).revision == entry.revision + 1
        await one.close()
        await other.close()

    asyncio.run(scenario())


def test_the_file_is_looked_at_once_in_a_turn_and_again_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    newest = LogReader.newest

    def counted(reader: LogReader) -> int:
        nonlocal looks
        looks += 1
        return newest(reader)

    async def asked(store: SqliteStorage) -> tuple[int, int]:
        before = looks
        return await store.revision(), looks - before

    async def scenario() -> None:
        one, other = pair(tmp_path / "mooring.db")
        await asyncio.gather(one.open(), other.open())
        revision = (await one.create("/a", b"v")).revision
        monkeypatch.setattr(LogReader, "newest", counted)
        for _ in range(2):
            tasks = [asyncio.create_task(asked(other)) for _ in range(3)]
            assert await asyncio.gather(*tasks) == [(revision, 1), (revision, 0), (revision, 0)]
        await other.close()
        with pytest.raises(StorageError):
            await other.revision()
        await one.close()

    asyncio.run(scenario())


def test_looking_at_the_revision_hurries_the_watch_along(tmp_path: Path) -> None:
    class Frozen(SystemClock):
        """No poll ever comes round."""

        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()

    async def scenario() -> None:
        path = tmp_path / "mooring.db"
        store, other = SqliteStorage(path, Frozen()), SqliteStorage(path, SystemClock())
        await store.open()
        await other.open()
        for count in (1, 10, 500):  # read on the loop thread, and left to the watch itself
            watch = store.watch("", after=await store.revision())
            waiting = asyncio.create_task(following(watch))
            await asyncio.sleep(0)
            await asyncio.gather(*(other.create(f"/{count}/{n}", b"") for n in range(count)))
            await asyncio.sleep(0)
            assert not waiting.done()
            await store.revision()
            told = [change.key for change in await asyncio.wait_for(waiting, 10)]
            while len(told) < count:
                told += [change.key for change in await asyncio.wait_for(anext(watch), 10)]
            assert told == [f"/{count}/{n}" for n in range(count)]
        await store.close()
        await other.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("foreign", [1, 30, 500], ids=lambda n: f"{n} foreign writes between own ones")
def test_own_and_foreign_writes_interleave_in_revision_order(tmp_path: Path, foreign: int) -> None:
    async def scenario() -> None:
        store, other = pair(tmp_path / "mooring.db")
        await store.open()
        await other.open()
        rounds = 5
        total = rounds * (foreign + 1)
        watching = asyncio.create_task(collect(store, total))
        await asyncio.sleep(0)
        for n in range(rounds):
            await store.create(f"/own/{n}", b"")
            await asyncio.gather(*(other.create(f"/foreign/{n}/{m}", b"") for m in range(foreign)))
        told = await asyncio.wait_for(watching, 20)
        assert [revision for revision, _ in told] == list(range(2, total + 2))
        await store.close()
        await other.close()

    asyncio.run(scenario())


def test_a_watch_raises_when_another_process_compacted_its_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, other = pair(tmp_path / "mooring.db")
        await store.open()
        await other.open()
        watching = asyncio.create_task(collect(store, 1000))
        await asyncio.sleep(0)
        # No await of ours in between long enough for a poll is promised, so compact far ahead of what was told.
        for n in range(20):
            await other.create(f"/{n}", b"")
        await other.compact(await other.revision())
        late = asyncio.create_task(collect(store, 1000))
        with pytest.raises(CompactedError):
            await asyncio.wait_for(late, 10)
        watching.cancel()
        await store.close()
        await other.close()

    asyncio.run(scenario())


def test_writes_that_come_while_another_process_writes_share_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        path = tmp_path / "mooring.db"
        store = SqliteStorage(path, SystemClock())
        await store.open()
        tried = asyncio.Event()
        try_begin, commit = LogWriter.try_begin, LogWriter.commit
        commits = 0

        def trying(writer: LogWriter) -> bool:
            tried.set()
            return try_begin(writer)

        def counting(writer: LogWriter) -> None:
            nonlocal commits
            commits += 1
            commit(writer)

        monkeypatch.setattr(LogWriter, "try_begin", trying)
        monkeypatch.setattr(LogWriter, "commit", counting)
        with sqlite3.connect(path, isolation_level=None) as holder:
            holder.execute("BEGIN IMMEDIATE")
            first = asyncio.ensure_future(store.create("/a", b""))
            await tried.wait()
            second = asyncio.ensure_future(store.create("/b", b""))
            holder.execute("ROLLBACK")
        holder.close()
        assert [(await write).revision for write in (first, second)] == [2, 3]
        assert commits == 1
        await store.close()

    asyncio.run(scenario())


def test_a_lock_held_too_long_raises_and_the_next_write_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        path = tmp_path / "mooring.db"
        store = SqliteStorage(path, SystemClock())
        await store.open()
        monkeypatch.setattr("mooring.storage.sqlite.database.BUSY_SECONDS", 0.01)
        with sqlite3.connect(path, isolation_level=None) as holder:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageError, match=r"mooring\.db is locked by another process"):
                await store.create("/a", b"")
            with pytest.raises(StorageError, match="locked"):
                await store.compact(1)
            assert await store.get("/a") is None
            holder.execute("ROLLBACK")
        holder.close()
        assert (await store.create("/a", b"")).revision == 2
        await store.close()

    asyncio.run(scenario())
