"""Copies into an empty store: by a move, or of a snapshot. Each is repeated safely, whatever an earlier one left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from mooring.clock import SystemClock
from mooring.errors import ConfigError, MooringError, StorageError
from mooring.storage.contract import CompactedError, Entry, Storage
from mooring.storage.copying import COPYING, VERIFYING, Copied, copy, migrate, refuse_incomplete
from mooring.storage.keyspace import INCOMPLETE, PAGE_ENTRIES, between, count, pages
from mooring.storage.memory import MemoryStorage
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support.manualclock import ManualClock, settle

FLOOR = 1_000_000
KEYS = ("/mooring/bootstrap/a", "/registry/a", "/registry/b/c", "/registry/é")


def run(scenario: Callable[[MemoryStorage, MemoryStorage], Awaitable[None]], keys: Sequence[str] = KEYS) -> None:
    """Run a scenario with a filled source and an empty target."""

    async def whole() -> None:
        source, target = MemoryStorage(), MemoryStorage()
        await source.open()
        await target.open()
        for key in keys:
            await source.create(key, key.encode() * 3)
        await asyncio.wait_for(scenario(source, target), timeout=30)
        await source.close()
        await target.close()

    asyncio.run(whole())


async def copied(source: Storage, target: Storage, identity: str = "one", floor: int = FLOOR, **more: Any) -> Copied:
    reported = more.pop("report", lambda phase, done: None)
    return await copy(
        lambda: pages(source),
        target,
        floor=floor,
        command="datastore migrate",
        identity=identity,
        report=reported,
        **more,
    )


async def content(store: Storage) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await store.range("")).entries}


def test_every_entry_is_copied_beyond_the_floor_and_the_mark_is_gone() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        reports: list[tuple[str, int]] = []
        result = await copied(source, target, report=lambda phase, done: reports.append((phase, done)))
        assert await content(target) == await content(source)
        assert (result.entries, result.resumed, result.revision) == (4, False, await target.revision())
        assert all(entry.revision > FLOOR for entry in (await target.range("")).entries)
        assert reports[-1] == (VERIFYING, 4)
        assert (COPYING, 4) in reports
        await refuse_incomplete(target)
        async with aclosing(_of(target.watch("", after=FLOOR - 1))) as watch:
            with pytest.raises(CompactedError):
                await anext(watch)

    run(scenario)


def _of(watch: Any) -> Any:
    return watch


def test_both_sides_have_the_digest_of_their_content() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        other = MemoryStorage()
        await other.open()
        first, second = await copied(source, target), await copied(target, other)
        assert first.digest == second.digest
        assert first.digest.startswith("sha256:")
        await source.create("/registry/more", b"")
        third = MemoryStorage()
        await third.open()
        assert (await copied(source, third)).digest != first.digest

    run(scenario)


def test_keys_of_other_programs_are_neither_copied_nor_in_the_way() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        await source.create("/other/a", b"")
        await source.create("compact_rev_key", b"")
        kept = await target.create("/zoo", b"")
        await copied(source, target)
        assert set(await content(target)) == {*KEYS, "/zoo"}
        assert await target.get("/zoo") == kept

    run(scenario)


@pytest.mark.parametrize("key", ["/registry/pods/a/b", "/mooring/bootstrap/x"])
def test_a_target_that_is_not_empty_is_refused_and_not_changed(key: str) -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        await target.create(key, b"")
        with pytest.raises(ConfigError, match="the target is not empty"):
            await copied(source, target)
        assert await content(target) == {key: b""}
        assert await target.revision() == 2

    run(scenario)


def test_a_store_of_many_pages_is_copied() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        await copied(source, target)
        assert await content(target) == await content(source)
        assert await count(target) == 2 * PAGE_ENTRIES + 1
        assert len([entry async for entry in between(target, "/registry/00009", "/registry/00600")]) == 503

    run(scenario, [f"/registry/{n:05}" for n in range(2 * PAGE_ENTRIES + 1)])


class KilledError(Exception):
    """A process that was killed."""


class Killable:
    """A store whose process is killed after some writes."""

    def __init__(self, store: MemoryStorage, writes: int) -> None:
        self._store = store
        self._left = writes

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("create", "update", "delete", "advance"):
            return method

        async def write(*args: Any, **kwargs: Any) -> Any:
            if not self._left:
                raise KilledError
            self._left -= 1
            return await method(*args, **kwargs)

        return write


@pytest.mark.parametrize("writes", range(1, 7), ids=lambda n: f"after {n} writes")
def test_a_copy_that_was_killed_is_refused_by_servers_and_repeated_to_its_end(writes: int) -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        killed: Any = Killable(target, writes)
        with pytest.raises(KilledError):
            await copied(source, killed)
        await settle()
        with pytest.raises(ConfigError, match="mooring datastore migrate into it has not ended; run it again"):
            await refuse_incomplete(target)
        # the source went on meanwhile, beyond the revisions that the target has given
        await source.advance(FLOOR + 100)
        changed = await source.get("/registry/a")
        assert changed is not None
        await source.update("/registry/a", b"new", expected=changed.revision)
        gone = await source.get("/registry/b/c")
        assert gone is not None
        await source.delete("/registry/b/c", expected=gone.revision)
        floor = await source.revision()
        result = await copied(source, target, "two", floor)
        assert (result.entries, result.resumed) == (3, True)
        assert await content(target) == await content(source)
        assert all(entry.revision > floor for entry in (await target.range("")).entries)
        assert await target.compacted() >= floor
        await refuse_incomplete(target)

    run(scenario)


def test_entries_that_an_earlier_run_copied_are_not_written_again() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        killed: Any = Killable(target, 5)
        with pytest.raises(KilledError):
            await copied(source, killed)
        await settle()
        before = {entry.key: entry for entry in (await target.range("/registry/")).entries}
        assert before
        await copied(source, target, "two")
        after = {entry.key: entry for entry in (await target.range("/registry/")).entries}
        assert {key: after[key] for key in before} == before

    run(scenario)


def test_of_two_runs_at_once_the_earlier_fails_and_the_later_ends() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        waiting, reached = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            reached.set()
            await waiting.wait()

        first = asyncio.create_task(copied(source, target, "one", confirm=wait))
        await reached.wait()
        second = await copied(source, target, "two")
        assert second.resumed
        waiting.set()
        with pytest.raises(StorageError, match="another process copies into the target"):
            await first
        assert await content(target) == await content(source)

    run(scenario)


def test_a_writer_in_the_target_is_noticed_and_the_target_stays_incomplete() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        def report(phase: str, done: int) -> None:
            if phase == VERIFYING:
                target._entries["/registry/b/c"] = Entry("/registry/b/c", b"other", 5, 5)

        with pytest.raises(
            StorageError, match=r"^the copy differs from its source: 4 entries .* run the command again$"
        ):
            await copied(source, target, report=lambda phase, done: report(VERIFYING, done))
        with pytest.raises(ConfigError, match="incomplete"):
            await refuse_incomplete(target)

    run(scenario)


def test_a_mark_that_cannot_be_read_still_refuses() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        entry = await target.create(INCOMPLETE, b"")
        for value in (b"\xff", b"[]", b"{}", b"[" * 100_000):
            entry = await target.update(INCOMPLETE, value, expected=entry.revision)
            with pytest.raises(ConfigError, match="the store is incomplete"):
                await refuse_incomplete(target)

    run(scenario)


def test_events_live_no_longer_than_events_do() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        lives: dict[str, int] = {}
        create = target.create

        async def noted(key: str, value: bytes, *, ttl: int = 0) -> Entry:
            lives[key] = ttl
            return await create(key, value, ttl=ttl)

        target.create = noted  # type: ignore[method-assign] # the reference driver has no leases to look at
        await copied(source, target)
        assert lives == {"/registry/events/default/a": 3600, "/registry/pods/a": 0, INCOMPLETE: 0}

    run(scenario, ["/registry/events/default/a", "/registry/pods/a"])


# ---- moves


async def moved(source: Storage, target: Storage, clock: ManualClock, quiet: float = 17.0) -> Copied:
    return await migrate(source, target, clock, quiet_seconds=quiet, identity="one", report=lambda phase, done: None)


def test_revisions_of_the_target_follow_those_of_the_source() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        await moved(source, target, ManualClock(), quiet=0.0)
        newest = await source.revision()
        assert min(entry.revision for entry in (await target.range("")).entries) > newest
        async with aclosing(_of(target.watch("", after=newest))) as watch:
            with pytest.raises(CompactedError):
                await anext(watch)

    run(scenario)


def test_a_move_waits_for_the_time_in_which_a_server_would_write() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        clock = ManualClock()
        moving = asyncio.create_task(moved(source, target, clock))
        await clock.advance(16.9)
        assert not moving.done()
        with pytest.raises(ConfigError, match="incomplete"):
            await refuse_incomplete(target)
        await clock.advance(0.2)
        assert (await moving).entries == 4

    run(scenario)


def test_a_source_that_changes_is_in_use() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        clock = ManualClock()
        moving = asyncio.create_task(moved(source, target, clock))
        await clock.advance(5)
        await source.create("/registry/leases/kube-system/x", b"")
        with pytest.raises(StorageError, match="a server still uses it"):
            await moving
        with pytest.raises(ConfigError, match="incomplete"):
            await refuse_incomplete(target)

    run(scenario)


def test_keys_of_other_programs_may_change_meanwhile() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        clock = ManualClock()
        moving = asyncio.create_task(moved(source, target, clock))
        await clock.advance(5)
        await source.create("/other", b"")
        await clock.advance(20)
        assert (await moving).entries == 4

    run(scenario)


def test_an_incomplete_source_is_refused() -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        await source.create(INCOMPLETE, b"{}")
        with pytest.raises(ConfigError, match="the store is incomplete"):
            await moved(source, target, ManualClock())
        assert await content(target) == {}

    run(scenario)


def test_a_disk_error_of_the_source_ends_the_move(tmp_path: Path) -> None:
    async def scenario(source: MemoryStorage, target: MemoryStorage) -> None:
        broken = SqliteStorage(tmp_path / "a.db", SystemClock())
        await broken.open()
        await broken.close()
        with pytest.raises(MooringError, match="the store is closed"):
            await moved(broken, target, ManualClock(), quiet=0.0)

    run(scenario)
