"""A machine joins, another one is denied, and the first is revoked and deleted: the Events of a server tell it, each once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from mooring.agent.certificaterequest import NodeRequest
from mooring.api.certificates.requestrecords import DENIED
from mooring.api.certificates.requeststate import REQUESTS, with_condition
from mooring.api.mooring.certificaterevocation import node_entry
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT
from mooring.trust.bootstraptoken.restrictions import MAX_JOINS
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name
from tests.support.killable import history
from tests.support.liveserver import LiveServer, running_server
from tests.support.nodenames import Machine
from tests.support.polling import eventually

NEEDED = {
    "CertificateIssued": ("Normal", "Node", "worker"),
    "CertificateRequestDenied": ("Warning", "CertificateSigningRequest", "first"),
    "CertificateRevoked": ("Warning", "Node", "worker"),
    "MembershipEnded": ("Warning", "Node", "worker"),
}


async def told(client: ClusterClient, namespace: str = "default") -> dict[str, Obj]:
    """Return the Events of this controller by reason, as `kubectl get events` reads them."""
    events = (await client.list("events", namespace)).items
    kept = [event for event in events if event["reason"] in (*NEEDED, "TokenUsedUp", "CertificateRequestHeld")]
    assert not [reason for reason, count in Counter(event["reason"] for event in kept).items() if count > 1]
    return {event["reason"]: event for event in kept}


def test_what_happens_to_a_machine_is_told_by_events(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        token = server.create_token()
        machine = Machine(server, "worker")

        async def join(admin: ClusterClient) -> None:
            limit = {"metadata": {"annotations": {MAX_JOINS: "1"}}}
            await admin.patch("secrets", secret_name(token.id), limit, NAMESPACE)
            await machine.join(token)
            await machine.register()

        async def end(admin: ClusterClient) -> None:
            spec = {"nodeName": "worker", "reason": "keyCompromise", "message": "stolen"}
            await admin.create("certificaterevocations", {"metadata": {"name": node_entry("worker")}, "spec": spec})
            await admin.delete("nodes", "worker")

        server.run(join)
        deny_request(server, "first")
        server.run(end)
        events = eventually(lambda: complete(server), server)
        for reason, (kind, about, name) in NEEDED.items():
            involved = events[reason]["involvedObject"]
            assert (events[reason]["type"], involved["kind"], involved["name"]) == (kind, about, name)
        assert events["MembershipEnded"]["involvedObject"]["uid"] == "worker", "kubectl describe node finds it"
        issued = events["CertificateIssued"]["message"]
        assert f"node worker (system:bootstrap:{token.id}) from 127.0.0.1 was issued by" in issued
        assert "approved: AutoApproved" in issued
        assert "denied: Unknown: who is it?" in events["CertificateRequestDenied"]["message"]
        assert "stolen" in events["CertificateRevoked"]["message"]
        used_up = server.run(lambda client: told(client, NAMESPACE))["TokenUsedUp"]
        assert used_up["involvedObject"]["name"] == secret_name(token.id)
        assert token.reveal().split(".")[1] not in str((events, used_up))
        server.kill()
        server.restart()
        deny_request(server, "second")
        eventually(lambda: count_denied(server) == 2, server)
    # The second start told nothing of the first again.
    changes = asyncio.run(history(server.data_dir / "mooring.db", "/registry/events/"))
    names = Counter(change.key for change in changes)
    assert set(names.values()) == {1}
    assert sum(".issued" in name for name in names) == 1


def deny_request(server: LiveServer, name: str) -> None:
    """Deny a request for a certificate of a user, about which no controller decides."""
    made = NodeRequest(name, build_request(generate_key(), "jane"), ("client auth",), KUBE_APISERVER_CLIENT).obj()

    async def deny(admin: ClusterClient) -> None:
        obj = await admin.create(REQUESTS, made)
        await admin.update(REQUESTS, with_condition(obj, DENIED, "Unknown", "who is it?"), subresource="approval")

    server.run(deny)


def count_denied(server: LiveServer) -> int:
    events = server.run(lambda admin: admin.list("events", "default")).items
    return sum(event["reason"] == "CertificateRequestDenied" for event in events)


def complete(server: LiveServer) -> dict[str, Obj]:
    """Return the Events by reason, once all are there."""
    events = server.run(told)
    return events if events.keys() >= NEEDED.keys() else {}
