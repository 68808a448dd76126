"""A snapshot is read back before it takes its name, and has no key that Mooring writes into none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.controlplane.snapshots import entries, save, verify
from mooring.settings.storage import StorageSettings
from mooring.storage.contract import Entry
from mooring.storage.copying import copy
from mooring.storage.drivers import open_storage
from mooring.storage.memory import MemoryStorage
from mooring.storage.snapshot import Header, SnapshotEncoder, SnapshotError


def flip(descriptor: int) -> None:
    place = os.fstat(descriptor).st_size // 2
    os.pwrite(descriptor, bytes([os.pread(descriptor, 1, place)[0] ^ 1]), place)


def cut(descriptor: int) -> None:
    os.ftruncate(descriptor, os.fstat(descriptor).st_size - 1)


DAMAGES: dict[str, Callable[[int], None]] = {"a flipped bit": flip, "a cut end": cut}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_snapshot_that_was_damaged_on_its_way_takes_no_others_place(
    tmp_path: Path, damage: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.snapshot"

    async def scenario() -> None:
        store = MemoryStorage()
        await store.open()
        await store.create("/registry/configmaps/default/a", b"x" * 1000)
        good = await save(store, path, SystemClock(), compressed=True)
        await store.create("/registry/configmaps/default/b", b"x" * 1000)
        real = os.fsync

        def damaging(descriptor: int) -> None:
            damage(descriptor)
            real(descriptor)

        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", damaging)
            with pytest.raises(SnapshotError):
                await save(store, path, SystemClock(), compressed=True)
        assert verify(path) == good
        assert [file.name for file in tmp_path.iterdir()] == ["one.snapshot"]
        assert (await save(store, path, SystemClock(), compressed=True)).entries == 2
        await store.close()

    asyncio.run(scenario())


def written(path: Path, *keys: str) -> Path:
    """Write a snapshot with right digests and any keys."""
    encoder = SnapshotEncoder(Header(9, "2026-01-02T03:04:05Z"))
    path.write_bytes(encoder.begin() + encoder.frame([Entry(key, b"{}", 3, 3) for key in keys]) + encoder.end()[0])
    return path


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("/mooring/incomplete", id="the mark of a copy"),
        pytest.param("/mooring/revision-offset/registry", id="the offset of another etcd"),
        pytest.param("/other/a", id="a key of another program"),
    ],
)
def test_a_key_that_mooring_writes_into_no_snapshot_is_refused_before_anything_is_restored(
    key: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "one.snapshot", key)
    with pytest.raises(SnapshotError, match="has a key that Mooring writes into none"):
        verify(path)
    with pytest.raises(SnapshotError, match="has a key that Mooring writes into none"):
        asyncio.run(all_entries(path))


def test_a_key_with_nul_is_restored_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path / "one.snapshot", "/registry/configmaps/default/a", "/registry/configmaps/default/a\0")
    assert verify(path).entries == 2

    async def scenario() -> None:
        store = open_storage(f"sqlite:{tmp_path / 'store.db'}", SystemClock(), settings=StorageSettings())
        await store.open()
        copied = await copy(
            lambda: entries(path), store, floor=9, command="snapshot restore", identity="one", report=lambda *_: None
        )
        assert copied.entries == 2
        found = [entry.key for entry in (await store.range("/registry/")).entries]
        assert found == ["/registry/configmaps/default/a", "/registry/configmaps/default/a\0"]
        await store.close()

    asyncio.run(scenario())


async def all_entries(path: Path) -> int:
    """Read all entries of a snapshot, and return their number."""
    return sum([len(part) async for part in entries(path)])
