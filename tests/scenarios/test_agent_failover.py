"""Agent of a cluster with two servers, of which either is killed: heartbeat, renewals, and the load balancer for a kubelet."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from mooring.agent.join import Joined, join
from mooring.agent.state import NodeState
from mooring.client.cluster import ClusterClient, connect
from mooring.client.kubeconfigfiles import load
from mooring.pki.keys import public_key_der
from mooring.secret import Secret
from tests.support import etcd, forkserver, reissue
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port

BRISK = """
from mooring.agent import heartbeat
from mooring.agent import renewal
heartbeat.RENEW_SECONDS = renewal.LOOK_SECONDS = 0.2
from mooring.cli.main import main
main()
"""
"""`mooring` with short periods of the agent."""
DUE = (timedelta(minutes=-4), timedelta(seconds=25))
"""Times of a certificate that is due for renewal: more than 90 % of its lifetime have passed."""

_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """Return a name that no earlier test, and no earlier try of this one, has taken."""
    return f"worker-{next(_numbers)}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, LiveServer]]:
    root = tmp_path_factory.mktemp("two")
    token = root / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    ports = (free_port(), free_port())
    published = [word for port in ports for word in ("--control-plane-endpoint", f"127.0.0.1:{port}")]
    store = ["--storage", f"sqlite:{root}/mooring.db"]
    if not etcd.MISSING:
        store = ["--etcd-servers", etcd.shared().endpoints, "--etcd-prefix", etcd.fresh_prefix()]
    flags = (*store, "--server-token-file", str(token), *published)
    with ThreadPoolExecutor() as pool:
        starts = [pool.submit(start_server, root / f"server-{port}", *flags, port=port) for port in ports]
        one, two = (start.result() for start in starts)
    try:
        yield one, two
    finally:
        one.kill()
        two.kill()


@pytest.fixture
def servers(cluster: tuple[LiveServer, LiveServer]) -> tuple[LiveServer, LiveServer]:
    """Two servers that run, whatever a failed test left."""
    for server in cluster:
        if server.process.poll() is not None:
            server.restart()
    return cluster


@contextmanager
def agent(root: Path, *flags: str) -> Iterator[forkserver.Process]:
    with (root / "agent.log").open("ab") as log:
        command = ["-c", BRISK, "agent", "-v", "--root", str(root), *flags]
        process = forkserver.Process(command, stdout=log, stderr=log, env=dict(os.environ))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def joined(server: LiveServer, name: str, root: Path) -> Joined:
    """Join by the address of one server. cluster-info names the other."""
    token = Secret(server.create_token().reveal())
    wanted = join_plan(name, (server.endpoint,), token, pins=(server.pin,))
    return asyncio.run(join(wanted, join_options(root=root, certificate_timeout=60.0)))


def renewed_at(server: LiveServer, name: str) -> str:
    """Return the time of the last heartbeat that a server knows."""

    async def read(client: ClusterClient) -> str:
        return str((await client.get("leases", name, "kube-node-lease"))["spec"]["renewTime"])

    return server.run(read)


def has_lease(server: LiveServer, name: str) -> bool:
    leases = server.run(lambda client: client.list("leases", "kube-node-lease")).items
    return name in {one["metadata"]["name"] for one in leases}


def used(state: NodeState) -> str:
    """Return the address that a kubelet uses."""
    return load(str(state.kubeconfig)).cluster.server


def node_as_kubelet(state: NodeState, name: str) -> str:
    """Return the name of the Node, read as a kubelet does: through the cluster of the context alone."""

    async def read() -> str:
        async with connect(replace(load(str(state.kubeconfig)), others=())) as client:
            return str((await client.get("nodes", name))["metadata"]["name"])

    return asyncio.run(read())


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def key_of(member: Joined) -> bytes:
    pair = member.files.client.read_pair()
    assert pair is not None
    return public_key_der(pair.key)


def test_an_agent_outlives_either_server(servers: tuple[LiveServer, LiveServer], name: str, tmp_path: Path) -> None:
    one, two = servers
    member = joined(one, name, tmp_path)
    assert {address.server for address in member.clusters} == {one.url, two.url}
    with agent(tmp_path) as process:
        eventually(lambda: has_lease(one, name), one)

        # one of the two is the server to which the agent is connected
        for dead, alive in ((one, two), (two, one)):
            dead.kill()
            key = key_of(member)
            reissue.place(alive, member.files, *DUE)
            before = renewed_at(alive, name)
            eventually(lambda: renewed_at(alive, name) != before, alive)  # noqa: B023 - called at once
            eventually(lambda: key_of(member) != key, alive)  # noqa: B023 - called at once
            dead.restart()
        assert process.poll() is None, (tmp_path / "agent.log").read_text()


def test_a_kubelet_reaches_the_cluster_through_the_load_balancer_whichever_server_is_killed(
    servers: tuple[LiveServer, LiveServer], name: str, tmp_path: Path
) -> None:
    one, two = servers
    state, port = NodeState(tmp_path), free_port()
    token = one.create_token().reveal()
    flags = (one.endpoint, "--node-name", name, "--token", token, "--discovery-token-ca-cert-hash", one.pin)
    with agent(tmp_path, *flags, "--load-balancer-port", str(port)) as process:
        eventually(lambda: (tmp_path / "agent.log").read_text().count("[node]") or process.poll() is not None, one)
        assert used(state) == f"https://127.0.0.1:{port}", (tmp_path / "agent.log").read_text()
        for dead, alive in ((one, two), (two, one)):
            dead.kill()
            assert node_as_kubelet(state, name) == name, alive.log
            dead.restart()
    assert {found.server for found in state.read_clusters()} == {one.url, two.url}
    with agent(tmp_path, "--load-balancer-port", str(port)):
        eventually(lambda: is_open(port))
        assert node_as_kubelet(state, name) == name, "a restart needs neither the addresses nor the token"
    with agent(tmp_path):
        eventually(lambda: used(state) in (one.url, two.url), one)
        assert node_as_kubelet(state, name) == name
