"""Disk failures, and callers that are cancelled (rules 2 and 9)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.errors import StorageError
from mooring.storage.contract import KeyExistsError, StoredChange
from mooring.storage.sqlite.connection import LogReader, LogWriter
from mooring.storage.sqlite.database import explain
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support.sqlitefile import nothing, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mooring.db"


async def anext_of(watch: AsyncIterator[tuple[StoredChange, ...]]) -> tuple[StoredChange, ...]:
    return await anext(watch)


def child(program: str, *arguments: str | Path) -> None:
    """Run an async `main(store, path)` in a process of its own, whose limits and user it may change."""
    head = (
        "import asyncio, os, resource, sys\nfrom pathlib import Path\nfrom mooring.clock import SystemClock\n"
        "from mooring.errors import StorageError\nfrom mooring.storage.sqlite.driver import SqliteStorage\n"
    )
    tail = "\npath = Path(sys.argv[1])\nasyncio.run(main(SqliteStorage(path, SystemClock()), path))\n"
    done = subprocess.run(
        [sys.executable, "-c", head + program + tail, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mounted], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small disk needs root")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


def test_a_full_disk_raises_reads_continue_and_writes_recover(small_disk: Path) -> None:
    async def scenario(store: SqliteStorage) -> None:
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 400_000)
        first = await store.create("/first", b"v")
        written = [first]
        value = b"recognisable" * 1000
        while len(written) < 100:
            try:
                written.append(await store.create(f"/fill/{len(written)}", value))
            except StorageError as error:
                full = error
                break
        assert type(full) is StorageError
        assert "mooring.db cannot be written: the disk is full; free some space and retry" in str(full)
        assert "recognisable" not in str(full)
        assert "/fill" not in str(full)
        revision = await store.revision()
        assert revision == written[-1].revision
        for entry in written:
            assert await store.get(entry.key) == entry
        assert len((await store.range("")).entries) == len(written)
        # A group of many fails as one, refusals among them included; none of it is seen.
        outcomes = await asyncio.gather(*(store.create(f"/more/{n}", value) for n in range(40)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {StorageError}
        assert await store.revision() == revision
        ballast.unlink()
        assert (await store.create("/after", value)).revision == revision + 1
        seen = 0
        async for batch in store.watch("", after=1):
            seen += len(batch)
            if batch[-1].revision == revision + 1:
                break
        assert seen == revision

    run(small_disk / "mooring.db", scenario)


def test_a_disk_that_is_full_already_is_reported_when_opening(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        file.writelines(b"x" * 4096 for _ in range(1000))
    with pytest.raises(StorageError, match="the disk is full"):
        run(small_disk / "mooring.db", nothing)
    ballast.unlink()
    run(small_disk / "mooring.db", nothing)


def test_a_file_size_limit_raises_and_writes_recover_when_it_is_lifted(path: Path) -> None:
    child(
        """
async def main(store, path):
    await store.open()
    await store.create("/first", b"v")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    count = 1
    try:
        for n in range(100):
            await store.create(f"/fill/{n}", b"x" * 10_000)
            count += 1
    except StorageError as error:
        assert "mooring.db cannot be read or written: the disk reports an error; check the disk, its quota" in str(error), error
    else:
        raise AssertionError("never full")
    assert len((await store.range("")).entries) == count
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.create("/after", b"v")
    assert await store.revision() == count + 2
    await store.close()
""",
        path,
    )


def test_a_read_only_file_is_refused_when_opening_and_usable_once_writable(tmp_path: Path) -> None:
    directory = Path("/var/tmp") if os.geteuid() == 0 else tmp_path  # pytest's own directories are for root alone
    child(
        """
import tempfile

async def main(store, path):
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    with tempfile.TemporaryDirectory(dir=path) as directory:
        path = Path(directory) / "mooring.db"
        store = SqliteStorage(path, SystemClock())
        await store.open()
        await store.create("/a", b"v")
        await store.close()
        path.chmod(0o400)
        try:
            await store.open()
        except StorageError as error:
            assert "mooring.db is read-only: make the file" in str(error), error
        else:
            raise AssertionError("opened")
        path.chmod(0o600)
        await store.open()
        assert (await store.get("/a")).value == b"v"
        await store.create("/b", b"v")
        await store.close()
""",
        directory,
    )


def test_a_file_that_becomes_read_only_raises_reads_continue_and_writes_recover(path: Path) -> None:
    async def scenario(store: SqliteStorage) -> None:
        entry = await store.create("/a", b"v")
        writer = await store._writer()
        writer._execute("PRAGMA query_only=ON")  # SQLite then answers as for a file it could open only for reading
        with pytest.raises(StorageError, match=r"mooring\.db is read-only: make the file, .* writable and retry"):
            await store.create("/b", b"v")
        assert await store.get("/a") == entry
        assert (await store.create("/b", b"v")).revision == entry.revision + 1

    run(path, scenario)


@pytest.mark.parametrize("method", ["apply", "commit", "try_begin"])
def test_a_group_fails_as_a_whole_and_the_next_one_succeeds(
    path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: SqliteStorage) -> None:
        await store.create("/taken", b"v")
        watched: list[int] = []

        async def follow() -> None:
            async for batch in store.watch("", after=2):
                watched.extend(change.revision for change in batch)

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)

        def fail(*arguments: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as broken:
            broken.setattr(f"mooring.storage.sqlite.connection.LogWriter.{method}", fail)
            outcomes = await asyncio.gather(
                *(store.create(key, b"v") for key in ("/1", "/taken", "/2")), return_exceptions=True
            )
        assert [type(outcome) for outcome in outcomes] == [StorageError] * 3
        assert len(set(map(id, outcomes))) == 3
        assert await store.revision() == 2
        outcomes = await asyncio.gather(
            *(store.create(key, b"v") for key in ("/1", "/taken", "/2")), return_exceptions=True
        )
        assert isinstance(outcomes[1], KeyExistsError)
        assert watched == [3, 4]
        following.cancel()

    run(path, scenario)


def test_a_failed_compaction_raises_and_can_be_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: SqliteStorage) -> None:
        await store.create("/a", b"v")

        def fail(*arguments: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as broken:
            broken.setattr("mooring.storage.sqlite.connection.LogWriter.commit", fail)
            with pytest.raises(StorageError):
                await store.compact(2)
        assert await store.compacted() == 1
        await store.compact(2)
        assert await store.compacted() == 2

    run(path, scenario)


def test_calls_cancelled_under_way_affect_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.sqlite.connection.SWEEP_REVISIONS", 2)

    async def scenario(store: SqliteStorage) -> None:
        for n in range(20):
            await store.create(f"/{n}", b"v")
        real = LogWriter.commit

        def giving_up(writer: LogWriter) -> None:
            loop.call_soon_threadsafe(task.cancel)
            real(writer)

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(LogWriter, "commit", giving_up)
        for call in (store.compact(15), store.create("/given-up", b"v"), store.compact(21), store.compact(99)):
            task: asyncio.Task[object] = asyncio.ensure_future(call)
            with pytest.raises((asyncio.CancelledError, StorageError)):
                await task
        given_up = await store.get("/given-up")  # whole, or absent when it was given up before it began
        assert given_up is None or (given_up.value, given_up.revision) == (b"v", 22)
        assert (await store.create("/kept", b"v")).revision == (22 if given_up is None else 23)

    run(path, scenario)


def test_closing_does_not_wait_for_a_long_compaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.sqlite.connection.SWEEP_REVISIONS", 1)

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        entry = await store.create("/a", b"v")
        for _ in range(200):
            entry = await store.update("/a", b"v", expected=entry.revision)
        compactions = [asyncio.create_task(store.compact(revision)) for revision in (150, 200)]
        await store.create("/b", b"v")
        await store.close()
        for compaction in compactions:
            with pytest.raises(StorageError, match="closed"):
                await compaction
        await store.open()
        assert await store.compacted() == 150
        await store.compact(150)
        await store.close()

    asyncio.run(scenario())
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT min(revision) FROM log").fetchone() == (150,)
    connection.close()


def test_a_failed_read_raises_and_the_next_one_succeeds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: SqliteStorage) -> None:
        entry = await store.create("/a", b"v")
        following = asyncio.create_task(anext_of(store.watch("", after=2)))

        met = 0

        def fail(*arguments: object) -> None:
            nonlocal met
            met += 1
            raise sqlite3.OperationalError("disk I/O error")

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "get": lambda: store.get("/a"),
            "_snapshot": lambda: store.range("/"),
            "newest": store.revision,
            "compacted": store.compacted,
            "changes": lambda: anext(store.watch("", after=1)),
        }
        for name, call in calls.items():
            with monkeypatch.context() as broken:
                broken.setattr(f"mooring.storage.sqlite.connection.LogReader.{name}", fail)
                met = 0
                while name == "newest" and not met:  # the poll meets it too, and survives
                    await asyncio.sleep(0.001)
                with pytest.raises(StorageError, match=r"mooring\.db"):
                    await call()
        assert await store.get("/a") == entry
        assert await anext(store.watch("", after=1))
        await store.create("/b", b"v")
        assert [change.key for change in await following] == ["/b"]

    run(path, scenario)


def test_a_disk_that_fails_at_any_read_of_an_open_is_reported_and_the_next_open_succeeds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read of the newest revision fails in turn: none of them is outside of the error handling, on the thread or the loop."""
    run(path, nothing)
    newest, failing, reads = LogReader.newest, 0, 0

    def read(reader: LogReader) -> int:
        nonlocal reads
        reads += 1
        if reads == failing:
            raise sqlite3.DatabaseError("disk I/O error")
        return newest(reader)

    async def open_with_each_read_failing() -> list[str]:
        nonlocal failing, reads
        failures: list[str] = []
        while True:
            failing, reads, store = len(failures) + 1, 0, SqliteStorage(path, SystemClock())
            try:
                await store.open()
            except StorageError as error:
                failures.append(str(error))
            else:
                await store.close()
                return failures

    monkeypatch.setattr(LogReader, "newest", read)
    failures = asyncio.run(open_with_each_read_failing())
    assert failures
    assert all("mooring.db" in failure for failure in failures)


def test_an_unknown_failure_still_names_the_file() -> None:
    assert (
        str(explain(sqlite3.Error("near /secret/key"), Path("/x/mooring.db")))
        == "the database file /x/mooring.db failed (Error)"
    )
