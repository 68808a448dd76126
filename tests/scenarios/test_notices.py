"""Notices of a server and of `mooring controllers` arrive signed and about the right machine, and none is forged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mooring.api.core.event import new_event
from mooring.api.mooring.certificaterevocation import node_entry
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.secret import Secret
from mooring.trust.notices import signature
from tests.support import forkserver
from tests.support.commandline import process
from tests.support.liveserver import LiveServer, running_server
from tests.support.nodenames import Machine
from tests.support.peer import Peer, ReceivedRequest, Reply, http_peer
from tests.support.polling import eventually
from tests.support.testca import ThrowawayCA

SECRET_PATH = "/s3cr3t-path?token=s3cr3t-query"
KEY = "a key that nobody guesses"


@dataclass
class Service:
    """A receiver of notices, and the flags that name it."""

    peer: Peer
    flags: tuple[str, ...]
    statuses: list[int]

    def reasons(self, machine: str) -> list[str]:
        """Return the reasons of the notices about a machine, each once, in order."""
        found = {one["id"]: one["reason"] for one in self.bodies() if one["about"]["name"] == machine}
        return list(found.values())

    def bodies(self) -> list[Obj]:
        return [json.loads(request.body) for request in tuple(self.peer.requests)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    ca, statuses = ThrowawayCA(), [200]
    (tmp_path / "service.crt").write_bytes(ca.certificate_pem)
    (tmp_path / "notify.key").write_text(KEY)
    files = ("--notify-key-file", str(tmp_path / "notify.key"), "--notify-ca-file", str(tmp_path / "service.crt"))

    def answer(asked: ReceivedRequest) -> Reply:
        return Reply(statuses[0])

    with http_peer(answer, ca.server("127.0.0.1")) as peer:
        yield Service(peer, ("--notify-url", f"{peer.url}{SECRET_PATH}", *files), statuses)


def joined(server: LiveServer, name: str) -> Machine:
    token, machine = server.create_token(), Machine(server, name)

    async def join(admin: ClusterClient) -> None:
        await machine.join(token)
        await machine.register()

    server.run(join)
    return machine


def revoke(server: LiveServer, name: str) -> None:
    async def create(admin: ClusterClient) -> None:
        spec = {"nodeName": name, "reason": "keyCompromise", "message": "stolen"}
        await admin.create("certificaterevocations", {"metadata": {"name": node_entry(name)}, "spec": spec})

    server.run(create)


def status(server: LiveServer) -> Obj:
    notices: Obj = server.run(lambda client: client.get_path("/mooring/v1/status"))["notices"]
    return notices


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_join_is_told_to_the_service(service: Service, workers: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "data", "-v", "-v", "--workers", workers, *service.flags) as server:
        machine = joined(server, "worker")

        async def forge(admin: ClusterClient) -> None:
            about = {"kind": "Node", "name": "worker", "uid": "worker"}
            forged = new_event(
                about, "Forged", "all is well", SystemClock().now(), metadata={"name": "worker.1"}, is_warning=False
            )
            async with machine.client() as client:
                await client.create("events", forged)

        server.run(forge)
        eventually(lambda: "CertificateIssued" in service.reasons("worker"), server)
        service.statuses[0] = 503
        revoke(server, "worker")
        eventually(lambda: status(server)["problem"] == "it answers 503", server)
        assert status(server) == {"host": service.peer.url, "waiting": 1, "dropped": 0, "problem": "it answers 503"}
        shown = process("status", "--kubeconfig", str(server.kubeconfig))
        assert f"; notices to {service.peer.url}, 1 waiting: it answers 503" in shown.out
        service.statuses[0] = 200
        eventually(lambda: status(server)["waiting"] == 0, server)
        assert service.reasons("worker") == ["CertificateIssued", "CertificateRevoked"], "not the Event of the machine"
        metrics = server.run(lambda client: client.read("/metrics")).decode()
    assert 'mooring_notices_total{result="sent"} 2.0' in metrics
    for request in service.peer.requests:
        headers = {name.lower(): value for name, value in request.headers.items()}
        timestamp = int(headers["webhook-timestamp"])
        signed = signature(Secret(KEY), headers["webhook-id"], timestamp, request.body)
        assert (request.path, headers["webhook-signature"]) == (SECRET_PATH, signed)
    issued = service.bodies()[0]
    assert (issued["about"], issued["cluster"]) == ({"kind": "Node", "name": "worker"}, server.url)
    assert "HTTP Request: POST" in server.log, "httpx2 logs requests at -vv"
    assert "s3cr3t" not in server.log + shown.all + (server.data_dir / "audit.log").read_text()


def test_mooring_controllers_tell_what_they_wrote(service: Service, tmp_path: Path) -> None:
    name = "identity-event-controller"
    with running_server(tmp_path / "data", f"--controllers=*,-{name}") as server:
        command = ("-m", "mooring", "controllers", "--kubeconfig", str(server.kubeconfig), "--controllers", name)
        with (tmp_path / "controllers.log").open("wb") as log:
            controllers = forkserver.Process((*command, *service.flags), stdout=log, stderr=log)
        try:
            joined(server, "worker")
            eventually(lambda: service.reasons("worker") == ["CertificateIssued"], server)
            assert service.bodies()[0]["cluster"] == server.url
        finally:
            controllers.terminate()
            assert controllers.wait() == 0
