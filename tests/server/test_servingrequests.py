"""Requests of kubelets for serving certificates whose machine ends while they wait, in a whole server with its controllers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any

import pytest

from mooring.identity import NODES
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from mooring.server.transport.tlsconnection import TlsConnection
from tests.server.test_k3scertificates import controllers_of
from tests.server.test_requester import CSRS, approve
from tests.server.test_revocation import revoke, serial_number
from tests.server.test_unreadable import damage, member
from tests.support.manualclock import settle
from tests.support.serverroom import Server, open_server
from tests.support.testca import Pair

NODE = "/api/v1/nodes/n1"
MERGE = "application/merge-patch+json"
ADDRESS = "192.0.2.77"
Scene = Callable[[Server, Pair, TlsConnection], Awaitable[None]]
End = Callable[[Server, Pair], Awaitable[None]]


def serving(test: Scene) -> None:
    """Run a test with a server, its controllers, and the certificate of the node n1."""

    async def run() -> None:
        async with open_server() as server, controllers_of(server):
            pair, via = await member(server, "n1")
            await test(server, pair, via)

    asyncio.run(run())


async def request(
    server: Server, via: TlsConnection, name: str = "fresh", node: str = "n1", address: str = ADDRESS
) -> None:
    pem = build_request(generate_key(), f"system:node:{node}", (NODES,), dns=(node,), ips=(ip_address(address),))
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": "kubernetes.io/kubelet-serving",
        "usages": ["digital signature", "server auth"],
    }
    made = await server.post(CSRS, {"metadata": {"name": name}, "spec": spec}, via=via)
    assert made.status == 201, made.text
    await turns()


async def report(server: Server, node: str = "n1", address: str = ADDRESS) -> None:
    """Let a Node have an address."""
    status = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
    reply = await server.call("PATCH", f"/api/v1/nodes/{node}/status", body=status, content_type=MERGE)
    assert reply.status == 200, reply.text
    await turns()


async def turns() -> None:
    for _ in range(5):
        await settle()


async def outcome(server: Server, name: str = "fresh") -> str:
    """Return the reasons of a denial and a failure, "issued", or the reason for which the request waits."""
    status: dict[str, Any] = (await server.get(f"{CSRS}/{name}")).obj["status"]
    if status.get("certificate"):
        return "issued"
    decided = [one for one in status["conditions"] if one["type"] in ("Denied", "Failed")]
    return ",".join(dict.fromkeys(one["reason"] for one in decided or status["conditions"]))


async def nothing(server: Server, pair: Pair) -> None:
    """End nothing."""


async def delete_node(server: Server, pair: Pair) -> None:
    assert (await server.call("DELETE", NODE)).status == 200


async def replace_node(server: Server, pair: Pair) -> None:
    await delete_node(server, pair)
    assert (await server.post("/api/v1/nodes", {"metadata": {"name": "n1"}})).status == 201


async def revoke_name(server: Server, pair: Pair) -> None:
    await revoke(server, nodeName="n1")


async def revoke_serial_number(server: Server, pair: Pair) -> None:
    await revoke(server, **serial_number(pair))


async def revoke_key(server: Server, pair: Pair) -> None:
    await revoke(server, publicKey=f"sha256:{public_key_fingerprint(pair.key)}")


ENDS: dict[str, tuple[End, str]] = {
    "nothing": (nothing, "issued"),
    "another Node has the name": (replace_node, "RequesterDeleted"),
    "the node is revoked": (revoke_name, "NodeRevoked"),
    "the serial number of its client certificate is revoked": (revoke_serial_number, "RequesterRevoked"),
    "the key of its client certificate is revoked": (revoke_key, "RequesterRevoked"),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_machine_that_ended_while_its_request_was_held_gets_no_serving_certificate(case: str) -> None:
    end, expected = ENDS[case]

    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        await request(server, via)
        assert await outcome(server) == "AddressNotOfNode"
        await server.clock.advance(5)
        await end(server, pair)
        await turns()
        await report(server)
        await server.clock.advance(31)
        await turns()
        assert await outcome(server) == expected

    serving(test)


@pytest.mark.parametrize("case", ENDS)
def test_no_person_approves_a_serving_certificate_for_a_machine_that_ended(case: str) -> None:
    end, expected = ENDS[case]

    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        await request(server, via)
        await server.clock.advance(5)
        await end(server, pair)
        if await outcome(server) == "AddressNotOfNode":
            await approve(server)
        await server.clock.advance(1)
        assert await outcome(server) == expected

    serving(test)


@pytest.mark.parametrize("case", ["the Node is deleted", *ENDS])
def test_a_machine_that_ends_between_signature_and_publication_gets_no_serving_certificate(case: str) -> None:
    end, expected = ENDS.get(case, (delete_node, "RequesterDeleted"))

    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        await report(server)
        await server.clock.advance(5)
        reconciler, record = server.assembly.controllers.reconciler, server.assembly.controllers.reconciler._record

        async def end_meanwhile(*entry: Any) -> None:
            await record(*entry)
            await end(server, pair)
            await settle()

        reconciler._record = end_meanwhile
        await request(server, via)
        await server.clock.advance(1)
        await turns()
        assert await outcome(server) == expected

    serving(test)


def test_a_machine_whose_membership_cannot_be_read_waits_for_its_serving_certificate() -> None:
    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        await request(server, via)
        await damage(server, "nodeidentities", "n1")
        await report(server)
        await server.clock.advance(31)
        await turns()
        assert await outcome(server) == "RequesterUnknown"

    serving(test)


def test_machines_that_exchange_their_addresses_get_certificates_for_them() -> None:
    """Each has left its former address when it asks for the other's, whichever asks first."""

    async def test(server: Server, pair: Pair, via: TlsConnection) -> None:
        _, other = await member(server, "n2")
        ways, addresses = {"n1": via, "n2": other}, (ADDRESS, "192.0.2.78")
        for turn, order in (("before", (0, 1)), ("after", (1, 0))):
            for node, place in zip(ways, order, strict=True):
                await report(server, node, addresses[place])
            for node, place in zip(ways, order, strict=True):
                await request(server, ways[node], f"{node}-{turn}", node, addresses[place])
            await server.clock.advance(31)
            await turns()
            assert [await outcome(server, f"{node}-{turn}") for node in ways] == ["issued", "issued"]

    serving(test)
