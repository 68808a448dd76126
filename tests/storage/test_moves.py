"""Moves between the drivers with files or servers: everything arrives, and a move back gives what was there before."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.controlplane.snapshots import entries, save
from mooring.errors import ConfigError
from mooring.storage.contract import CompactedError, Storage, StoredChange
from mooring.storage.copying import Copied, copy, migrate, refuse_incomplete
from mooring.storage.keyspace import pages
from tests.support import etcd, forkserver
from tests.support.storagedrivers import MAKERS, closing, open_etcd, take

KEYS = [f"/registry/configmaps/default/{n:04}" for n in range(300)] + [
    "/mooring/bootstrap/keys",
    "/registry/events/default/a",
    "/registry/secrets/kube-system/é",
]
PATHS = [("sqlite", "etcd", "sqlite"), ("etcd", "sqlite", "etcd"), ("etcd", "etcd", "etcd")]


@asynccontextmanager
async def opened(driver: str, directory: Path) -> AsyncIterator[Storage]:
    directory.mkdir()
    store = MAKERS[driver](directory)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def move(source: Storage, target: Storage) -> Copied:
    return await migrate(
        source, target, SystemClock(), quiet_seconds=0.0, identity="one", report=lambda phase, done: None
    )


async def content(store: Storage) -> dict[str, bytes]:
    return {entry.key: entry.value async for page in pages(store) for entry in page}


async def least(store: Storage) -> int:
    return min([entry.revision async for page in pages(store) for entry in page])


@pytest.mark.parametrize("path", PATHS, ids=" to ".join)
def test_a_move_and_a_move_back_give_the_same(tmp_path: Path, path: tuple[str, str, str]) -> None:
    async def scenario() -> None:
        async with (
            opened(path[0], tmp_path / "0") as first,
            opened(path[1], tmp_path / "1") as second,
            opened(path[2], tmp_path / "2") as third,
        ):
            await asyncio.gather(*(first.create(key, key.encode() * 5) for key in KEYS))
            newest = await first.revision()
            there = await move(first, second)
            assert await least(second) > newest
            async with closing(second.watch("/registry/", after=newest)) as watch:
                with pytest.raises(CompactedError):
                    await take(watch, 1)
            with pytest.raises(ConfigError, match="the target is not empty"):
                await move(first, second)
            created = await second.create("/registry/later", b"")
            async with closing(second.watch("/registry/later", after=created.revision - 1)) as watch:
                assert [change.revision async for change in _first(watch)] == [created.revision]
            await second.delete("/registry/later", expected=created.revision)
            newest = await second.revision()
            back = await move(second, third)
            assert await least(third) > newest
            assert (there.digest, there.entries) == (back.digest, back.entries)
            assert await content(first) == await content(second) == await content(third)

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def _first(watch: AsyncIterator[tuple[StoredChange, ...]]) -> AsyncIterator[StoredChange]:
    """Yield the first change that is no notification of progress."""
    async for batch in watch:
        for change in batch:
            if not change.is_progress:
                yield change
                return


def test_a_snapshot_of_one_driver_is_restored_into_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened("etcd", tmp_path / "0") as first, opened("sqlite", tmp_path / "1") as second:
            await asyncio.gather(*(first.create(key, key.encode() * 5) for key in KEYS))
            file = tmp_path / "a.snapshot"
            summary = await save(first, file, SystemClock(), compressed=True)
            floor = summary.header.revision + 1000
            copied = await copy(
                lambda: entries(file), second, floor=floor, command="snapshot restore", identity="one",
                report=lambda phase, done: None,
            )  # fmt: skip
            assert copied.entries == summary.entries == len(KEYS)
            assert await content(first) == await content(second)
            assert await least(second) > floor

    asyncio.run(asyncio.wait_for(scenario(), 60))


DYING = """
import os, signal, sys

left = int(sys.argv.pop(1))

from mooring.storage.etcd.driver import EtcdStorage

def counted(function):
    async def call(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await function(*args, **kwargs)
    return call

for name in ("create", "update", "delete", "advance", "compact"):
    setattr(EtcdStorage, name, counted(getattr(EtcdStorage, name)))

from mooring.cli.main import main
main()
"""
"""`mooring` that dies just before its n-th write to etcd."""


@pytest.mark.crash
@pytest.mark.skipif(bool(etcd.MISSING), reason="etcd is not installed")
def test_a_move_to_etcd_that_is_killed_is_completed(tmp_path: Path) -> None:
    async def fill() -> dict[str, bytes]:
        async with opened("sqlite", tmp_path / "source") as source:
            await asyncio.gather(*(source.create(key, key.encode() * 5) for key in KEYS))
            return await content(source)

    async def found(prefix: str, *, complete: bool) -> dict[str, bytes]:
        store = open_etcd(etcd.shared(), prefix)
        await store.open()
        try:
            if not complete:
                with pytest.raises(ConfigError, match="the store is incomplete"):
                    await refuse_incomplete(store)
                return {}
            await refuse_incomplete(store)
            return await content(store)
        finally:
            await store.close()

    wanted = asyncio.run(fill())
    url = f"etcd:{etcd.shared().endpoints}"
    for n in (2, 3, 4, 150, len(KEYS) + 4):  # the first write is the mark, the last one its removal
        prefix = etcd.fresh_prefix()
        arguments = [
            "datastore", "migrate", f"sqlite:{tmp_path}/source/mooring.db", url, "--etcd-prefix", prefix
        ]  # fmt: skip
        killed = forkserver.run(["-c", DYING, str(n), *arguments])
        assert killed.returncode == -signal.SIGKILL, f"{n}: {killed.stderr.decode()}"
        asyncio.run(found(prefix, complete=False))
        completed: subprocess.CompletedProcess[bytes] = forkserver.run(["-m", "mooring", *arguments])
        assert completed.returncode == 0, completed.stderr
        assert asyncio.run(found(prefix, complete=True)) == wanted
