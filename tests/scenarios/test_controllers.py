"""Two `mooring controllers` beside a server without controllers: the one that works is killed, and the other goes on.

Rules kept here: both run as the ServiceAccount of `mooring controllers manifests`, with exactly the rights that it prints. The
store of the server shows that nothing was done twice.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from mooring.client.cluster import ClusterClient, connect
from mooring.clock import SystemClock, rfc3339
from mooring.controllers.standalonetable import LEASE, STANDALONE
from mooring.pki.keys import generate_key
from mooring.secret import Secret
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, Selected
from tests.kubeadm.peers import node_request
from tests.support.killable import history
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.standalonecontrollers import (
    NAMESPACE,
    PLURALS,
    REQUESTS,
    StandaloneProcesses,
    account_token,
    printed,
    write_kubeconfig,
)

OFF = ",".join(f"-{name}" for name in STANDALONE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server without these controllers, and with what the manifests print."""
    server = start_server(tmp_path / "data", f"--controllers={OFF}")
    yield server
    server.stop()


async def install(client: ClusterClient) -> str:
    """Create what the manifests print, apart from kinds that only Kubernetes has. Return a token of the ServiceAccount."""
    for obj in printed():
        if obj["kind"] in PLURALS:
            await client.create(PLURALS[obj["kind"]], obj)
    return await account_token(client)


@pytest.fixture
def controllers(server: LiveServer, tmp_path: Path) -> Iterator[StandaloneProcesses]:
    user = KubeconfigUser("account", token=Secret(server.run(install).encode()))
    kubeconfig = write_kubeconfig(tmp_path / "account.conf", server.url, server.ca_pem, user)
    pki = server.data_dir / "pki"
    processes = StandaloneProcesses(kubeconfig, server.client, (pki / "ca.crt", pki / "ca.key"))
    yield processes
    processes.kill()


def test_two_processes_with_the_printed_rights_and_the_death_of_the_one_that_works(
    server: LiveServer, controllers: StandaloneProcesses
) -> None:
    first = controllers.start()
    eventually(lambda: controllers.leads(first), server)
    second = controllers.start()
    token = server.create_token()  # waits for the signature of cluster-info
    machine = Selected(
        Cluster("", server.url, server.ca_pem), KubeconfigUser("", token=Secret(token.reveal().encode())), ""
    )

    async def request(name: str) -> None:
        async with connect(machine) as client:
            await client.create(REQUESTS, {**node_request(name, generate_key(), name=name)})

    asyncio.run(request("m1"))
    eventually(lambda: controllers.issued() == {"m1"}, server)
    asyncio.run(request("m2"))
    first.kill()  # whatever it did about m2 by now
    first.wait()
    asyncio.run(request("m3"))
    eventually(lambda: controllers.issued() == {"m1", "m2", "m3"}, server)
    assert controllers.leads(second)

    eventually(lambda: server.run(machines_with_events) == ["m1", "m2", "m3"], server)
    server.run(create_what_is_due)
    eventually(lambda: not server.run(what_is_due), server)
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    assert controllers.holder() == "", "a clean stop releases the Lease"
    assert "forbidden" not in controllers.logs
    assert "does not run" not in controllers.logs

    assert server.stop() == 0
    prefix = f"/registry/{REQUESTS}/"
    database = server.data_dir / "mooring.db"
    writes = Counter(change.key.removeprefix(prefix) for change in asyncio.run(history(database, prefix)))
    assert writes == {"m1": 3, "m2": 3, "m3": 3}, "created, approved and signed, each once"
    (lease,) = {change.key for change in asyncio.run(history(database, "/registry/leases/" + NAMESPACE))}
    assert lease.endswith(f"/{LEASE}")


async def machines_with_events(client: ClusterClient) -> list[str]:
    """Return the machines of the Events about certificates. The process that died may have written some of them."""
    events = (await client.list("events", "default")).items
    assert not [event for event in events if "127.0.0.1" in event["message"]], (
        "a requester could have written the address"
    )
    return sorted(event["involvedObject"]["name"] for event in events if event["reason"] == "CertificateIssued")


async def create_what_is_due(client: ClusterClient) -> None:
    """Create an expired token, and a Node whose taints are missing."""
    past = rfc3339(SystemClock().now() - timedelta(hours=1))
    data = {"token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": past}
    secret = {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": data,
    }
    await client.create("secrets", secret)
    condition = {"type": "Ready", "status": "False", "lastHeartbeatTime": past, "lastTransitionTime": past}
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "m1"}, "status": {"conditions": [condition]}}
    await client.create("nodes", node)


async def what_is_due(client: ClusterClient) -> list[str]:
    """Return what a controller has still to do."""
    secrets = await client.list("secrets", "kube-system", field_selector="metadata.name=bootstrap-token-abcdef")
    nodes = await client.list("nodes")
    untainted = [one["metadata"]["name"] for one in nodes.items if len(one["spec"].get("taints") or ()) < 2]
    return [*(one["metadata"]["name"] for one in secrets.items), *untainted]
