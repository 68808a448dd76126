"""Counts by which a server knows whether the store has what it remembers."""

from __future__ import annotations

import asyncio

import pytest

from mooring.errors import StorageError
from mooring.storage.contract import Entry, RevisionMismatchError
from mooring.storage.keyspace import SERVER_EPOCHS
from mooring.storage.memory import MemoryStorage
from mooring.storage.restores import add_epoch, read_epoch


def test_each_server_has_a_count_that_only_grows() -> None:
    async def scenario() -> None:
        storage = MemoryStorage()
        await storage.open()
        assert await read_epoch(storage, "a") == 0
        assert (await add_epoch(storage, "a", 0))[0] == 1
        assert await add_epoch(storage, "a", 0) == (2, await storage.revision()), "a copy of the server has counted"
        assert (await add_epoch(storage, "a", 7))[0] == 8
        assert [await read_epoch(storage, name) for name in ("a", "b")] == [8, 0]

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [b"", b"-1", b"x", b"9" * 20, b"\xff"], ids=str)
def test_a_count_that_cannot_be_read_is_none_and_is_written_again(value: bytes) -> None:
    async def scenario() -> None:
        storage = MemoryStorage()
        await storage.open()
        await storage.create(f"{SERVER_EPOCHS}a", value)
        assert await read_epoch(storage, "a") == 0
        assert (await add_epoch(storage, "a", 3))[0] == 4
        assert await read_epoch(storage, "a") == 4

    asyncio.run(scenario())


def test_a_key_that_changes_all_the_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: MemoryStorage, key: str, value: bytes, **options: int) -> Entry:
        raise RevisionMismatchError(None)

    async def scenario() -> None:
        storage = MemoryStorage()
        await storage.open()
        await storage.create(f"{SERVER_EPOCHS}a", b"1")
        monkeypatch.setattr(MemoryStorage, "update", refused)
        with pytest.raises(StorageError, match="writes to the store all the time"):
            await add_epoch(storage, "a", 0)

    asyncio.run(scenario())
