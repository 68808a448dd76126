"""The level of the format of a store, on every driver: servers of two versions side by side, and the start of an older one.

Source: docs/adr/0068-the-level-of-the-format.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mooring.errors import StorageError
from mooring.storage import formatlevel
from mooring.storage.contract import Storage
from mooring.storage.formatlevel import (
    LEVELS,
    RENEW_SECONDS,
    SUPPORTED,
    TTL_SECONDS,
    FormatLevel,
    Supported,
    UnsupportedLevelError,
    refuse_unsupported,
)
from mooring.storage.keyspace import FORMAT_LEVEL, FORMAT_SERVERS, is_empty
from mooring.storage.memory import MemoryStorage
from tests.support.manualclock import ManualClock, settle
from tests.support.storagedrivers import Run

OLD, NEW, BOTH = Supported(1, 1), Supported(2, 3), Supported(1, 2)


def process(storage: Storage, clock: ManualClock, name: str, supported: Supported) -> FormatLevel:
    return FormatLevel(storage, clock, name, supported)


async def raised_to(storage: Storage, clock: ManualClock, level: int) -> None:
    """Let a process that is gone have raised the level."""
    server = process(storage, clock, "first", Supported(1, level))
    await server.join()
    await server.look(leads=True)
    await server.leave()
    assert server.level == level


def test_a_store_begins_at_level_1_and_is_raised_by_a_leader_that_is_alone(run: Run) -> None:
    async def scenario(storage: Storage) -> None:
        server = process(storage, ManualClock(), "a", BOTH)
        await server.join()
        assert server.level == 1
        await server.look(leads=False)
        assert server.level == 1
        await server.look(leads=True)
        assert server.level == 2

    run(scenario)


def test_an_older_program_is_refused_and_leaves_nothing(run: Run) -> None:
    async def scenario(storage: Storage) -> None:
        clock = ManualClock()
        await raised_to(storage, clock, 2)
        before = await storage.revision()
        with pytest.raises(
            UnsupportedLevelError, match=r"a newer Mooring .*level 2.*1 to 1.*; run the newer"
        ) as refused:
            await process(storage, clock, "old", OLD).join()
        assert "\n" not in str(refused.value)
        with pytest.raises(UnsupportedLevelError):
            await refuse_unsupported(storage, OLD)
        assert await storage.revision() == before
        assert (await storage.range(FORMAT_SERVERS)).entries == ()
        await refuse_unsupported(storage, NEW)

    run(scenario)


def test_a_program_that_left_the_level_behind_is_refused_too(run: Run) -> None:
    async def scenario(storage: Storage) -> None:
        with pytest.raises(UnsupportedLevelError, match=r"older Mooring .*level 1.*2 to 3.*run an older version first"):
            await process(storage, ManualClock(), "new", NEW).join()

    run(scenario)


def test_the_level_waits_for_the_last_server_of_the_old_version(run: Run) -> None:
    async def scenario(storage: Storage) -> None:
        clock = ManualClock()
        old, new = process(storage, clock, "old", OLD), process(storage, clock, "new", BOTH)
        await old.join()
        await new.join()
        for _ in range(10):
            await old.look(leads=False)
            await new.look(leads=True)
            await clock.advance(RENEW_SECONDS)
        assert (old.level, new.level) == (1, 1)
        await old.leave()
        await new.look(leads=True)
        assert new.level == 2

    run(scenario)


def test_an_old_server_that_leads_raises_nothing(run: Run) -> None:
    async def scenario(storage: Storage) -> None:
        clock = ManualClock()
        old, new = process(storage, clock, "old", OLD), process(storage, clock, "new", BOTH)
        await old.join()
        await new.join()
        await old.look(leads=True)
        await new.look(leads=False)
        assert (old.level, new.level) == (1, 1)

    run(scenario)


def test_a_dead_server_holds_the_level_for_its_time_and_no_longer(run: Run) -> None:
    async def scenario(storage: Storage) -> None:
        clock = ManualClock()
        dead, new = process(storage, clock, "dead", OLD), process(storage, clock, "new", BOTH)
        await dead.join()
        await new.join()
        await new.look(leads=True)
        await clock.advance(TTL_SECONDS - 1)
        await new.look(leads=True)
        assert new.level == 1
        await clock.advance(1)
        await new.look(leads=True)
        assert new.level == 2
        assert [entry.key for entry in (await storage.range(FORMAT_SERVERS)).entries] == [f"{FORMAT_SERVERS}new"]

    run(scenario)


def test_a_server_that_slept_while_the_level_was_raised_stops(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(storage: Storage) -> None:
        clock = ManualClock()
        slept, new = process(storage, clock, "slept", OLD), process(storage, clock, "new", BOTH)
        await slept.join()
        await new.join()
        await new.look(leads=True)
        await clock.advance(TTL_SECONDS)
        await new.look(leads=True)
        stopped = list[bool]()
        await slept.run(lambda: True, lambda: stopped.append(True))
        assert stopped == [True]
        assert "written by a newer Mooring" in caplog.text

    run(scenario)


class Interrupted:
    """A store that lets another process act before one of its calls."""

    def __init__(self, inner: Storage, name: str, act: Callable[[], Awaitable[Any]]) -> None:
        self._inner, self._name, self._act = inner, name, act

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._name:
            return found

        async def acting(key: str, *args: Any, **kwargs: Any) -> Any:
            if key == FORMAT_LEVEL or name == "range":
                self._name = ""
                await self._act()
            return await found(key, *args, **kwargs)

        return acting


@pytest.mark.parametrize("moment", ["get", "range", "update"])
def test_a_server_that_starts_while_the_leader_raises_the_level_is_seen_or_refused(run: Run, moment: str) -> None:
    async def scenario(storage: Storage) -> None:
        clock = ManualClock()
        old = process(storage, clock, "old", OLD)
        new = process(storage, clock, "new", BOTH)
        await new.join()
        between: Any = Interrupted(storage, moment, old.join)
        leader = FormatLevel(between, clock, "new", BOTH)
        await leader.look(leads=True)
        await old.look(leads=False)
        await leader.look(leads=True)
        assert (leader.level, old.level) == (1, 1)

    run(scenario)


def test_a_server_whose_start_is_overtaken_by_the_raise_is_refused(run: Run) -> None:
    async def scenario(storage: Storage) -> None:
        clock = ManualClock()
        new = process(storage, clock, "new", BOTH)
        await new.join()

        async def overtake() -> None:
            await storage.delete(
                f"{FORMAT_SERVERS}old", expected=(await storage.range(FORMAT_SERVERS + "old")).entries[0].revision
            )
            await new.look(leads=True)

        await raised_to(storage, clock, 1)
        between: Any = Interrupted(storage, "update", overtake)
        with pytest.raises(UnsupportedLevelError):
            await FormatLevel(between, clock, "old", OLD).join()
        assert new.level == 2
        assert [entry.key for entry in (await storage.range(FORMAT_SERVERS)).entries] == [f"{FORMAT_SERVERS}new"]

    run(scenario)


def test_a_lease_that_ended_is_written_again(run: Run) -> None:
    async def scenario(storage: Storage) -> None:
        server = process(storage, ManualClock(), "a", OLD)
        await server.join()
        await server.leave()
        await server.leave()
        await server.look(leads=False)
        assert len((await storage.range(FORMAT_SERVERS)).entries) == 1

    run(scenario)


def with_memory(test: Callable[[MemoryStorage, ManualClock], Awaitable[None]]) -> None:
    async def body() -> None:
        storage = MemoryStorage()
        await storage.open()
        await test(storage, ManualClock())

    asyncio.run(body())


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"level":"2"}', b'{"level":true}', b'{"level":0}', b"[" * 100_000]
)
def test_a_record_that_cannot_be_read_stops_a_start(value: bytes) -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        await storage.create(FORMAT_LEVEL, value)
        with pytest.raises(StorageError, match=re.escape(f"{FORMAT_LEVEL} in the store is not the level of a format")):
            await process(storage, clock, "a", OLD).join()

    with_memory(test)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"oldest":"x","newest":1}', b"[" * 100_000])
def test_a_server_whose_levels_cannot_be_read_holds_the_level(value: bytes) -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        await storage.create(f"{FORMAT_SERVERS}other", value)
        server = process(storage, clock, "a", BOTH)
        await server.join()
        await server.look(leads=True)
        assert server.level == 1

    with_memory(test)


def test_a_store_that_was_emptied_gets_its_level_again() -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        server = process(storage, clock, "a", BOTH)
        await server.join()
        entry = await storage.get(FORMAT_LEVEL)
        assert entry is not None
        await storage.delete(FORMAT_LEVEL, expected=entry.revision)
        await server.look(leads=True)
        assert server.level == 2
        await refuse_unsupported(storage, Supported(2, 2))

    with_memory(test)


def test_a_failing_store_is_reported_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        server = process(storage, clock, "a", BOTH)
        await server.join()
        caplog.set_level(logging.INFO, "mooring.storage")
        failing = True
        real = storage.get

        async def get(key: str, *, revision: int = 0) -> Any:
            if failing:
                raise StorageError("the store does not answer")
            return await real(key, revision=revision)

        storage.get = get  # type: ignore[method-assign] # a store that fails for a while
        task = asyncio.ensure_future(server.run(lambda: True, lambda: None))
        for _ in range(3):
            await settle()
            await clock.advance(RENEW_SECONDS)
        failing = False
        await clock.advance(RENEW_SECONDS)
        await settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert caplog.text.count("the level of the store's format cannot be read: the store does not answer") == 1
        assert "every server supports level 2" in caplog.text
        assert server.level == 2

    with_memory(test)


def test_this_program_supports_every_level_of_its_table() -> None:
    assert Supported(1, len(LEVELS)) == SUPPORTED


def test_what_servers_publish_is_no_part_of_a_copy(tmp_path: Path) -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        await storage.create(f"{FORMAT_SERVERS}a", b"{}")
        assert await is_empty(storage)
        await storage.create(FORMAT_LEVEL, b'{"level": 2}')
        assert not await is_empty(storage)

    with_memory(test)


def test_a_stop_waits_for_no_store_that_does_not_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(storage: Storage) -> None:
        server = process(storage, ManualClock(), "a", OLD)
        await server.join()
        monkeypatch.setattr(formatlevel, "LEAVE_SECONDS", 0.0)
        monkeypatch.setattr(storage, "get", lambda key: asyncio.get_running_loop().create_future())
        await server.leave()

    run(scenario)
