"""Certificate request of a node: kubelet's name, reuse of an earlier request, and the wait."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from contextlib import suppress
from pathlib import Path

import pytest

from mooring.agent import certificaterequest
from mooring.agent.join import JoinOptions, join
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import ConflictError
from mooring.pki.keys import generate_key, public_key_der
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery.fetch import Polling
from mooring.trust.joinconfiguration import JoinPlan
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer
from tests.support.slowkeys import rsa_key


def test_the_name_is_the_digest_that_kubelet_computes() -> None:
    key = generate_key()
    made = certificaterequest.node_request(key, "m1")

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=") + b"|"

    words = (b"system:node:m1", b"system:nodes", b"digital signature", b"client auth")
    digest = hashlib.new("sha512_256", part(public_key_der(key)) + b"".join(map(part, words))).digest()
    assert made.name == "node-csr-" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert made.name == certificaterequest.node_request(key, "m1").name
    assert made.name != certificaterequest.node_request(key, "m2").name


def test_rsa_keys_ask_for_key_encipherment_too() -> None:
    assert certificaterequest.node_request(rsa_key(2048), "m1").usages == (
        "digital signature",
        "key encipherment",
        "client auth",
    )


def plan(server: LiveServer, name: str) -> JoinPlan:
    """Return a join with a token whose group may send requests, but is not approved automatically."""
    token = server.create_token(groups=("system:bootstrappers:manual",))
    return join_plan(name, (server.endpoint,), Secret(token.reveal()), pins=(server.pin,))


def options(root: Path, timeout: float = 30.0) -> JoinOptions:
    return join_options(root=root, polling=Polling(attempts=1), certificate_timeout=timeout)


def decided(server: LiveServer, name: str, kind: str, message: str = "", reason: str = "Tested") -> None:
    async def decide(client: ClusterClient) -> Obj:
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        while True:
            obj = await client.get(certificaterequest.PLURAL, name)
            status = {**obj.get("status", {}), "conditions": [condition]}
            with suppress(ConflictError):  # a controller writes to it as well
                return await client.update(certificaterequest.PLURAL, {**obj, "status": status}, subresource="approval")

    server.run(decide)


def failure(wanted: JoinPlan, given: JoinOptions) -> str:
    with pytest.raises(JoinError) as caught:
        asyncio.run(join(wanted, given))
    return str(caught.value)


def pending(root: Path, node: str) -> certificaterequest.NodeRequest:
    key = NodeState(root).read_pending_key()
    assert key is not None
    return certificaterequest.node_request(key, node)


def test_an_unapproved_request_says_how_to_approve_it_and_a_second_run_goes_on_with_it(
    manual_approval: LiveServer, tmp_path: Path
) -> None:
    wanted = plan(manual_approval, "slow")
    message = failure(wanted, options(tmp_path, 0.2))
    name = pending(tmp_path, "slow").name
    assert message.startswith(f"join failed at step wait: the request {name} was not approved within 0.2 s")
    assert message.endswith(
        f"; approve it with `mooring csr approve {name}` or `kubectl certificate approve {name}`, then join again: "
        "it goes on with the same request"
    )
    decided(manual_approval, name, "Approved")
    joined = asyncio.run(join(wanted, options(tmp_path)))
    assert joined.request_name == name
    assert not NodeState(tmp_path).bootstrap.exists()


def test_a_denied_request_is_told_with_its_reason_and_joining_again_asks_anew(
    manual_approval: LiveServer, tmp_path: Path
) -> None:
    wanted = plan(manual_approval, "denied")
    failure(wanted, options(tmp_path, 0.1))
    name = pending(tmp_path, "denied").name
    decided(manual_approval, name, "Denied", "not this machine")
    assert failure(wanted, options(tmp_path)) == (
        f"join failed at step wait: the request {name} was denied (Tested: not this machine)"
    )
    assert NodeState(tmp_path).read_pending_key() is None
    assert not NodeState(tmp_path).bootstrap.exists()
    failure(wanted, options(tmp_path, 0.1))
    assert pending(tmp_path, "denied").name != name


def as_joiner(server: LiveServer, token: BootstrapToken) -> ClusterClient:
    cluster = Cluster("", server.url, server.ca_pem)
    return ClusterClient(cluster, KubeconfigUser("joiner", token=Secret(token.reveal())), SystemClock())


def test_a_deleted_request_is_told(manual_approval: LiveServer) -> None:
    token = manual_approval.create_token(groups=("system:bootstrappers:manual",))

    async def run() -> str:
        async with manual_approval.client() as admin, as_joiner(manual_approval, token) as client:
            key = generate_key()
            obj, _ = await certificaterequest.send_request(
                client, certificaterequest.node_request(key, "gone"), key, SystemClock().now()
            )
            waiting = asyncio.create_task(certificaterequest.wait(client, obj, 30.0))
            await asyncio.sleep(0)
            await admin.delete(certificaterequest.PLURAL, obj["metadata"]["name"])
            with pytest.raises(certificaterequest.RequestEndedError) as caught:
                await waiting
            return str(caught.value)

    assert "was deleted; join again to make a new one" in asyncio.run(run())


def test_a_request_of_our_name_that_is_not_ours_is_not_taken_up(manual_approval: LiveServer) -> None:
    async def run() -> str:
        async with manual_approval.client() as client:
            key, other = generate_key(), generate_key()
            made = certificaterequest.node_request(key, "stolen")
            theirs = build_request(other, "system:node:stolen", ("system:nodes",))
            await client.create(
                certificaterequest.PLURAL, certificaterequest.NodeRequest(made.name, theirs, made.usages).obj()
            )
            with pytest.raises(certificaterequest.ForeignRequestError) as caught:
                await certificaterequest.send_request(client, made, key, SystemClock().now())
            return str(caught.value)

    assert asyncio.run(run()).endswith("exists and cannot be taken up: it was made with another key")
