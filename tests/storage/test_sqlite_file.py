"""The SQLite file itself: who may read it, whose it is, and what happens when the disk fails (rules 2 and 9)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.errors import StorageError
from mooring.storage import sqlite_schema
from mooring.storage.contract import Change, KeyExistsError
from mooring.storage.sqlite import SqliteStorage
from mooring.storage.sqlite_schema import explain
from mooring.storage.sqlite_write import Writer

Scenario = Callable[[SqliteStorage], Awaitable[None]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mooring.db"


def run(path: Path, scenario: Scenario) -> None:
    async def whole() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        try:
            await asyncio.wait_for(scenario(store), 30)
        finally:
            await store.close()

    asyncio.run(whole())


async def anext_of(watch: AsyncIterator[tuple[Change, ...]]) -> tuple[Change, ...]:
    return await anext(watch)


async def nothing(store: SqliteStorage) -> None:
    """Only open and close."""


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
    with pytest.raises(StorageError, match=r"mooring\.db cannot be opened: check that its directory exists"):
        run(path, nothing)


# ---- whose it is


def test_commits_are_synchronous_and_what_is_forgotten_is_overwritten(path: Path) -> None:
    sqlite_schema.create_file(path)
    connection = sqlite_schema.connect(path, read_only=False)
    sqlite_schema.prepare(connection, path)
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
    before = change_by_hand(path, f"PRAGMA user_version={len(sqlite_schema.MIGRATIONS) + 1}")
    with pytest.raises(
        StorageError, match=r"written by a newer Mooring \(schema 2, this one knows 1\): run that version"
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
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(store: SqliteStorage) -> None:
        await store.create("/a", b"kept")

    async def look(store: SqliteStorage) -> None:
        entry = await store.get("/a")
        assert entry is not None
        assert entry.value == b"kept"

    run(path, fill)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", (*sqlite_schema.MIGRATIONS, ("CREATE TABLE added (x)",)))
    run(path, look)
    run(path, look)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM added").fetchone() == (0,)
    connection.close()


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, nothing)
    with monkeypatch.context() as broken:
        broken.setattr(sqlite_schema, "MIGRATIONS", (*sqlite_schema.MIGRATIONS, ("CREATE TABLE added (x)", "NONSENSE")))
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
def test_a_damaged_file_is_told_when_it_is_opened(path: Path, damage: Callable[[bytes], bytes]) -> None:
    async def fill(store: SqliteStorage) -> None:
        await asyncio.gather(*(store.create(f"/{n}", b"x" * 1000) for n in range(100)))

    run(path, fill)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        StorageError, match=r"mooring\.db is damaged or not an SQLite database: restore it from a backup"
    ):
        run(path, nothing)


def test_a_file_system_that_cannot_share_memory_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_schema, "_use_wal", lambda connection: False)
    with pytest.raises(StorageError, match="put it on a local disk"):
        run(path, nothing)


def test_many_processes_may_make_the_file_at_once(path: Path) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path; from mooring.clock import SystemClock\n"
        "from mooring.storage.sqlite import SqliteStorage\n"
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


# ---- when the disk fails


def child(program: str, *arguments: str | Path) -> None:
    """Run an async `main(store, path)` in a process of its own, whose limits and user it may change."""
    head = (
        "import asyncio, os, resource, sys\nfrom pathlib import Path\nfrom mooring.clock import SystemClock\n"
        "from mooring.errors import StorageError\nfrom mooring.storage.sqlite import SqliteStorage\n"
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


def test_a_full_disk_is_told_reads_go_on_and_writes_recover(small_disk: Path) -> None:
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


def test_a_disk_full_from_the_start_is_told_when_opening(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        file.writelines(b"x" * 4096 for _ in range(1000))
    with pytest.raises(StorageError, match="the disk is full"):
        run(small_disk / "mooring.db", nothing)
    ballast.unlink()
    run(small_disk / "mooring.db", nothing)


def test_a_file_size_limit_is_told_and_writes_recover_when_it_is_lifted(path: Path) -> None:
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


def test_a_read_only_file_is_told_when_opening_and_usable_once_writable(tmp_path: Path) -> None:
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


def test_a_file_that_turns_read_only_is_told_reads_go_on_and_writes_recover(path: Path) -> None:
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
def test_a_group_that_fails_fails_whole_and_the_next_one_succeeds(
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
            broken.setattr(f"mooring.storage.sqlite_write.Writer.{method}", fail)
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


def test_a_compaction_that_fails_is_told_and_can_be_asked_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: SqliteStorage) -> None:
        await store.create("/a", b"v")

        def fail(*arguments: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as broken:
            broken.setattr("mooring.storage.sqlite_write.Writer.commit", fail)
            with pytest.raises(StorageError):
                await store.compact(2)
        assert await store.compacted() == 1
        await store.compact(2)
        assert await store.compacted() == 2

    run(path, scenario)


def test_callers_who_gave_up_while_their_call_was_under_way_harm_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooring.storage.sqlite_write.SWEEP_REVISIONS", 2)

    async def scenario(store: SqliteStorage) -> None:
        for n in range(20):
            await store.create(f"/{n}", b"v")
        real = Writer.commit

        def giving_up(writer: Writer) -> None:
            loop.call_soon_threadsafe(task.cancel)
            real(writer)

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(Writer, "commit", giving_up)
        for call in (store.compact(15), store.create("/given-up", b"v"), store.compact(21), store.compact(99)):
            task: asyncio.Task[object] = asyncio.ensure_future(call)
            with pytest.raises((asyncio.CancelledError, StorageError)):
                await task
        assert (await store.create("/kept", b"v")).revision == 23

    run(path, scenario)


def test_closing_does_not_wait_for_a_long_compaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.sqlite_write.SWEEP_REVISIONS", 1)

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


def test_a_read_that_fails_is_told_and_the_next_one_succeeds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: SqliteStorage) -> None:
        entry = await store.create("/a", b"v")
        following = asyncio.create_task(anext_of(store.watch("", after=2)))

        def fail(*arguments: object) -> None:
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
                broken.setattr(f"mooring.storage.sqlite_read.Reader.{name}", fail)
                await asyncio.sleep(0.03)  # the poll meets it too, and survives
                with pytest.raises(StorageError, match=r"mooring\.db"):
                    await call()
        assert await store.get("/a") == entry
        assert await anext(store.watch("", after=1))
        await store.create("/b", b"v")
        assert [change.key for change in await following] == ["/b"]

    run(path, scenario)


def test_more_waiting_writes_than_the_limit_are_refused_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.sqlite.WAITING_WRITES", 10)

    async def scenario(store: SqliteStorage) -> None:
        outcomes = await asyncio.gather(*(store.create(f"/{n}", b"") for n in range(15)), return_exceptions=True)
        assert [isinstance(outcome, StorageError) for outcome in outcomes] == [False] * 10 + [True] * 5
        assert "10 writes wait for the disk" in str(outcomes[-1])

    run(path, scenario)


def test_large_values_are_spread_over_several_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.sqlite.GROUP_BYTES", 1000)

    async def scenario(store: SqliteStorage) -> None:
        commits = 0
        taken = store._take_group

        def counting() -> list[object]:
            nonlocal commits
            commits += 1
            return list(taken())

        monkeypatch.setattr(store, "_take_group", counting)
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
        real = Writer.commit

        def slow(writer: Writer) -> None:
            time.sleep(0.02)
            real(writer)

        monkeypatch.setattr(Writer, "commit", slow)
        await store.create("/slow", b"")
        assert turns > 1
        working.cancel()

    run(path, scenario)


def test_sixteen_writers_share_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = 0

    async def scenario(store: SqliteStorage) -> None:
        real = Writer.commit

        def counting(self: Writer) -> None:
            nonlocal commits
            commits += 1
            real(self)

        monkeypatch.setattr(Writer, "commit", counting)

        async def writer(name: int) -> None:
            for n in range(20):
                await store.create(f"/{name}/{n}", b"")

        await asyncio.gather(*(writer(name) for name in range(16)))
        assert commits <= 40

    run(path, scenario)


def test_an_unknown_failure_still_names_the_file() -> None:
    assert (
        str(explain(sqlite3.Error("near /secret/key"), Path("/x/mooring.db")))
        == "the database file /x/mooring.db failed (Error)"
    )
