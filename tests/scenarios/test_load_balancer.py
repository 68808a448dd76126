"""Two servers of one cluster behind a TCP load balancer, whose address is the only one that clients know."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import pytest

from mooring.agent.join import join
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import WatchEvent
from mooring.client.cluster import ClusterClient, ListResult, connect
from mooring.client.http.requests import fetch
from mooring.client.kubeconfigfiles import load
from mooring.client.listwatch import follow
from mooring.clock import SystemClock
from mooring.secret import Secret
from mooring.trust.httpexchange import UNVERIFIED, HttpRequest, HttpResponse
from tests.support import etcd
from tests.support.balancer import SOURCE, Balancer, balancer
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port

DELAY = "30s"
"""Time that a server which is told to stop still serves: longer than a test looks at it. Tests end servers by SIGKILL."""
WRITES = 8


class Balanced:
    """The servers and the balancer before them."""

    def __init__(self, servers: dict[int, LiveServer], before: Balancer) -> None:
        self.servers = servers
        self.balancer = before

    def client(self) -> ClusterClient:
        """Return an administrator's client on a connection of its own. It knows the address of the balancer alone."""
        selected = load(str(next(iter(self.servers.values())).kubeconfig))
        assert selected.others == ()
        assert selected.cluster.server == self.balancer.url
        return connect(selected)

    def other(self, port: int) -> int:
        (found,) = self.servers.keys() - {port}
        return found

    def restart_ended(self) -> None:
        """Start the servers again that a test ended."""
        for server in self.servers.values():
            if server.process.poll() is not None:
                server.restart()
        eventually(lambda: self.balancer.ready == self.servers.keys())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    root = tmp_path_factory.mktemp("balanced")
    token = root / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    address, ports = free_port(), (free_port(), free_port())
    store = ["--storage", f"sqlite:{root}/mooring.db"]
    if not etcd.MISSING:
        store = ["--etcd-servers", etcd.shared().endpoints, "--etcd-prefix", etcd.fresh_prefix()]
    flags = (*store, "--server-token-file", str(token), "--control-plane-endpoint", f"127.0.0.1:{address}")
    with ThreadPoolExecutor() as pool, balancer(address, ports) as before:
        starts = [
            pool.submit(start_server, root / f"server-{port}", *flags, "--shutdown-delay-duration", DELAY, port=port)
            for port in ports
        ]
        servers = dict(zip(ports, [one.result() for one in starts], strict=True))
        try:
            yield Balanced(servers, before)
        finally:
            for server in servers.values():
                server.kill()


@pytest.fixture
def balanced(cluster: Balanced) -> Balanced:
    cluster.restart_ended()
    return cluster


def config_map(name: str) -> Obj:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}}


async def status(url: str) -> int:
    answer = await fetch(HttpRequest(UNVERIFIED, url=url), SystemClock())
    return answer.status if isinstance(answer, HttpResponse) else 0


def test_a_machine_that_knows_the_balancer_alone_joins(balanced: Balanced, tmp_path: Path) -> None:
    server, before = next(iter(balanced.servers.values())), len(balanced.balancer.given)
    token = Secret(server.create_token().reveal())
    wanted = join_plan("balanced", (balanced.balancer.endpoint,), token, pins=(server.pin,))
    member = asyncio.run(join(wanted, join_options(root=tmp_path, certificate_timeout=60.0)))
    assert [one.server for one in member.clusters] == [balanced.balancer.url]
    assert set(balanced.balancer.given[before:]) == balanced.servers.keys(), "its connections go to both servers"

    async def request() -> Obj:
        async with balanced.client() as client:
            return await client.get("certificatesigningrequests", member.request_name)

    annotations = asyncio.run(request())["metadata"]["annotations"]
    assert annotations["mooring.dev/source-address"] == SOURCE, "the servers see the balancer, not the machine"


def test_clients_see_what_was_acknowledged_by_another_server(balanced: Balanced) -> None:
    async def run() -> None:
        for number in range(WRITES):
            async with balanced.client() as writer, balanced.client() as reader:
                made = await writer.create("configmaps", config_map(f"read-{number}"))
                assert await reader.get("configmaps", f"read-{number}", "default") == made
                listed = await reader.list("configmaps", "default")
                assert f"read-{number}" in {one["metadata"]["name"] for one in listed.items}
                wrote, read = balanced.balancer.given[-2:]
                assert wrote != read

    asyncio.run(run())


def test_a_watch_goes_on_at_another_server_when_its_own_is_killed(balanced: Balanced) -> None:
    async def write(name: str) -> None:
        async with balanced.client() as client:
            await client.create("configmaps", config_map(name))

    async def run() -> None:
        async with balanced.client() as client, aclosing(follow(client, "configmaps", "default")) as changes:
            assert isinstance(await anext(changes), ListResult)
            watched = balanced.balancer.given[-1]
            seen: list[WatchEvent] = []
            names = [f"watched-{number}" for number in range(WRITES)]

            async def see(count: int) -> None:
                while len(seen) < count:
                    event = await anext(changes)
                    assert isinstance(event, WatchEvent), "a second list would hide a gap"
                    if event.object["metadata"]["name"] in names:  # the controllers write ConfigMaps of their own
                        seen.append(event)

            for name in names[: WRITES // 2]:
                await write(name)
            await see(1)  # the others are on their way, or lost with the server
            balanced.servers[watched].kill()
            for name in names[WRITES // 2 :]:
                await write(name)
            await see(WRITES)
            assert balanced.balancer.given[-1] == balanced.other(watched)
            assert [(event.type, event.object["metadata"]["name"]) for event in seen] == [
                ("ADDED", one) for one in names
            ]
            revisions = [int(event.object["metadata"]["resourceVersion"]) for event in seen]
            assert revisions == sorted(set(revisions))

    asyncio.run(run())


def test_a_server_that_stops_fails_readyz_while_it_still_serves(balanced: Balanced) -> None:
    stopping, left = balanced.servers

    async def uses_the_other() -> None:
        before = len(balanced.balancer.given)
        for _ in range(4):
            async with balanced.client() as client:
                await client.get("namespaces", "default")
        assert set(balanced.balancer.given[before:]) == {left}

    server = balanced.servers[stopping]
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: asyncio.run(status(f"{server.url}/readyz")) == 500, server)
    assert asyncio.run(status(f"{server.url}/version")) == 200
    eventually(lambda: balanced.balancer.ready == {left})
    asyncio.run(uses_the_other())
    assert server.process.poll() is None
    server.kill()
