"""Requests for certificates whose requester ends while they wait, in a whole server with its controllers."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.api.certificates.requestrecords import KNOWN_REVOCATIONS, REQUESTER_CERTIFICATE
from mooring.identity import MASTERS, NODES
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from mooring.server.transport.tlsconnection import TlsConnection
from tests.server.test_k3scertificates import controllers_of
from tests.server.test_revocation import revoke, serial_number
from tests.support.manualclock import settle
from tests.support.serverroom import Server, connection, open_server
from tests.support.testca import Pair

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT = "kubernetes.io/kube-apiserver-client"
JOINS = {
    "metadata": {"name": "joins"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:bootstrap:abcdef"}],
}


def csr(name: str = "fresh", **metadata: Any) -> Any:
    pem = build_request(generate_key(), "jane", [])
    return {
        "metadata": {"name": name, **metadata},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": CLIENT,
            "usages": ["digital signature", "client auth"],
        },
    }


async def approve(server: Server, name: str = "fresh") -> None:
    obj = (await server.get(f"{CSRS}/{name}")).obj
    obj["status"]["conditions"] = [{"type": "Approved", "status": "True", "reason": "ByHand", "message": "ok"}]
    reply = await server.call("PUT", f"{CSRS}/{name}/approval", body=obj)
    assert reply.status == 200, reply.text
    for _ in range(5):
        await settle()


async def outcome(server: Server, name: str = "fresh") -> str:
    """Return the reason of the failure, or "issued"."""
    status = (await server.get(f"{CSRS}/{name}")).obj["status"]
    if status.get("certificate"):
        return "issued"
    return ",".join(one["reason"] for one in status["conditions"] if one["type"] == "Failed")


def in_server_with_controllers(test: Callable[[Server, Pair, TlsConnection], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_server() as server, controllers_of(server):
            pair = server.ca.client("jane", MASTERS)
            await test(server, pair, connection([pair.der]))

    asyncio.run(run())


def test_the_certificate_of_the_requester_is_recorded_and_no_client_writes_it() -> None:
    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        made = await server.post(CSRS, csr(annotations={REQUESTER_CERTIFICATE: "{}"}), via=via)
        record = json.loads(made.obj["metadata"]["annotations"][REQUESTER_CERTIFICATE])
        assert record["serialNumber"] == f"{pair.certificate.serial_number:x}"
        assert record["publicKey"] == f"sha256:{public_key_fingerprint(pair.key)}"
        changed = await server.call(
            "PATCH",
            f"{CSRS}/fresh",
            body={"metadata": {"annotations": {REQUESTER_CERTIFICATE: None}}},
            content_type="application/merge-patch+json",
        )
        assert changed.obj["metadata"]["annotations"][REQUESTER_CERTIFICATE] == json.dumps(
            record, separators=(",", ":")
        )
        token = await server.bootstrap_token()
        await server.create("clusterrolebindings", JOINS)
        joining = await server.post(CSRS, csr("join", annotations={REQUESTER_CERTIFICATE: "{}"}), token=token)
        assert joining.status == 201, joining.text
        assert (
            "annotations" not in joining.obj["metadata"]
            or REQUESTER_CERTIFICATE not in (joining.obj["metadata"]["annotations"])
        )

    in_server_with_controllers(test)


@pytest.mark.parametrize("way", ["serial number", "key", "nothing"])
def test_a_request_with_another_key_dies_with_the_certificate_that_made_it(way: str) -> None:
    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        assert (await server.post(CSRS, csr(), via=via)).status == 201
        if way == "serial number":
            await revoke(server, **serial_number(pair))
        elif way == "key":
            await revoke(server, publicKey=f"sha256:{public_key_fingerprint(pair.key)}")
        await approve(server)
        assert await outcome(server) == ("issued" if way == "nothing" else "RequesterRevoked")

    in_server_with_controllers(test)


def node_request(name: str) -> Any:
    pem = build_request(generate_key(), "system:node:n1", (NODES,))
    made = csr(name, annotations={KNOWN_REVOCATIONS: "999999"})
    made["spec"] |= {
        "request": base64.b64encode(pem).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
    }
    return made


def test_a_request_that_a_clock_made_in_the_future_is_older_than_a_later_revocation_of_its_node() -> None:
    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        now = server.clock.now()
        server.clock.set(now + timedelta(hours=1))
        made = await server.post(CSRS, node_request("ahead"), via=via)
        assert made.status == 201, made.text
        assert made.obj["metadata"]["annotations"][KNOWN_REVOCATIONS] != "999999"
        server.clock.set(now + timedelta(minutes=1))
        await revoke(server, nodeName="n1")
        await approve(server, "ahead")
        assert await outcome(server, "ahead") == "NodeRevoked"
        server.clock.set(now + timedelta(minutes=2))
        assert (await server.post(CSRS, node_request("again"), via=via)).status == 201
        await approve(server, "again")
        assert await outcome(server, "again") == "issued"

    in_server_with_controllers(test)


def test_an_impersonator_that_is_revoked_takes_its_requests_along() -> None:
    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        assert (
            await server.post(
                CSRS, csr(), via=via, headers=[("Impersonate-User", "joe"), ("Impersonate-Group", MASTERS)]
            )
        ).status == 201
        await revoke(server, **serial_number(pair))
        await approve(server)
        assert await outcome(server) == "RequesterRevoked"

    in_server_with_controllers(test)


def test_the_request_of_a_deleted_machine_is_not_signed() -> None:
    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        node = connection([server.ca.client("system:node:n1", NODES).der])
        await server.create("nodes", {"metadata": {"name": "n1"}})
        made = await server.post(CSRS, csr(), via=node)
        assert made.status == 201, made.text
        assert (await server.call("DELETE", "/api/v1/nodes/n1")).status == 200
        await approve(server)
        assert await outcome(server) == "RequesterDeleted"

    in_server_with_controllers(test)


def test_a_revocation_between_signature_and_publication_is_in_time() -> None:
    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        assert (await server.post(CSRS, csr(), via=via)).status == 201
        reconciler, record = server.assembly.controllers.reconciler, server.assembly.controllers.reconciler._record

        async def revoke_meanwhile(entry: Any, fresh_key: bool) -> None:
            await record(entry, fresh_key)
            await revoke(server, **serial_number(pair))

        reconciler._record = revoke_meanwhile
        await approve(server)
        await server.clock.advance(1)
        assert await outcome(server) == "RequesterRevoked"

    in_server_with_controllers(test)


FRESH_KEYS = "apiVersion: mooring.dev/v1alpha1\nkind: SigningPolicy\nsigners:\n- name: %s\n  rules: [{name: one, freshKey: true}]\n"


def test_of_requests_approved_at_one_moment_one_gets_a_certificate_for_a_fresh_key(tmp_path: Path) -> None:
    async def run() -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text(FRESH_KEYS % CLIENT)
        async with open_server(cluster_signing_policy_file=str(policy)) as server, controllers_of(server):
            names = [f"r{number}" for number in range(6)]
            reconciler, record, together = (
                server.assembly.controllers.reconciler,
                server.assembly.controllers.reconciler._record,
                asyncio.Barrier(6),
            )

            async def at_one_moment(*entry: Any) -> None:
                await together.wait()
                await record(*entry)

            reconciler._record = at_one_moment
            shared = csr()["spec"]
            for name in names:
                assert (await server.post(CSRS, {"metadata": {"name": name}, "spec": shared})).status == 201
            await asyncio.gather(*(approve(server, name) for name in names))
            await server.clock.advance(1)
            found = [await outcome(server, name) for name in names]
            assert (found.count("issued"), found.count("SigningPolicy")) == (1, 5)
            reconciler._record = record
            for name in names:
                assert (await server.call("DELETE", f"{CSRS}/{name}")).status == 200
            assert (await server.post(CSRS, {"metadata": {"name": "later"}, "spec": shared})).status == 201
            await approve(server, "later")
            assert await outcome(server, "later") == "SigningPolicy", "the issuance log knows the key"

    asyncio.run(run())
