"""A server with two workers: any of them serves any request, and `kill -9` of one loses nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooring.agent import certificaterequest
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.http.requests import drive_fetching, fetch
from mooring.clock import SystemClock
from mooring.controlplane.lifecycle import process_identity
from mooring.errors import PeerError
from mooring.pki.keys import generate_key
from mooring.reconcile.leaderelection import LEASE_SECONDS
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery.fetch import Polling, discover_by_token
from mooring.trust.discovery.pins import pins_of
from mooring.trust.httpexchange import UNVERIFIED, HttpRequest, HttpResponse
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support import forkserver
from tests.support.killable import controllers_lease, history
from tests.support.liveserver import LiveServer, running_server, start_server
from tests.support.polling import eventually
from tests.support.workers import WORKERS, clients_of_workers, worker_pids

JOINS = 40
SIDE_BY_SIDE = 8
KILLS = 3
SECONDS = 60.0

clock = SystemClock()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("settings") / "config.yaml"
    file.write_text("anonymous-auth: true\n")
    return file


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, settings: Path) -> Iterator[LiveServer]:
    flags = ("--workers", str(WORKERS), "--config", str(settings), "--audit-log-path", "")
    with running_server(tmp_path_factory.mktemp("workers") / "data", *flags) as server:
        eventually(lambda: f"with {WORKERS} workers" in server.log, server)
        yield server


def config_map(name: str, value: int = 0) -> Obj:
    metadata = {"name": name, "namespace": "default"}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"value": str(value)}}


def test_a_read_sees_the_write_that_another_worker_has_acknowledged(server: LiveServer) -> None:
    async def scenario() -> None:
        async with clients_of_workers(server) as (one, other):
            await one.create("configmaps", config_map("shared"))
            for n in range(1, 60):
                writer, reader = (one, other) if n % 2 else (other, one)
                written = await writer.patch("configmaps", "shared", {"data": {"value": str(n)}}, "default")
                read = await reader.get("configmaps", "shared", "default")
                assert read == written
                (listed,) = (await reader.list("configmaps", "default", field_selector="metadata.name=shared")).items
                assert listed["data"] == {"value": str(n)}

    asyncio.run(scenario())


def test_watches_on_every_worker_get_every_event_in_one_order(server: LiveServer) -> None:
    count = 60

    async def follow(client: ClusterClient, begin: str) -> list[tuple[str, str]]:
        seen: list[tuple[str, str]] = []
        events = client.watch("configmaps", "default", resource_version=begin, seconds=60)
        async for event in events:
            metadata = event.object["metadata"]
            if metadata["name"].startswith("event-"):
                seen.append((metadata["resourceVersion"], metadata["name"]))
            if len(seen) == WORKERS * count:
                break
        await events.aclose()
        return seen

    async def scenario() -> None:
        async with clients_of_workers(server) as writers, clients_of_workers(server, 2) as readers:
            begin = (await writers[0].list("configmaps", "default")).resource_version
            following = [asyncio.create_task(follow(reader, begin)) for reader in readers]

            async def write(writer: int) -> None:
                for n in range(count):
                    await writers[writer].create("configmaps", config_map(f"event-{writer}-{n}"))

            await asyncio.gather(*map(write, range(WORKERS)))
            first, *rest = await asyncio.wait_for(asyncio.gather(*following), SECONDS)
            assert sorted(first, key=lambda event: int(event[0])) == first
            assert len(set(first)) == WORKERS * count
            assert all(seen == first for seen in rest)

    asyncio.run(scenario())


def test_no_request_fails_while_the_workers_are_restarted_with_a_new_configuration(
    server: LiveServer, settings: Path
) -> None:
    before = set(worker_pids(server))
    settings.write_text("anonymous-auth: true\nno-such-key: 1\n")
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the configuration is not used, and the workers that serve stay" in server.log, server)
    assert 'line 2: "no-such-key": unknown key' in server.log
    assert set(worker_pids(server)) == before

    settings.write_text("anonymous-auth: false\n")
    server.process.send_signal(signal.SIGHUP)

    async def anonymous_status() -> int:
        reply = await fetch(HttpRequest(UNVERIFIED, url=f"{server.url}/version"), clock)
        assert isinstance(reply, HttpResponse), reply
        return reply.status

    async def scenario() -> None:
        deadline = time.monotonic() + SECONDS
        while "all workers were restarted" not in server.log:
            assert time.monotonic() < deadline, "the restart does not end"
            assert await anonymous_status() in (200, 401)
            async with server.client() as client:
                await client.get("namespaces", "default")
        assert await anonymous_status() == 401

    try:
        asyncio.run(scenario())
    finally:
        settings.write_text("anonymous-auth: true\n")
    assert not before & set(worker_pids(server))


def test_a_killed_leader_is_succeeded_before_its_lease_expires(server: LiveServer) -> None:
    async def scenario() -> None:
        async with server.client() as client:
            before = await controllers_lease(client)
        leader = next(pid for pid in worker_pids(server) if process_identity(pid) == before["holderIdentity"])
        killed = time.monotonic()
        os.kill(leader, signal.SIGKILL)
        async with server.client() as client:
            while (await controllers_lease(client))["holderIdentity"] == before["holderIdentity"]:
                assert time.monotonic() < killed + LEASE_SECONDS, server.log
                await asyncio.sleep(0.02)
        assert leader not in worker_pids(server)

    asyncio.run(scenario())
    eventually(lambda: len(worker_pids(server)) == WORKERS, server)


async def join_one(server: LiveServer, token: BootstrapToken, name: str, answers: Counter[str]) -> bytes:
    """Join by discovery, request and certificate; retries use the same key. Return the certificate."""
    key = generate_key()
    made = certificaterequest.node_request(key, name)
    pins = pins_of(server.ca_pem)
    while True:
        try:
            polling = Polling(interval=0.1, total=SECONDS)
            trusted = await drive_fetching(discover_by_token((server.endpoint,), token, pins, polling=polling), clock)
            user = KubeconfigUser("bootstrap", token=Secret(token.reveal()))
            async with ClusterClient(Cluster("", trusted.server, trusted.ca_pem), user, clock) as client:
                obj, _ = await certificaterequest.send_request(client, made, key, clock.now())
                answers["requests"] += 1
                return await certificaterequest.wait(client, obj, SECONDS)
        except PeerError as error:
            if isinstance(error, certificaterequest.RequestEndedError | certificaterequest.ForeignRequestError):
                raise  # the end of a worker never ends a request
            answers["failures"] += 1
            await asyncio.sleep(0.05)


def test_joins_succeed_while_workers_are_killed_and_no_request_gets_two_certificates(tmp_path: Path) -> None:
    server = start_server(tmp_path / "data", "--workers", str(WORKERS))
    issued: dict[str, bytes] = {}

    async def kill_workers(answers: Counter[str]) -> None:
        for kill in range(KILLS):
            while answers["requests"] < (kill + 1) * JOINS // (KILLS + 2):
                await asyncio.sleep(0.005)
            serving = worker_pids(server)
            assert serving, server.log
            os.kill(serving[kill % len(serving)], signal.SIGKILL)

    async def scenario() -> None:
        async with server.client() as admin, asyncio.timeout(2 * SECONDS):
            token = await server.create_token_in(admin)
            answers: Counter[str] = Counter()
            places = asyncio.Semaphore(SIDE_BY_SIDE)

            async def one(name: str) -> None:
                async with places:
                    issued[name] = await join_one(server, token, name, answers)

            async with asyncio.TaskGroup() as group:
                group.create_task(kill_workers(answers))
                for n in range(JOINS):
                    group.create_task(one(f"m{n}"))

    try:
        asyncio.run(scenario())
        eventually(lambda: len(worker_pids(server)) == WORKERS, server)
    except BaseException:
        print(server.log[-4000:])  # noqa: T201 - shown with the failure
        raise
    finally:
        code = server.stop()
    assert code == 0
    changes = asyncio.run(history(server.data_dir / "mooring.db"))
    revisions = [change.revision for change in changes]
    assert revisions == list(range(revisions[0], revisions[-1] + 1))
    certificates: dict[str, set[str]] = {}
    for change in changes:
        if change.entry is not None and change.key.startswith(f"/registry/{certificaterequest.PLURAL}/"):
            certificate = json.loads(change.entry.value).get("status", {}).get("certificate")
            if certificate:
                certificates.setdefault(change.key, set()).add(certificate)
    assert [len(found) for found in certificates.values()] == [1] * JOINS
    assert len(issued) == JOINS


def test_up_prints_one_join_line_and_one_warning_and_keeps_the_port_that_it_chose(tmp_path: Path) -> None:
    log, data = tmp_path / "log", tmp_path / "data"
    flags = ["--data-dir", str(data), "--bind-address", "127.0.0.1", "--secure-port", "0", "--workers", str(WORKERS)]
    flags += ["--anonymous-auth=true", "--authorization-mode", "AlwaysAllow"]
    with log.open("wb") as output:
        process = forkserver.Process(["-m", "mooring", "up", *flags], stdout=output, stderr=output)
    try:
        eventually(lambda: "kubectl get nodes,csr" in log.read_text())
        assert log.read_text().count("anonymous access is off") == 1
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "all workers were restarted" in log.read_text())
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
    assert log.read_text().count("mooring join") == 1
    assert [file.name for file in data.glob("audit*")] == ["audit.log"]


def test_workers_end_with_their_parent_and_the_port_is_free_again(server: LiveServer) -> None:
    orphans = worker_pids(server)
    server.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans), server)
    server.restart()
    eventually(lambda: len(worker_pids(server)) == WORKERS, server)
