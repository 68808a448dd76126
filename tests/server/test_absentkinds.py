"""Test kinds that this server serves empty: lists, watches and 404s in every form (docs/adr/0015)."""

from __future__ import annotations

import pytest

from mooring.api.kind import Kind
from mooring.api.kinds import READ_ONLY
from mooring.apimachinery.codec.protobuf.decode import decode_message
from mooring.apimachinery.codec.protobuf.envelope import decode_envelope
from mooring.apimachinery.metav1 import list_of
from mooring.apimachinery.schema import Obj
from tests.support.serverroom import Server, in_server

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOO: Obj = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "foos.example.com"},
    "spec": {"group": "example.com"},
}
PROTOBUF = "application/vnd.kubernetes.protobuf"
IN_META = ";v=v1;g=meta.k8s.io"
WATCH_LIST = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
every_kind = pytest.mark.parametrize("kind", READ_ONLY, ids=lambda kind: kind.resource.plural)


@every_kind
@in_server
async def test_the_list_is_empty(server: Server, kind: Kind) -> None:
    reply = await server.get(kind.resource.path())
    assert (reply.status, reply.obj["kind"], reply.obj["items"]) == (200, f"{kind.resource.kind}List", [])
    assert reply.obj["metadata"]["resourceVersion"]


@every_kind
@in_server
async def test_the_list_is_empty_in_protobuf(server: Server, kind: Kind) -> None:
    reply = await server.get(kind.resource.path(), headers=[("Accept", f"{PROTOBUF}, */*;q=0.1")])
    assert reply.status == 200
    reply = await server.get(kind.resource.path(), headers=[("Accept", PROTOBUF)])
    assert reply.headers["content-type"] == PROTOBUF
    api_version, name, raw = decode_envelope(reply.body)
    assert (api_version, name) == (kind.resource.api_version, f"{kind.resource.kind}List")
    assert decode_message(raw, list_of(kind.resource.schema)).get("items", []) == []


@every_kind
@pytest.mark.parametrize(("form", "rows"), [("Table", "rows"), ("PartialObjectMetadataList", "items")])
@in_server
async def test_the_list_is_empty_as(server: Server, kind: Kind, form: str, rows: str) -> None:
    reply = await server.get(kind.resource.path(), headers=[("Accept", f"application/json;as={form}{IN_META}")])
    assert (reply.status, reply.obj["kind"], reply.obj[rows]) == (200, form, [])


@pytest.mark.parametrize("plural", [kind.resource.plural for kind in READ_ONLY if kind.resource.namespaced])
@in_server
async def test_the_list_of_one_namespace_is_empty_too(server: Server, plural: str) -> None:
    """Test the list of kube-system, the only namespace that the e2e binary lists (docs/protocol/e2e-tests.md)."""
    (kind,) = (kind for kind in READ_ONLY if kind.resource.plural == plural)
    assert (await server.get(kind.resource.path("kube-system"))).obj["items"] == []


@every_kind
@in_server
async def test_whether_one_is_there_can_be_asked(server: Server, kind: Kind) -> None:
    resource = kind.resource
    reply = await server.get(resource.path("default" if resource.namespaced else "", "foo"))
    assert (reply.status, reply.obj["reason"]) == (404, "NotFound")
    group = f".{resource.group}" if resource.group else ""
    assert reply.message == f'{resource.plural}{group} "foo" not found'


@every_kind
@in_server
async def test_an_informer_is_told_that_there_are_none_and_waits(server: Server, kind: Kind) -> None:
    stream = await server.follow(f"{kind.resource.path()}?{WATCH_LIST}")
    assert stream.status == 200
    assert [event["type"] for event in stream.events] == ["BOOKMARK"]
    assert stream.events[0]["object"]["kind"] == kind.resource.kind
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


@every_kind
@in_server
async def test_none_can_be_created(server: Server, kind: Kind) -> None:
    resource = kind.resource
    obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "foo"}}
    reply = await server.post(resource.path("default" if resource.namespaced else ""), obj)
    assert (reply.status, reply.obj["reason"]) == (405, "MethodNotAllowed")


@every_kind
@in_server
async def test_discovery_names_the_verbs_that_work(server: Server, kind: Kind) -> None:
    resources = (await server.get(kind.resource.prefix)).obj["resources"]
    verbs = {resource["name"]: resource["verbs"] for resource in resources}
    assert verbs[kind.resource.plural] == ["get", "list", "watch"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param("/apis/storage.k8s.io/v1/csidrivers", 200, id="CSIDrivers, for its informer"),
        pytest.param("/apis/node.k8s.io/v1/runtimeclasses", 200, id="RuntimeClasses, for its informer"),
        pytest.param("/apis/apps/v1/deployments", 403, id="but no workloads"),
    ],
)
@in_server
async def test_a_kubelet_reads(server: Server, path: str, status: int) -> None:
    node = server.user("system:node:n", "system:nodes")
    assert (await server.get(path, via=node)).status == status
