"""A snapshot is read back before it takes its name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.plane.snapshots.file import save, verify
from mooring.storage.memory import MemoryStorage
from mooring.storage.snapshot.format import SnapshotError


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
