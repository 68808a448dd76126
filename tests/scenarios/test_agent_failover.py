"""Agent of a cluster with two servers: it keeps its heartbeat and renews its certificate, whichever server is killed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from mooring.agent.join import Joined, join
from mooring.client.cluster import ClusterClient
from mooring.pki.keys import public_key_der
from mooring.secret import Secret
from tests.support import etcd, forkserver, reissue
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port

NAME = "worker-1"
BRISK = """
from mooring.agent import heartbeat
from mooring.agent.certificates import renewal
heartbeat.RENEW_SECONDS = renewal.LOOK_SECONDS = 0.2
from mooring.cli.main import main
main()
"""
"""`mooring` with short periods of the agent."""
DUE = (timedelta(minutes=-4), timedelta(seconds=25))
"""Times of a certificate that is due for renewal: more than 90 % of its lifetime have passed."""


@contextmanager
def two_servers(root: Path) -> Iterator[tuple[LiveServer, LiveServer]]:
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


@contextmanager
def agent(root: Path) -> Iterator[forkserver.Process]:
    with (root / "agent.log").open("ab") as log:
        command = ["-c", BRISK, "agent", "-v", "--root", str(root)]
        process = forkserver.Process(command, stdout=log, stderr=log, env=dict(os.environ))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def joined(server: LiveServer, root: Path) -> Joined:
    """Join by the address of one server. cluster-info names the other."""
    token = Secret(server.create_token().reveal())
    wanted = join_plan(NAME, (server.endpoint,), token, pins=(server.pin,))
    return asyncio.run(join(wanted, join_options(root=root, certificate_timeout=60.0)))


def renewed_at(server: LiveServer) -> str:
    """Return the time of the last heartbeat that a server knows."""

    async def read(client: ClusterClient) -> str:
        return str((await client.get("leases", NAME, "kube-node-lease"))["spec"]["renewTime"])

    return server.run(read)


def has_lease(server: LiveServer) -> bool:
    return bool(server.run(lambda client: client.list("leases", "kube-node-lease")).items)


def key_of(member: Joined) -> bytes:
    pair = member.state.client.read_pair()
    assert pair is not None
    return public_key_der(pair.key)


def test_an_agent_outlives_either_server(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with two_servers(tmp_path) as (one, two):
        member = joined(one, root)
        assert {address.server for address in member.clusters} == {one.url, two.url}
        with agent(root) as process:
            eventually(lambda: has_lease(one), one)

            # one of the two is the server to which the agent is connected
            for dead, alive in ((one, two), (two, one)):
                dead.kill()
                key = key_of(member)
                reissue.place(alive, member.state, *DUE)
                before = renewed_at(alive)
                eventually(lambda: renewed_at(alive) != before, alive)  # noqa: B023 - called at once
                eventually(lambda: key_of(member) != key, alive)  # noqa: B023 - called at once
                dead.restart()
            assert process.poll() is None, (root / "agent.log").read_text()
