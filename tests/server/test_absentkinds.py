"""Test kinds that this server serves empty: lists, watches and 404s in every form (docs/adr/0015)."""

from __future__ import annotations

import json

import pytest

from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL, READ_ONLY
from mooring.apimachinery.codec.protobuf import decode_envelope, decode_message
from mooring.apimachinery.metav1 import list_of
from mooring.apimachinery.schema import Obj
from tests.support.manualclock import settle
from tests.support.serverroom import Reply, Server, in_server

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOO: Obj = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "foos.example.com"},
    "spec": {"group": "example.com"},
}
PROTOBUF = "application/vnd.kubernetes.protobuf"
IN_META = ";v=v1;g=meta.k8s.io"
APPLY = "application/apply-patch+yaml"
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


WRITES = (
    ("POST", "", "application/json", "create"),
    ("PUT", "foo", "application/json", "update"),
    ("PATCH", "foo", "application/json-patch+json", "patch"),
    ("PATCH", "foo", "application/merge-patch+json", "patch"),
    ("PATCH", "foo", "application/strategic-merge-patch+json", "patch"),
    ("PATCH", "foo", APPLY, "patch"),
    ("DELETE", "foo", "application/json", "delete"),
    ("DELETE", "", "application/json", "deletecollection"),
)
"""Method, name of the object, media type, and the verb that they mean."""


def place(kind: Kind, name: str = "") -> str:
    path = kind.resource.path("default" if kind.resource.namespaced else "")
    return f"{path}/{name}" if name else path


async def write(server: Server, kind: Kind, method: str, name: str, content_type: str) -> Reply:
    resource = kind.resource
    options: Obj = {"kind": "DeleteOptions", "apiVersion": "v1"}
    obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "foo"}}
    body = options if method == "DELETE" else obj
    return await server.call(method, place(kind, name), body=body, content_type=content_type)


def refusal(kind: Kind, verb: str) -> tuple[int, str, str, Obj]:
    group, plural = kind.resource.group, kind.resource.plural
    full = f"{plural}.{group}" if group else plural
    message = f'{verb} is not supported on resources of kind "{full}": {kind.read_only_reason}'
    return 405, "MethodNotAllowed", message, {"group": group, "kind": plural} if group else {"kind": plural}


@every_kind
@in_server
async def test_one_that_is_not_there_is_not_found_and_none_can_be_created(server: Server, kind: Kind) -> None:
    """Programs forgive 404 when they take down what was never set up, and no 405."""
    for method, name, content_type, verb in WRITES:
        reply = await write(server, kind, method, name, content_type)
        if verb == "deletecollection":
            assert (reply.status, reply.obj["kind"], reply.obj["items"]) == (200, f"{kind.resource.kind}List", [])
        elif verb == "create" or content_type == APPLY:
            assert (reply.status, reply.obj["reason"], reply.message, reply.obj["details"]) == refusal(kind, verb)
        else:
            assert (reply.status, reply.obj["reason"]) == (404, "NotFound"), content_type
    assert (await server.get(kind.resource.path())).obj["items"] == []


@every_kind
@in_server
async def test_one_that_another_server_stored_stays_as_it_is(server: Server, kind: Kind) -> None:
    resource = kind.resource
    obj: Obj = {
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": {"name": "foo", "uid": "u", **({"namespace": "default"} if resource.namespaced else {})},
    }  # fmt: skip
    await server.storage.create(kind.key("default", "foo"), json.dumps(obj).encode())
    await settle()
    for method, name, content_type, verb in WRITES:
        if verb not in resource.verbs:
            reply = await write(server, kind, method, name, content_type)
            assert (reply.status, reply.obj["reason"], reply.message, reply.obj["details"]) == refusal(kind, verb)
    assert (await server.get(place(kind, "foo"))).status == 200


@pytest.mark.parametrize(
    ("plural", "spec"),
    [
        ("networkpolicies", {"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [{}], "policyTypes": ["Ingress"]}),
        ("poddisruptionbudgets", {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}}),
    ],
)
@in_server
async def test_one_that_an_earlier_version_stored_can_be_read_in_every_form(
    server: Server, plural: str, spec: Obj
) -> None:
    """An agent of k3s reads policies as protobuf (docs/adr/0090)."""
    kind = BY_PLURAL[plural]
    resource = kind.resource
    obj: Obj = {"apiVersion": resource.api_version, "kind": resource.kind}
    obj |= {"metadata": {"name": "foo", "namespace": "default", "uid": "u", "generation": 1}, "spec": spec}
    await server.storage.create(kind.key("default", "foo"), json.dumps(obj).encode())
    await settle()
    assert (await server.get(place(kind, "foo"))).obj["spec"] == spec
    table = await server.get(place(kind), headers=[("Accept", f"application/json;as=Table{IN_META}")])
    assert [row["cells"][0] for row in table.obj["rows"]] == ["foo"]
    binary = await server.get(place(kind), headers=[("Accept", PROTOBUF)])
    (item,) = decode_message(decode_envelope(binary.body)[2], list_of(resource.schema))["items"]
    assert item["spec"] == spec


@pytest.mark.parametrize("target", ["networkpolicies/foo", "networkpolicies", "poddisruptionbudgets/foo"])
@in_server
async def test_one_that_an_earlier_version_stored_can_be_deleted(server: Server, target: str) -> None:
    plural, _, name = target.partition("/")
    kind = BY_PLURAL[plural]
    obj: Obj = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
    obj |= {"metadata": {"name": "foo", "namespace": "default", "uid": "u"}, "spec": {}}
    await server.storage.create(kind.key("default", "foo"), json.dumps(obj).encode())
    await settle()
    assert (await server.call("DELETE", place(kind, name))).status == 200
    assert (await server.get(place(kind, "foo"))).status == 404


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        pytest.param(
            "DELETE",
            f"{CRDS}/foo",
            {"kind": "DeleteOptions", "gracePeriodSeconds": "x"},
            400,
            id="options that are none",
        ),
        pytest.param("DELETE", f"{CRDS}?labelSelector=%21%21", None, 400, id="a selector that is none"),
        pytest.param("PATCH", f"{CRDS}/foo", {}, 415, id="a patch of no known kind"),
        pytest.param("POST", f"{CRDS}/foo", FOO, 405, id="a name to create under"),
        pytest.param("DELETE", "/apis/apps/v1/deployments", None, 405, id="every namespace at once"),
    ],
)
@in_server
async def test_what_is_wrong_with_a_request_is_told_first(
    server: Server, method: str, target: str, body: Obj | None, status: int
) -> None:
    assert (await server.call(method, target, body=body)).status == status


@in_server
async def test_who_may_not_delete_learns_nothing(server: Server) -> None:
    """Authorization comes before both refusals."""
    reply = await server.call("DELETE", f"{CRDS}/foo", via=server.user("ann"))
    assert reply.status == 403


@pytest.mark.parametrize(
    ("method", "subresource", "verb", "why"),
    [
        pytest.param("GET", "log", "get", "this server connects to no kubelet", id="its log"),
        pytest.param("POST", "exec", "create", "this server connects to no kubelet", id="a command in it"),
        pytest.param("GET", "exec", "get", "this server connects to no kubelet", id="a command in it, by WebSocket"),
        pytest.param("POST", "attach", "create", "this server connects to no kubelet", id="its input"),
        pytest.param("POST", "portforward", "create", "this server connects to no kubelet", id="its ports"),
        pytest.param("POST", "eviction", "create", "this server runs no workloads; delete the Pod", id="its eviction"),
    ],
)
@in_server
async def test_what_needs_the_container_of_a_pod_is_answered_for_the_pod(
    server: Server, method: str, subresource: str, verb: str, why: str
) -> None:
    pods = "/api/v1/namespaces/default/pods"
    absent = await server.call(method, f"{pods}/foo/{subresource}")
    assert (absent.status, absent.message) == (404, 'pods "foo" not found')
    await server.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    for name, node in (("foo", ""), ("bar", "n1")):
        pod = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}}
        assert (await server.post(pods, pod)).status == 201
    waiting = await server.call(method, f"{pods}/foo/{subresource}")
    refused = f'{verb} is not supported on resources of kind "pods/{subresource}": {why}'
    if subresource == "eviction":
        assert (waiting.status, waiting.message) == (405, refused)
    else:
        assert (waiting.status, waiting.message) == (400, "pod foo does not have a host assigned")
    running = await server.call(method, f"{pods}/bar/{subresource}")
    assert (running.status, running.message) == (405, refused)
    assert (await server.call(method, f"{pods}/bar/{subresource}", via=server.user("ann"))).status == 403


@every_kind
@in_server
async def test_discovery_names_the_verbs_that_work(server: Server, kind: Kind) -> None:
    resources = (await server.get(kind.resource.prefix)).obj["resources"]
    verbs = {resource["name"]: resource["verbs"] for resource in resources}
    assert verbs[kind.resource.plural] == sorted(kind.resource.verbs)


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
