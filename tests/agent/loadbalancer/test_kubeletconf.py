"""kubelet.conf of a member whose agent runs a load balancer, with TLS peers as servers and clients that read it as kubelet does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.agent import clusterfiles, daemon
from mooring.agent.loadbalancer import LoadBalancer
from mooring.agent.pairfiles import Pair
from mooring.agent.settings import AgentSettings
from mooring.agent.state import SERVICE_NAME, NodeState
from mooring.client.cluster import connect
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.errors import ConfigError, PeerError
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.errors import EndpointDownError
from mooring.trust.kubeconfig import Cluster
from tests.support.joinplans import join_options
from tests.support.manualclock import ManualClock
from tests.support.peer import Peer, ReceivedRequest, Reply, http_peer
from tests.support.ports import free_port
from tests.support.testca import LOOPBACK, ThrowawayCA

CA = ThrowawayCA()
NAMED = CA.server(*LOOPBACK)
UNNAMED = CA.custom(
    "api.company.test",
    extensions=[
        (x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ],
)


@dataclass
class Servers:
    """API servers of one cluster, which all publish the same addresses."""

    peers: list[Peer]
    published: list[str]

    def answer(self, asked: ReceivedRequest) -> Reply:
        if asked.path != clusterinfo.PATH:
            return Reply(body=json.dumps({"path": asked.path}).encode())
        first, *others = self.published
        return Reply(body=json.dumps(clusterinfo.config_map(first, CA.certificate_pem, others=others)).encode())


@pytest.fixture
def member(tmp_path: Path) -> NodeState:
    """A machine with a certificate. Its kubelet.conf names no server yet."""
    state, made = NodeState(tmp_path), CA.node("m1")
    state.client.write_pair(Pair((made.certificate,), made.key), CA.now)
    return state


@pytest.fixture
def two(member: NodeState) -> Iterator[Servers]:
    """Two servers with certificates as Mooring and kubeadm issue them, and a member of their cluster."""
    servers = Servers([], [])
    with ExitStack() as stack:
        servers.peers = [stack.enter_context(http_peer(servers.answer, NAMED)) for _ in range(2)]
        servers.published = [one.url for one in servers.peers]
        member.write_kubeconfig([Cluster("", servers.published[0], CA.certificate_pem)])
        yield servers


async def refreshed(root: Path, balancer: LoadBalancer | None) -> NodeState:
    """Bring the files up to date as an agent does, and return them."""
    state = NodeState(root, balancer)
    pair = state.client.read_pair()
    assert pair is not None
    await clusterfiles.refresh(state, pair, SystemClock())
    return state


async def asked(state: NodeState) -> str:
    """Send one request as a kubelet does, to the cluster of the context alone. Return the path that its server saw."""
    async with connect(replace(load(str(state.kubeconfig)), others=())) as client:
        return str((await client.get_path("/api"))["path"])


def used(state: NodeState) -> str:
    return load(str(state.kubeconfig)).cluster.server


def test_a_kubelet_reaches_every_published_server_through_the_load_balancer(two: Servers, member: NodeState) -> None:
    async def run() -> None:
        async with LoadBalancer(0, (), ManualClock()) as balancer:
            state = await refreshed(member.root, balancer)
            assert used(state) == balancer.url
            assert {*balancer.servers.known} == {one.endpoint for one in two.peers}
            assert [one.server for one in state.read_clusters()] == two.published
            assert await asked(state) == "/api"

    asyncio.run(run())


def test_a_server_that_leaves_cluster_info_leaves_the_load_balancer(two: Servers, member: NodeState) -> None:
    async def run() -> None:
        async with LoadBalancer(0, (), ManualClock()) as balancer:
            await refreshed(member.root, balancer)
            two.published.pop()
            state = await refreshed(member.root, balancer)
            assert balancer.servers.known == (two.peers[0].endpoint,)
            assert [one.server for one in state.read_clusters()] == two.published
            assert used(state) == balancer.url

    asyncio.run(run())


def test_servers_without_the_name_keep_kubelet_conf_to_themselves(
    member: NodeState, caplog: pytest.LogCaptureFixture
) -> None:
    servers = Servers([], [])

    async def run() -> None:
        async with LoadBalancer(0, (), ManualClock()) as balancer:
            state = await refreshed(member.root, balancer)
            assert used(state) == servers.published[0]
            assert await asked(state) == "/api"

    with http_peer(servers.answer, UNNAMED) as peer:
        servers.published = [peer.url]
        member.write_kubeconfig([Cluster("", peer.url, CA.certificate_pem)])
        asyncio.run(run())
    (warning,) = [one for one in caplog.messages if "load balancer: kubelet.conf names a server itself" in one]
    assert f"that it is {SERVICE_NAME}: " in warning


def test_a_kubelet_does_not_trust_another_cluster_behind_the_load_balancer(two: Servers, member: NodeState) -> None:
    async def run() -> None:
        async with LoadBalancer(0, (), ManualClock()) as balancer:
            state = await refreshed(member.root, balancer)
            balancer.update([impostor.endpoint])
            with pytest.raises(PeerError):
                await asked(state)

    with http_peer(pair=ThrowawayCA("another").server(*LOOPBACK)) as impostor:
        asyncio.run(run())
    assert impostor.requests == []


def test_while_no_server_answers_kubelet_conf_stays_as_it_is(two: Servers, member: NodeState) -> None:
    async def run() -> None:
        async with LoadBalancer(0, (), ManualClock()) as balancer:
            state = await refreshed(member.root, balancer)
            gone = Cluster("", f"https://127.0.0.1:{free_port()}", CA.certificate_pem)
            state.write_kubeconfig([gone], balanced=True)
            before = state.kubeconfig.read_bytes()
            with pytest.raises(EndpointDownError):
                await refreshed(member.root, balancer)
            assert state.kubeconfig.read_bytes() == before

    asyncio.run(run())


def test_without_the_load_balancer_the_next_refresh_names_a_server(two: Servers, member: NodeState) -> None:
    async def run() -> None:
        async with LoadBalancer(0, (), ManualClock()) as balancer:
            await refreshed(member.root, balancer)
        state = await refreshed(member.root, None)
        assert used(state) == two.published[0]
        assert await asked(state) == "/api"

    asyncio.run(run())


def test_an_agent_does_not_start_on_a_port_that_is_taken(two: Servers, member: NodeState) -> None:
    before = member.kubeconfig.read_bytes()
    taken = two.peers[0].port
    more = AgentSettings(load_balancer_port=taken)
    with pytest.raises(
        ConfigError, match=f"cannot listen on 127.0.0.1:{taken}: another program .*--load-balancer-port"
    ):
        asyncio.run(daemon.run(None, join_options(member.root), more=more))
    assert member.kubeconfig.read_bytes() == before


def test_the_log_says_that_a_running_kubelet_has_to_be_restarted(
    two: Servers, member: NodeState, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with LoadBalancer(0, (), ManualClock()) as balancer:
            await refreshed(member.root, balancer)
            await refreshed(member.root, balancer)
            reports = [
                one for one in caplog.messages if one.startswith(f"load balancer: kubelet.conf names {balancer.url}")
            ]
            assert len(reports) == 1

    with caplog.at_level(logging.INFO, "mooring.agent"):
        asyncio.run(run())
