"""Scheduled snapshots: times, retention, the leader, and failures."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mooring.controlplane.snapshots import (
    SCHEDULED,
    ScheduledSnapshots,
    entries,
    list_snapshots,
    newest_scheduled,
    read_header,
    remove_old,
    save,
    snapshot_path,
    verify,
)
from mooring.settings.snapshots import parse_schedule
from mooring.storage.contract import CompactedError
from mooring.storage.memory import MemoryStorage
from mooring.storage.snapshot import SnapshotError
from tests.support.manualclock import EPOCH, ManualClock


class Server:
    """A server with a schedule."""

    def __init__(self, directory: Path, schedule: str = "@every 10m", keep: int = 2) -> None:
        parsed = parse_schedule(schedule, "")
        assert parsed is not None
        self.directory = directory
        self.clock = ManualClock()
        self.storage = MemoryStorage()
        self.leads = True
        self.snapshots = ScheduledSnapshots(
            self.storage, parsed, directory, self.clock, keep=keep, compressed=True, leads=lambda: self.leads
        )

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.exists() else []

    async def pass_time(self, seconds: float, done: Callable[[], bool]) -> None:
        """Let time pass, until what runs in threads has come to the expected state."""
        await self._until(lambda: self.clock.sleepers > 0)
        await self.clock.advance(seconds)
        await self._until(done)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            await asyncio.sleep(0.001)  # threads work meanwhile; `run` has a limit


def run(server: Server, scenario: Callable[[Server], Awaitable[None]]) -> None:
    async def whole() -> None:
        await server.storage.open()
        await server.storage.create("/registry/a", b"value")
        running = asyncio.create_task(server.snapshots.run())
        try:
            await asyncio.wait_for(scenario(server), timeout=30)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.storage.close()

    asyncio.run(whole())


def test_snapshots_are_made_in_time_and_the_oldest_are_removed(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        for n in range(1, 4):
            due = EPOCH.timestamp() + 600 * n
            await server.pass_time(600, partial(lambda due: server.snapshots.last_success >= due, due))
        assert len(server.names()) == 2
        for listed in list_snapshots(server.directory):
            assert listed.path.stat().st_mode & 0o777 == 0o600
            assert verify(listed.path).entries == 1
        assert server.snapshots.saved_bytes > 0

    run(Server(tmp_path / "snapshots"), scenario)


def test_a_server_that_does_not_lead_makes_none(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        server.leads = False
        await server.pass_time(1300, lambda: True)
        assert server.names() == []
        server.leads = True
        await server.pass_time(600, lambda: len(server.names()) == 1)

    run(Server(tmp_path), scenario)


def test_a_failure_keeps_the_older_ones_and_the_next_time_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario(server: Server) -> None:
        await server.pass_time(600, lambda: server.snapshots.last_success > 0)
        before = server.names()
        with monkeypatch.context() as patched:
            patched.setattr("mooring.controlplane.snapshots.os.fsync", full)
            await server.pass_time(600, lambda: server.snapshots.failures == 1)
        assert "no space left on device; free some space" in server.snapshots.problem
        assert server.names() == before
        await server.pass_time(600, lambda: not server.snapshots.problem)
        assert len(server.names()) == 2

    run(Server(tmp_path), scenario)


def test_an_interval_counts_from_the_newest_snapshot_in_the_directory(tmp_path: Path) -> None:
    snapshot_path(tmp_path, SCHEDULED, EPOCH - timedelta(minutes=9)).touch()
    (tmp_path / "scheduled-99999999T999999Z.snapshot").touch()

    async def scenario(server: Server) -> None:
        await server.pass_time(60, lambda: server.snapshots.last_success > 0)

    run(Server(tmp_path, keep=5), scenario)


def test_the_last_rest_is_bounded_by_a_quarter_of_a_core(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        server.clock.spend(0)
        rested = asyncio.create_task(server.snapshots._rest(2.0))
        await server.clock.advance(5.9)
        assert not rested.done()
        await server.clock.advance(0.2)
        assert rested.done()

    run(Server(tmp_path), scenario)


# ---- files


def test_only_scheduled_snapshots_are_removed(tmp_path: Path) -> None:
    times = [EPOCH + timedelta(hours=n) for n in range(4)]
    for moment in times:
        snapshot_path(tmp_path, SCHEDULED, moment).touch()
    others = ["on-demand-20200101T000000Z.snapshot", "scheduled-x.snapshot", "notes"]
    for name in others:
        (tmp_path / name).touch()
    assert len(remove_old(tmp_path, 3)) == 1
    assert remove_old(tmp_path, 3) == []
    assert {path.name for path in tmp_path.iterdir()} == {
        *others,
        *(snapshot_path(tmp_path, SCHEDULED, moment).name for moment in times[1:]),
    }
    assert newest_scheduled(tmp_path) == times[-1]


def with_store(scenario: Callable[[MemoryStorage], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = MemoryStorage()
        await store.open()
        await scenario(store)
        await store.close()

    asyncio.run(whole())


@pytest.mark.parametrize("compressed", [True, False], ids=["compressed", "plain"])
def test_a_snapshot_is_of_one_revision_while_writes_go_on(tmp_path: Path, compressed: bool) -> None:
    async def scenario(store: MemoryStorage) -> None:
        for n in range(600):
            await store.create(f"/registry/{n:04}", b"x" * 2000)
        await store.create("/other", b"")
        revision = await store.revision()
        wanted = list((await store.range("/registry/")).entries)

        async def write(worked: float) -> None:
            last = await store.get("/registry/0599")
            assert last is not None
            await store.update("/registry/0599", b"later", expected=last.revision)

        path = tmp_path / "a.snapshot"
        summary = await save(store, path, ManualClock(), compressed=compressed, pause=write)
        assert await store.revision() > revision
        assert (summary.entries, summary.header.revision) == (600, revision)
        assert verify(path) == summary
        assert read_header(path) == summary.header
        assert [entry async for part in entries(path) for entry in part] == wanted

    with_store(scenario)


def test_a_snapshot_that_compaction_overtakes_begins_again(tmp_path: Path) -> None:
    async def scenario(store: MemoryStorage) -> None:
        for n in range(600):
            await store.create(f"/registry/{n:04}", b"x" * 2000)
        times = 0

        async def compact(worked: float) -> None:
            nonlocal times
            times += 1
            if times == 2 or endless:
                await store.create(f"/registry/late-{times}", b"")
                await store.compact(await store.revision())

        path = tmp_path / "a.snapshot"
        endless = False
        assert (await save(store, path, ManualClock(), compressed=True, pause=compact)).entries == 601
        endless = True
        with pytest.raises(Exception, match="longer than old revisions are kept") as caught:
            await save(store, tmp_path / "b.snapshot", ManualClock(), compressed=True, pause=compact)
        assert isinstance(caught.value.__cause__, CompactedError)
        assert [found.name for found in tmp_path.iterdir()] == ["a.snapshot"]

    with_store(scenario)


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.snapshot"
    path.write_bytes(b"mooring-snap")
    reads: tuple[Callable[[Path], Any], ...] = (verify, read_header)
    for read in reads:
        with pytest.raises(SnapshotError, match=r"a\.snapshot: the snapshot ends at byte 12"):
            read(path)
    (listed,) = list_snapshots(tmp_path)
    assert (listed.size, listed.header) == (12, None)
    assert "cut off" in listed.problem


def test_a_listed_time_is_that_of_the_header() -> None:
    assert snapshot_path(Path("d"), SCHEDULED, datetime(2026, 1, 2, 3, 4, 5, tzinfo=EPOCH.tzinfo)).name == (
        "scheduled-20260102T030405Z.snapshot"
    )
