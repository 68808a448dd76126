"""Records of restores inside a store."""

from __future__ import annotations

import asyncio

import pytest

from mooring.errors import StorageError
from mooring.storage.keyspace import RESTORES
from mooring.storage.memory import MemoryStorage
from mooring.storage.restores import MAX_RECORDS, Restore, read_restores, record_restore


@pytest.mark.parametrize(
    ("revision", "is_lost"),
    [
        pytest.param(4, False, id="seen before the copy was made"),
        pytest.param(5, False, id="the copy itself"),
        pytest.param(6, True, id="after the copy"),
        pytest.param(100, True, id="up to the floor"),
        pytest.param(101, False, id="written since the restore"),
    ],
)
def test_a_state_that_was_seen_on_the_copy_that_is_gone(revision: int, is_lost: bool) -> None:
    assert Restore(5, 100).lost(revision) is is_lost


def test_records_are_kept_once_each_and_the_newest_only() -> None:
    async def scenario() -> None:
        storage = MemoryStorage()
        await storage.open()
        assert await read_restores(storage) == ()
        for number in (1, 1, *range(2, MAX_RECORDS + 2)):
            await record_restore(storage, number, number + 10)
        found = await read_restores(storage)
        assert (len(found), found[0], found[-1]) == (
            MAX_RECORDS,
            Restore(2, 12),
            Restore(MAX_RECORDS + 1, MAX_RECORDS + 11),
        )

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "value",
    [b"", b"{}x", b"[1]", b'[["a","b"]]', b"[[1]]", b"[" * 100_000],
    ids=["empty", "no JSON", "no pairs", "texts", "half of a pair", "too deep"],
)
def test_a_damaged_record_is_an_error_with_a_way_on(value: bytes) -> None:
    async def scenario() -> None:
        storage = MemoryStorage()
        await storage.open()
        await storage.create(RESTORES, value)
        with pytest.raises(StorageError, match="delete it, and settle what `mooring restore-check list` then shows"):
            await read_restores(storage)

    asyncio.run(scenario())
