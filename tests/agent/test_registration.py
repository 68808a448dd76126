"""Registration of a Node: decisions from the Node, its Lease and the kind of server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mooring.agent.registration import NONE, READY, TAINTED, NodeKeptError, check_keeper, choose, is_fresh
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from tests.support.manualclock import EPOCH

NOW = "2026-01-02T03:04:05Z"
OLD = "2026-01-02T02:58:25Z"  # 340 s ago
KUBELET = "kubelet is posting ready status"


def node(message: str, heartbeat: object, status: str = "True", version: str = "v1.36.2") -> Obj:
    ready = {"type": "Ready", "status": status, "message": message, "lastHeartbeatTime": heartbeat}
    return {
        "metadata": {"name": "m1"},
        "status": {"conditions": [ready], "nodeInfo": {"kubeletVersion": version}},
    }


def lease(renewed: str) -> Obj:
    return {"spec": {"renewTime": renewed, "leaseDurationSeconds": 40}}


KEPT: dict[str, tuple[Obj, Obj | None]] = {
    "a kubelet that reported just now": (node(KUBELET, NOW), None),
    "a kubelet whose network is not ready": (node("container runtime network not ready", NOW, "False"), None),
    "a kubelet that reports seldom and renews its Lease": (node(KUBELET, OLD), lease("2026-01-02T03:03:30.000000Z")),
    "a kubelet whose clock is ahead": (node(KUBELET, "2026-01-02T03:06:00Z"), None),
    "a program without a version": (node("virtual", NOW, version=""), None),
}
FREE: dict[str, tuple[Obj, Obj | None]] = {
    "a Node of this agent": (node("mooring agent is posting ready status", NOW), lease(NOW)),
    "a Node of this agent that is not ready": (node("mooring agent keeps this Node; …", NOW, "False"), lease(NOW)),
    "a kubelet that stopped": (node(KUBELET, OLD), lease(OLD)),
    "a kubelet that Kubernetes has given up": (node(KUBELET, NOW, "Unknown"), None),
    "a Node that an administrator made": ({"metadata": {"name": "m1"}}, None),
    "a heartbeat that is no time": (node(KUBELET, "yesterday"), {"spec": {}}),
    "a heartbeat that is missing": (node(KUBELET, None), {}),
}


@pytest.mark.parametrize(("known", "its_lease"), KEPT.values(), ids=KEPT)
def test_another_program_keeps_the_node(known: Obj, its_lease: Obj | None) -> None:
    with pytest.raises(NodeKeptError) as caught:
        check_keeper(known, its_lease, EPOCH)
    keeper = "kubelet v1.36.2" if known["status"]["nodeInfo"]["kubeletVersion"] else "another program"
    assert str(caught.value) == f"the Node m1 is kept by {keeper} and is left as it is"


@pytest.mark.parametrize(("known", "its_lease"), FREE.values(), ids=FREE)
def test_the_node_may_be_written(known: Obj, its_lease: Obj | None) -> None:
    check_keeper(known, its_lease, EPOCH)


def test_a_fresh_node_is_one_of_any_program() -> None:
    assert is_fresh(node("mooring agent …", NOW, "False"), EPOCH)
    assert not is_fresh(node("mooring agent …", OLD, "False"), EPOCH)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("v1.37.1+mooring-0.5.0", READY), ("v1.36.2", TAINTED), ("v1.36.2+k3s1", TAINTED), (None, TAINTED)],
)
def test_the_default_depends_on_the_server(version: str | None, expected: str) -> None:
    class Server:
        async def get_path(self, path: str) -> Obj:
            assert path == "/version"
            return {"gitVersion": version}

    server = cast(ClusterClient, Server())
    assert asyncio.run(choose(server, "")) == expected


@pytest.mark.parametrize("wanted", [NONE, TAINTED, READY])
def test_a_choice_asks_no_server(wanted: str) -> None:
    assert asyncio.run(choose(cast(Any, None), wanted)) == wanted
