"""The file `store.head`: a store that was restored from an older copy while the server was stopped."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.errors import StorageError
from mooring.plane.background.storehead import JUMP, PAUSE, TRIES, StoreHead, continue_beyond, read_head
from mooring.plane.configuration import server_config
from mooring.plane.registry import open_registry
from mooring.storage.contract import CompactedError
from mooring.storage.memory import MemoryStorage
from tests.support import etcd
from tests.support.manualclock import ManualClock, settle
from tests.support.registryroom import counting_entropy
from tests.support.storagedrivers import open_etcd


@pytest.mark.parametrize(
    ("content", "revision"),
    [
        pytest.param(None, 0, id="there is none"),
        pytest.param(b"7\n", 7, id="a revision"),
        pytest.param(b"", 0, id="an empty one is damaged"),
        pytest.param(b"\xff\n", 0, id="bytes that are no text are damage"),
        pytest.param("\u0667\n".encode(), 0, id="other digits are damage"),
        pytest.param(b"-7", 0, id="a negative number is damage"),
        pytest.param(b"9" * 19, 0, id="a number that no store reaches is damage"),
        pytest.param(b"9" * 10_000, 0, id="so is one that Python would not convert"),
    ],
)
def test_the_file_of_a_server(
    tmp_path: Path, content: bytes | None, revision: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.head"
    if content is not None:
        path.write_bytes(content)
    assert read_head(path) == revision
    assert ("damaged" in caplog.text) is (content is not None and not revision)


def test_the_file_is_written_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    path, revision, clock = tmp_path / "store.head", [3], ManualClock()

    async def pass_time() -> None:
        await clock.advance(PAUSE)
        async with asyncio.timeout(30):
            while read_head(path) != revision[0]:
                await asyncio.sleep(0.001)

    async def scenario() -> None:
        async with StoreHead(path, lambda: revision[0], clock).kept():
            assert read_head(path) == 3
            revision[0] = 5
            await settle()
            assert read_head(path) == 3
            await pass_time()
            revision[0] = 8
        assert read_head(path) == 8
        path.write_text("20\n")  # another worker
        StoreHead(path, lambda: 9, clock).write()
        assert read_head(path) == 20

    asyncio.run(scenario())
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_directory_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    revision = [1]
    head = StoreHead(tmp_path / "missing" / "store.head", lambda: revision[0], SystemClock())
    for revision[0] in (1, 2):
        head.write()
    assert caplog.text.count("will not be noticed") == 1


async def store_at(revision: int) -> MemoryStorage:
    storage = MemoryStorage()
    await storage.open()
    await storage.advance(revision)
    return storage


@pytest.mark.parametrize(
    ("seen", "store", "after"),
    [
        pytest.param(0, 5, 5, id="without a file it stays"),
        pytest.param(5, 5, 5, id="the same revision is no older copy"),
        pytest.param(5, 9, 9, id="nor is a newer one, which another server wrote"),
        pytest.param(9, 5, 9 + JUMP, id="an older one goes on beyond"),
    ],
)
def test_the_revisions_of_a_store_at_the_start(tmp_path: Path, seen: int, store: int, after: int) -> None:
    path = tmp_path / "store.head"
    if seen:
        path.write_text(f"{seen}\n")

    async def scenario() -> None:
        storage = await store_at(store)
        await continue_beyond(storage, path)
        assert await storage.revision() == after
        if after > store:
            with pytest.raises(CompactedError):
                await anext(aiter(storage.watch("/", after=seen)))

    asyncio.run(scenario())


def test_of_two_servers_that_start_at_once_one_advances_and_a_store_that_does_not_is_told(tmp_path: Path) -> None:
    path = tmp_path / "store.head"
    path.write_text("9\n")

    async def start(advances: Callable[[MemoryStorage], bool]) -> int:
        storage, calls = await store_at(5), 0
        advance = storage.advance

        async def refused(revision: int) -> None:
            nonlocal calls
            calls += 1
            if advances(storage):
                await advance(100)  # the other server
            raise StorageError("advanced by another process meanwhile")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage, "advance", refused)
            await continue_beyond(storage, path)
        return calls

    assert asyncio.run(start(lambda storage: True)) == 1
    with pytest.raises(StorageError, match="another process"):
        asyncio.run(start(lambda storage: False))
    assert TRIES > 1


def test_a_database_file_that_was_replaced_by_an_older_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database, copy = tmp_path / "mooring.db", tmp_path / "copy.db"
    config = server_config(data_dir=str(tmp_path), storage=f"sqlite:{database}")

    async def serve() -> int:
        async with open_registry(config, SystemClock(), counting_entropy()) as parts:
            await parts.storage.create("/registry/secrets/default/a", b"{}")
            await parts.registry.fresh()
            return parts.registry.revision

    before = asyncio.run(serve())
    shutil.copy(database, copy)

    async def write_more() -> int:
        async with open_registry(config, SystemClock(), counting_entropy()) as parts:
            for n in range(3):
                await parts.storage.create(f"/registry/secrets/default/{n}", b"{}")
            await parts.registry.fresh()
            return parts.registry.revision

    seen = asyncio.run(write_more())
    assert seen > before
    assert "restored from an older copy" not in caplog.text
    for file in tmp_path.glob("mooring.db*"):
        file.unlink()
    shutil.copy(copy, database)

    async def restart() -> int:
        async with open_registry(config, SystemClock(), counting_entropy()) as parts:
            return parts.registry.revision

    assert asyncio.run(restart()) == seen + JUMP
    assert f"the store is at revision {before}, and this server has seen revision {seen}" in caplog.text


@pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING or "etcd is installed")
def test_an_etcd_that_was_restored_while_every_server_was_stopped(tmp_path: Path) -> None:
    """Test with a member that is stopped, loses its newest writes to a restore, and is started; a second server is up already."""
    path, snapshot = tmp_path / "store.head", tmp_path / "snapshot"

    async def write(count: int) -> int:
        storage = open_etcd(cluster, "/registry")
        await storage.open()
        for n in range(count):
            await storage.create(f"/{count}/{n}", b"")
        revision = await storage.revision()
        await storage.close()
        return revision

    async def start() -> None:
        running, starting = open_etcd(cluster, "/registry"), open_etcd(cluster, "/registry")
        await running.open()
        await starting.open()
        await continue_beyond(starting, path)
        assert await running.revision() > seen + JUMP, "every request asks for it"
        entry = await running.create("/later", b"")
        assert entry.revision > seen + JUMP
        assert (await starting.range("/")).revision >= entry.revision
        await running.close()
        await starting.close()

    (tmp_path / "etcd").mkdir()
    with etcd.running(tmp_path / "etcd") as cluster:
        (member,) = cluster.members
        asyncio.run(write(2))
        cluster.control("snapshot", "save", str(snapshot))
        seen = asyncio.run(write(20))
        StoreHead(path, lambda: seen, SystemClock()).write()
        member.kill()
        shutil.rmtree(member.data)
        cluster.restore(member, snapshot)
        member.start()
        cluster.await_healthy()
        asyncio.run(start())
