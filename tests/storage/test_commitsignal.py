"""Signals of commits between the workers of one server (`mooring.storage.commitsignal`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.storage.commitsignal import CommitSignal, descriptors
from mooring.storage.contract import StoredChange
from mooring.storage.sqlite.driver import SqliteStorage


class NoPoll(SystemClock):
    """A clock on which no poll comes round."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


@pytest.fixture(params=["eventfd", "pipe"])
def mechanism(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd")


@pytest.mark.usefixtures("mechanism")
def test_every_other_worker_gets_one_call_for_the_signals_that_wait() -> None:
    async def scenario() -> None:
        every = descriptors(3)
        signals = [CommitSignal(every, index) for index in range(3)]
        calls = [0, 0, 0]
        arrived = asyncio.Event()

        def count(index: int) -> None:
            calls[index] += 1
            arrived.set()

        for index, signal in enumerate(signals):
            signal.follow(partial(count, index))
        for _ in range(10_000):  # more than a pipe holds
            signals[0].send()
        while calls[1] == 0 or calls[2] == 0:
            await arrived.wait()
            arrived.clear()
        assert calls[0] == 0
        for signal in signals:
            signal.unfollow()
        signals[0].send()
        await asyncio.sleep(0)

    asyncio.run(scenario())


async def changes(watch: AsyncIterator[tuple[StoredChange, ...]], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found += [change.key for change in await anext(watch)]
    return found


def test_a_watch_gets_the_commits_of_another_worker_without_a_poll(tmp_path: Path) -> None:
    async def scenario() -> None:
        every = descriptors(2)
        one, other = (
            SqliteStorage(tmp_path / "mooring.db", NoPoll(), CommitSignal(every, index)) for index in range(2)
        )
        await one.open()
        await other.open()
        watch = one.watch("", after=1)
        for n in range(20):
            await other.create(f"/{n}", b"")
            assert await asyncio.wait_for(changes(watch, 1), 10) == [f"/{n}"]
        await other.close()
        await one.close()

    asyncio.run(scenario())
