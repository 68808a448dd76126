"""Progress messages during the wait for a certificate, on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from mooring.agent import certificaterequest, steps
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import MODIFIED, WatchEvent
from mooring.client.cluster import ClusterClient, ListResult
from mooring.errors import MooringError, PeerError, UnauthorizedError
from tests.support.manualclock import ManualClock, settle

CSR: Obj = {"metadata": {"name": "node-csr-x", "uid": "u", "resourceVersion": "1"}}
APPROVED: Obj = CSR | {"status": {"conditions": [{"type": "Approved"}]}}
ISSUED: Obj = CSR | {"status": {"conditions": [{"type": "Approved"}], "certificate": "eA=="}}
APPROVE = "approve it with `mooring csr approve node-csr-x` or `kubectl certificate approve node-csr-x`"


class Cluster:
    """Cluster with one request that the test changes. `failing` is raised instead while it is set."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clusters = ("the only address",)
        self.events: asyncio.Queue[Obj | MooringError] = asyncio.Queue()
        self.failing: MooringError | None = None
        self.asked = 0

    async def list(self, target: str, namespace: str, **rest: Any) -> ListResult:
        self.asked += 1
        if self.failing is not None:
            raise self.failing
        return ListResult((CSR,), "1")

    async def watch(self, target: str, namespace: str, **rest: Any) -> AsyncGenerator[WatchEvent]:
        while True:
            event = await self.events.get()
            if isinstance(event, MooringError):
                raise event
            yield WatchEvent(MODIFIED, event)


async def is_kubernetes(*_: Any) -> bool:
    return False


async def is_mooring(*_: Any) -> bool:
    return True


@pytest.fixture(autouse=True)
def another_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is another one than Mooring."""
    monkeypatch.setattr(steps, "is_mooring_server", is_kubernetes)


def waiting(scenario: Any, seconds: float = 300.0) -> list[tuple[str, bool]]:
    told: list[tuple[str, bool]] = []

    async def run() -> None:
        cluster = Cluster()
        client = cast(ClusterClient, cluster)
        task = asyncio.create_task(
            certificaterequest.wait(client, CSR, seconds, lambda message, new: told.append((message, new)))
        )
        await settle()
        try:
            await scenario(cluster, task, told)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return told


def test_a_certificate_that_comes_at_once_is_not_talked_about() -> None:
    async def scenario(cluster: Cluster, task: asyncio.Task[bytes], told: list[tuple[str, bool]]) -> None:
        await cluster.events.put(ISSUED)
        await cluster.clock.advance(1.9)
        assert await task == b"x"

    assert waiting(scenario) == []


def test_the_wait_tells_what_it_waits_for_what_to_run_and_how_long_it_goes_on() -> None:
    async def scenario(cluster: Cluster, task: asyncio.Task[bytes], told: list[tuple[str, bool]]) -> None:
        await cluster.clock.advance(2)
        assert told == [(f"the request node-csr-x is not approved yet; {APPROVE}; waiting for up to 4m58s more", True)]
        await cluster.clock.advance(30)
        assert told[1:] == [
            (f"the request node-csr-x is not approved yet; {APPROVE}; waiting for up to 4m28s more", False)
        ]
        await cluster.events.put(APPROVED)
        await cluster.clock.advance(1)
        assert told[2:] == [
            (
                "the request node-csr-x is approved, but no signer has issued its certificate yet; "
                "waiting for up to 4m28s more",
                True,
            )
        ]
        await cluster.events.put(ISSUED)
        await cluster.clock.advance(1)
        assert await task == b"x"

    assert len(waiting(scenario)) == 3


def test_a_server_that_went_away_is_told_and_waited_for() -> None:
    async def scenario(cluster: Cluster, task: asyncio.Task[bytes], told: list[tuple[str, bool]]) -> None:
        await cluster.clock.advance(2)
        await cluster.events.put(PeerError("nothing answers there"))
        await cluster.clock.advance(0.1)
        assert told[-1][0].startswith("the server cannot be asked about the request node-csr-x: nothing answers there;")
        await cluster.events.put(ISSUED)
        await cluster.clock.advance(5)
        assert await task == b"x"

    waiting(scenario)


def test_a_server_that_restarts_may_refuse_for_less_than_a_minute_each_time() -> None:
    async def scenario(cluster: Cluster, task: asyncio.Task[bytes], told: list[tuple[str, bool]]) -> None:
        for _ in range(3):
            cluster.failing = UnauthorizedError()
            await cluster.events.put(UnauthorizedError())
            await cluster.clock.advance(50)
            assert not task.done()
            cluster.failing = None
            await cluster.clock.advance(10)
        await cluster.events.put(ISSUED)
        await cluster.clock.advance(1)
        assert await task == b"x"

    waiting(scenario)


def test_a_server_that_refuses_for_a_minute_ends_the_wait() -> None:
    async def scenario(cluster: Cluster, task: asyncio.Task[bytes], told: list[tuple[str, bool]]) -> None:
        cluster.failing = UnauthorizedError()
        await cluster.events.put(UnauthorizedError())
        await cluster.clock.advance(61)
        with pytest.raises(UnauthorizedError):
            await task
        assert cluster.asked < 20

    waiting(scenario)


def test_401_of_a_mooring_server_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "is_mooring_server", is_mooring)

    async def scenario(cluster: Cluster, task: asyncio.Task[bytes], told: list[tuple[str, bool]]) -> None:
        cluster.failing = UnauthorizedError()
        await cluster.events.put(UnauthorizedError())
        await cluster.clock.advance(1)
        with pytest.raises(UnauthorizedError):
            await task

    waiting(scenario)


def test_time_that_is_up_names_the_request() -> None:
    async def scenario(cluster: Cluster, task: asyncio.Task[bytes], told: list[tuple[str, bool]]) -> None:
        await cluster.clock.advance(10)
        with pytest.raises(certificaterequest.NotAnsweredError) as caught:
            await task
        assert str(caught.value) == (
            f"the request node-csr-x was not approved within 10 s; {APPROVE}, "
            "then join again: it goes on with the same request"
        )

    waiting(scenario, 10.0)
