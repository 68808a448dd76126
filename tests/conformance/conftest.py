"""Fixtures of every upstream e2e test (test/e2e/framework).

Source: docs/protocol/e2e-tests.md.

Rules kept here: tests run with a client for each wire form of client-go; the test's namespace is created, awaited and deleted as
in the framework.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from mooring.apimachinery.schema import Obj
from tests.support.liveserver import LiveServer
from tests.support.typedclient import DYNAMIC, TYPED, WIRES, Client

NODE = "conformance-node"


def unique(base: str) -> str:
    return f"{base}-{secrets.token_hex(4)}"


def framework_namespace(client: Client, base: str) -> str:
    """Create a namespace as the framework does, and wait for its default ServiceAccount and kube-root-ca.crt."""
    labels = {
        "e2e-framework": base,
        "e2e-run": "conformance",
        "pod-security.kubernetes.io/enforce": "restricted",
    }
    made = client.create("namespaces", "", {"metadata": {"name": unique(base), "labels": labels}})
    name = str(made["metadata"]["name"])
    client.await_object("serviceaccounts", name, "default")
    client.await_object("configmaps", name, "kube-root-ca.crt")
    return name


@pytest.fixture(params=list(WIRES.values()), ids=list(WIRES))
def client(request: pytest.FixtureRequest, live_server: LiveServer) -> Iterator[Client]:
    """The administrator's client, in each wire form."""
    client = Client(live_server, request.param)
    yield client
    client.close()


@pytest.fixture
def dynamic(live_server: LiveServer) -> Iterator[Client]:
    """The administrator's dynamic client: JSON."""
    client = Client(live_server, DYNAMIC)
    yield client
    client.close()


@pytest.fixture
def typed(live_server: LiveServer) -> Iterator[Client]:
    """The administrator's typed client, as in e2e."""
    client = Client(live_server, TYPED)
    yield client
    client.close()


@pytest.fixture
def space(typed: Client) -> Iterator[str]:
    """The test's namespace."""
    name = framework_namespace(typed, "e2e-test")
    yield name
    typed.delete("namespaces", "", name)


@pytest.fixture
def node(dynamic: Client) -> str:
    """Create a Ready Node: e2e needs at least one before it starts (8.1 step 4)."""
    path = "/api/v1/nodes"
    if dynamic.refusal("GET", f"{path}/{NODE}") != 404:
        return NODE
    made = dynamic.create("nodes", "", {"metadata": {"name": NODE}})
    status = {"conditions": [_ready(made)]}
    dynamic.retry_update("nodes", "", NODE, lambda node: node.update(status=status), "status")  # a controller taints it
    return NODE


def _ready(node: Obj) -> Obj:
    at = node["metadata"]["creationTimestamp"]
    return {"type": "Ready", "status": "True", "lastHeartbeatTime": at, "lastTransitionTime": at}
