"""What an agent of k3s requests in its first hour is answered, by the certificates of its join.

Rules kept here (docs/protocol/k3s.md#rights-of-an-agent): requests and times are those of the vector k3s/firsthour.json. The agent
ends itself when a right is missing for 15 minutes, so that each answer has the code that it goes on with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mooring.pki.keys import generate_key
from mooring.server.transport.tlsconnection import TlsConnection
from tests.server.test_k3scertificates import (
    CONTROLLER,
    HERE,
    PROXY,
    SERVING,
    leaf,
    member,
    of_node,
    post,
    supervised,
)
from tests.support.manualclock import settle
from tests.support.serverroom import Server, Stream, connection

RECORDED = json.loads((Path(__file__).parents[1] / "vectors/k3s/firsthour.json").read_text())
NODE = RECORDED["node"]
HOUR = 3600
REQUESTS: list[dict[str, Any]] = RECORDED["requests"]


async def joined(server: Server, name: str) -> dict[str, TlsConnection]:
    """Join as an agent does. Return its connections by the certificate that they present."""
    assert (await post(server, SERVING, node=of_node(name), key=generate_key())).status == 200
    kubelet = await member(server, name, key=generate_key())
    found = {"kubelet": kubelet}
    for user, path in (("proxy", PROXY), ("controller", CONTROLLER)):
        certificate = leaf(await post(server, path, node={}, via=kubelet, key=generate_key()))
        found[user] = connection([certificate.der], source=HERE)
    return found


def moments() -> list[tuple[int, dict[str, Any]]]:
    """Return every request of the hour with its second, in order."""
    found = [(at, request) for request in REQUESTS for at in range(request["at"], HOUR, request.get("every", HOUR))]
    return sorted(found, key=lambda moment: moment[0])


def has(answer: Any, expected: Any) -> bool:
    """Return whether an answer has the expected parts."""
    if isinstance(expected, dict):
        return isinstance(answer, dict) and all(has(answer.get(key), value) for key, value in expected.items())
    return bool(answer == expected)


@supervised()
async def test_an_agent_gets_what_it_requests_in_its_first_hour(server: Server) -> None:
    users, second = await joined(server, NODE), 0
    streams: dict[int, Stream] = {}
    for at, request in moments():
        await server.clock.advance(float(at - second))
        second = at
        via, target = users[request["user"]], request["target"]
        if request["method"] == "WATCH":
            if before := streams.pop(id(request), None):
                await before.end()
            streams[id(request)] = await server.follow(target, via=via)
            continue
        more = {"content_type": request["contentType"]} if "contentType" in request else {}
        reply = await server.call(request["method"], target, body=request.get("body"), via=via, **more)
        assert reply.status == request["status"], (request["part"], reply.text)
        assert "answer" not in request or has(reply.obj, request["answer"]), (request["part"], reply.text)
    await settle()
    assert not [stream for stream in streams.values() if stream.ended]
    for stream in streams.values():
        await stream.end()


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, "modify metadata.labels"),
        ({"metadata": {"finalizers": ["a.example/b"]}}, "modify metadata.finalizers"),
        ({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.99"}]}}, "modify status.addresses"),
    ],
    ids=["a label", "a finalizer", "an address"],
)
def test_the_right_to_patch_the_status_is_no_more_than_that(patch: dict[str, Any], message: str) -> None:
    @supervised()
    async def scenario(server: Server) -> None:
        users = await joined(server, NODE)
        await server.create("nodes", {"metadata": {"name": NODE}})
        strategic = {"content_type": "application/strategic-merge-patch+json", "via": users["controller"]}
        refused = await server.call("PATCH", f"/api/v1/nodes/{NODE}/status", body=patch, **strategic)
        assert (refused.status, message in refused.message) == (403, True), refused.text

    scenario()


@supervised()
async def test_the_node_of_another_machine_is_refused_and_ends_with_the_membership(server: Server) -> None:
    users, others = await joined(server, NODE), await joined(server, "n2")
    for name in (NODE, "n2"):
        await server.create("nodes", {"metadata": {"name": name}})
    patch = {"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.1"}}}
    strategic = {"content_type": "application/strategic-merge-patch+json", "body": patch}
    assert (
        await server.call("PATCH", f"/api/v1/nodes/{NODE}/status", via=users["controller"], **strategic)
    ).status == 200
    refused = await server.call("PATCH", f"/api/v1/nodes/{NODE}/status", via=others["controller"], **strategic)
    assert refused.status == 403
    assert f'node "n2" is not allowed to modify node "{NODE}"' in refused.message
    await server.delete("nodes", NODE)
    assert (await server.get(f"/api/v1/nodes/{NODE}", via=users["controller"])).status == 401


@supervised()
async def test_a_name_that_is_denied_is_400_because_403_blames_the_password(server: Server) -> None:
    refused = await post(server, SERVING, node=of_node("localhost"), key=generate_key())
    assert refused.status == 400
    assert "was refused: " in refused.message
