"""CustomResourceDefinitions: there are none, and everybody who looks learns that (docs/adr/0015)."""

from __future__ import annotations

import pytest

from mooring.wire.schema import Obj
from tests.support.serverroom import Server, in_server

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOO: Obj = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "foos.example.com"},
    "spec": {"group": "example.com"},
}


@in_server
async def test_the_list_is_empty(server: Server) -> None:
    reply = await server.get(CRDS)
    assert (reply.status, reply.obj["kind"], reply.obj["items"]) == (200, "CustomResourceDefinitionList", [])


@in_server
async def test_whether_one_is_installed_can_be_asked(server: Server) -> None:
    reply = await server.get(f"{CRDS}/foos.example.com")
    assert (reply.status, reply.obj["reason"]) == (404, "NotFound")
    assert reply.message == 'customresourcedefinitions.apiextensions.k8s.io "foos.example.com" not found'


@in_server
async def test_a_watch_waits_for_what_does_not_come(server: Server) -> None:
    stream = await server.follow(f"{CRDS}?watch=1")
    assert (stream.status, stream.events) == (200, [])
    await stream.end()


@pytest.mark.parametrize(
    ("method", "target", "content_type"),
    [
        pytest.param("POST", CRDS, "application/json", id="created"),
        pytest.param("PUT", f"{CRDS}/foos.example.com", "application/json", id="replaced"),
        pytest.param("PATCH", f"{CRDS}/foos.example.com", "application/merge-patch+json", id="patched"),
        pytest.param("PATCH", f"{CRDS}/foos.example.com", "application/apply-patch+yaml", id="applied"),
        pytest.param("DELETE", f"{CRDS}/foos.example.com", "application/json", id="deleted"),
        pytest.param("DELETE", CRDS, "application/json", id="deleted together"),
    ],
)
@in_server
async def test_none_can_be(server: Server, method: str, target: str, content_type: str) -> None:
    reply = await server.call(method, target, body=FOO, content_type=content_type)
    assert (reply.status, reply.obj["reason"]) == (405, "MethodNotAllowed")
    assert (await server.get(CRDS)).obj["items"] == []


@in_server
async def test_the_group_is_in_discovery_with_the_verbs_that_work(server: Server) -> None:
    (resource,) = (await server.get("/apis/apiextensions.k8s.io/v1")).obj["resources"]
    assert resource["verbs"] == ["get", "list", "watch"]
