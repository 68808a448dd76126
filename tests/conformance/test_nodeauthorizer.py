"""[sig-auth] [Feature:NodeAuthorizer]: test/e2e/auth/node_authz.go.

Source: docs/protocol/e2e-tests.md#teste2eauth.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.typedclient import Client, poll


@pytest.fixture
def as_node(client: Client, node: str) -> Iterator[Client]:
    """Yield a client that impersonates the node."""
    impersonating = client.as_user(f"system:node:{node}", ["system:nodes"])
    yield impersonating
    impersonating.close()


def path(space: str, plural: str, name: str) -> str:
    return f"/api/v1/namespaces/{space}/{plural}/{name}"


@pytest.mark.parametrize("plural", ["secrets", "configmaps"])
def test_getting_a_non_existent_object_should_exit_with_the_forbidden_error_not_a_not_found_error(
    as_node: Client, space: str, plural: str
) -> None:
    assert as_node.refusal("GET", path(space, plural, "foo")) == 403


@pytest.mark.parametrize("plural", ["secrets", "configmaps"])
def test_getting_an_existing_object_should_exit_with_the_forbidden_error(
    client: Client, as_node: Client, space: str, plural: str
) -> None:
    client.create(plural, space, {"metadata": {"namespace": space, "name": "node-auth"}})
    assert as_node.refusal("GET", path(space, plural, "node-auth")) == 403


def test_getting_a_secret_for_a_workload_the_node_has_access_to_should_succeed(
    client: Client, as_node: Client, space: str, node: str
) -> None:
    name = "node-auth-secret"
    secret = {"metadata": {"namespace": space, "name": name}, "data": {"data": "a2VlcCBpdCBzZWNyZXQ="}}
    client.create("secrets", space, secret)
    assert as_node.refusal("GET", path(space, "secrets", name)) == 403
    pod = {
        "metadata": {"name": "pause"},
        "spec": {
            "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10"}],
            "nodeName": node,
            "volumes": [{"name": name, "secret": {"secretName": name}}],
        },
    }
    client.create("pods", space, pod)
    poll(lambda: as_node.refusal("GET", path(space, "secrets", name)) == 0, "the node may read the secret")


def test_a_node_should_not_be_able_to_create_another_node(as_node: Client) -> None:
    node = {"metadata": {"name": "foo"}, "kind": "Node", "apiVersion": "v1"}
    assert as_node.refusal("POST", "/api/v1/nodes", node) == 403


def test_a_node_should_not_be_able_to_delete_another_node(as_node: Client) -> None:
    options = {"kind": "DeleteOptions", "apiVersion": "v1"}
    assert as_node.refusal("DELETE", "/api/v1/nodes/foo", options) == 403
