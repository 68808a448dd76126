"""A server with two workers over etcd: joins, reads of one worker after writes of the other, a restart, the death of the leader."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooring.agent.join import join
from mooring.client.cluster import ClusterClient
from mooring.controlplane.lifecycle import process_identity
from mooring.reconcile.leaderelection import LEASE_SECONDS
from mooring.secret import Secret
from tests.support import etcd
from tests.support.joinplans import join_options, join_plan
from tests.support.killable import controllers_lease
from tests.support.liveserver import LiveServer, running_server
from tests.support.polling import eventually
from tests.support.workers import WORKERS, clients_of_workers, worker_pids

pytestmark = pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING)

JOINS = 4
WRITES = 30
SHARED = "shared"
"""ConfigMap that the tests write."""
SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    directory = tmp_path_factory.mktemp("workers")
    store = ("--etcd-servers", etcd.shared().endpoints, "--etcd-prefix", etcd.fresh_prefix())
    shared = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": SHARED, "namespace": "default"}}
    with running_server(directory / "data", "--workers", str(WORKERS), *store) as server:
        eventually(lambda: f"with {WORKERS} workers" in server.log, server)
        server.run(lambda client: client.create("configmaps", shared))
        yield server


async def holder(client: ClusterClient) -> str:
    """Return the process that runs the controllers."""
    return str((await controllers_lease(client))["holderIdentity"])


def test_machines_join_side_by_side(server: LiveServer, tmp_path: Path) -> None:
    token = server.create_token().reveal()

    async def one(name: str) -> bytes:
        plan = join_plan(name, (server.endpoint,), Secret(token), pins=(server.pin,))
        joined = await join(plan, join_options(root=tmp_path / name, certificate_timeout=SECONDS))
        assert joined.pair is not None
        return joined.pair.certificate_pem

    async def scenario() -> list[bytes]:
        return await asyncio.gather(*(one(f"m{number}") for number in range(JOINS)))

    assert len(set(asyncio.run(scenario()))) == JOINS


def test_a_read_sees_the_write_that_the_other_worker_has_acknowledged(server: LiveServer) -> None:
    async def scenario() -> None:
        async with clients_of_workers(server) as (one, other):
            for number in range(WRITES):
                writer, reader = (one, other) if number % 2 else (other, one)
                written = await writer.patch("configmaps", SHARED, {"data": {"value": str(number)}}, "default")
                assert await reader.get("configmaps", SHARED, "default") == written
                (listed,) = (await reader.list("configmaps", "default", field_selector=f"metadata.name={SHARED}")).items
                assert listed["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]

    asyncio.run(scenario())


def test_no_request_fails_while_the_workers_are_restarted(server: LiveServer) -> None:
    before = set(worker_pids(server))
    server.process.send_signal(signal.SIGHUP)

    async def scenario() -> int:
        deadline, number = time.monotonic() + SECONDS, 0
        while "all workers were restarted" not in server.log:
            assert time.monotonic() < deadline, server.log[-4000:]
            number += 1
            async with server.client() as client:
                written = await client.patch("configmaps", SHARED, {"data": {"restart": str(number)}}, "default")
            async with server.client() as client:
                assert await client.get("configmaps", SHARED, "default") == written
        return number

    assert asyncio.run(scenario()) > 0
    assert not before & set(worker_pids(server))


def test_a_killed_leader_is_succeeded_before_its_lease_expires_and_loses_no_write(server: LiveServer) -> None:
    async def scenario() -> int:
        async with clients_of_workers(server) as clients:
            before = await holder(clients[0])
            leader = next(pid for pid in worker_pids(server) if process_identity(pid) == before)
            written = [
                await client.patch("configmaps", SHARED, {"data": {"last": str(number)}}, "default")
                for number, client in enumerate(clients)
            ]
        killed = time.monotonic()
        os.kill(leader, signal.SIGKILL)
        async with server.client() as client:
            while await holder(client) == before:
                assert time.monotonic() < killed + LEASE_SECONDS, server.log[-4000:]
                await asyncio.sleep(0.02)
            assert await client.get("configmaps", SHARED, "default") == written[-1]
        return leader

    leader = asyncio.run(scenario())
    eventually(lambda: len(worker_pids(server)) == WORKERS and leader not in worker_pids(server), server)
    server.create_token()  # the successor signs cluster-info
