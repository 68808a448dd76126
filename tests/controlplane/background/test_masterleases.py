"""Leases of servers: who is listed, when a dead one is left out, and what a stop leaves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest

from mooring.controlplane.maintenance import PREFIX, RENEW_SECONDS, TTL_SECONDS, MasterLeases
from mooring.errors import StorageError
from mooring.storage.memory import MemoryStorage
from tests.support.manualclock import ManualClock, settle

A, B, C = "192.0.2.1", "192.0.2.2", "192.0.2.3"


def with_store(test: Callable[[MemoryStorage, ManualClock], Awaitable[None]]) -> None:
    async def body() -> None:
        storage = MemoryStorage()
        await storage.open()
        await test(storage, ManualClock())

    asyncio.run(body())


def leases(storage: MemoryStorage, address: str, clock: ManualClock, *, is_alone: bool = True) -> MasterLeases:
    return MasterLeases(storage, address, clock, is_alone=is_alone)


def listed(server: MasterLeases, *addresses: str) -> None:
    assert server.addresses == addresses


async def keys(storage: MemoryStorage) -> list[str]:
    return [entry.key.removeprefix(PREFIX) for entry in (await storage.range(PREFIX)).entries]


def test_every_server_lists_all_that_live() -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        a, b = leases(storage, A, clock), leases(storage, B, clock)
        listed(a, A)
        assert not await a.look()
        assert await b.look()
        assert await a.look()
        listed(a, A, B)
        listed(b, A, B)
        entry = await storage.get(PREFIX + A)
        assert entry is not None
        assert json.loads(entry.value)["subsets"] == [{"addresses": [{"ip": A}]}]

    with_store(test)


def test_a_dead_server_is_left_out_after_its_time_and_not_before() -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        a, dead = leases(storage, A, clock), leases(storage, B, clock)
        await dead.look()
        await a.look()
        for _ in range(int(TTL_SECONDS / RENEW_SECONDS) - 1):
            clock.spend(RENEW_SECONDS)
            assert not await a.look()
        listed(a, A, B)
        clock.spend(RENEW_SECONDS)
        assert await a.look()
        listed(a, A)
        assert await keys(storage) == [A]
        await dead.look()  # it was stopped, and goes on
        assert await a.look()
        listed(a, A, B)

    with_store(test)


def test_a_server_without_an_address_lists_the_others() -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        none, a = leases(storage, "", clock), leases(storage, A, clock)
        await a.look()
        assert await none.look()
        assert none.addresses == (A,)
        assert await keys(storage) == [A]
        await none._end()

    with_store(test)


def test_processes_of_one_address_renew_one_key() -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        workers = [leases(storage, A, clock, is_alone=False) for _ in range(3)]
        await asyncio.gather(*(one.look() for one in workers))
        await asyncio.gather(*(one.look() for one in workers))
        assert await keys(storage) == [A]

    with_store(test)


@pytest.mark.parametrize(("is_alone", "left"), [(True, []), (False, [A])])
def test_a_stop_ends_the_lease_unless_others_serve_the_address(is_alone: bool, left: list[str]) -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        changes = 0

        def count() -> None:
            nonlocal changes
            changes += 1

        running = asyncio.create_task(leases(storage, A, clock, is_alone=is_alone).run(count))
        await settle()
        await leases(storage, C, clock).look()
        await clock.advance(RENEW_SECONDS)
        await settle()
        assert changes == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await keys(storage) == [*left, C]

    with_store(test)


def test_a_store_that_fails_is_reported_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(storage: MemoryStorage, clock: ManualClock) -> None:
        async def fail(*ignored: object, **named: object) -> None:
            raise StorageError("the disk is full")

        with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
            broken.setattr(storage, "range", fail)
            running = asyncio.create_task(leases(storage, A, clock).run(lambda: None))
            for _ in range(3):
                await settle()
                await clock.advance(RENEW_SECONDS)
        assert caplog.text.count("could not be renewed: the disk is full") == 1
        await clock.advance(RENEW_SECONDS)
        await settle()
        assert await keys(storage) == [A]
        running.cancel()

    with_store(test)
