"""Test the forms of `/openapi/v2`.

Source: docs/protocol/openapi.md.
"""

from __future__ import annotations

import pytest

from tests.support.serverroom import Server, in_server

PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
OLD = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
JSON = "application/json"


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        pytest.param("", JSON, id="who says nothing gets JSON"),
        pytest.param("*/*", JSON, id="who takes anything gets JSON"),
        pytest.param("application/*", JSON, id="who takes any application type gets JSON"),
        pytest.param(PROTOBUF, PROTOBUF, id="protobuf in the new spelling"),
        pytest.param(OLD, PROTOBUF, id="protobuf in the old spelling, answered in the new one"),
        pytest.param(f"{OLD},{PROTOBUF};q=0.8,{JSON};q=0.5", PROTOBUF, id="the preferred one of many"),
        pytest.param(f"{PROTOBUF};q=0.1,{JSON}", JSON, id="JSON where it is preferred"),
        pytest.param(f"text/html,{JSON};q=0.1", JSON, id="what nobody has is passed over"),
    ],
)
@in_server
async def test_the_form_is_the_callers_choice(server: Server, accept: str, answered: str) -> None:
    reply = await server.get("/openapi/v2", headers=[("Accept", accept)] if accept else [])
    assert (reply.status, reply.headers["content-type"]) == (200, answered)
    assert reply.headers["vary"] == "Accept-Encoding, Accept"
    assert reply.body.startswith(b'{"swagger":"2.0"' if answered == JSON else b"\x0a\x032.0")
    headers = [("Accept", accept), ("If-None-Match", reply.headers["etag"])]
    again = await server.get("/openapi/v2", headers=headers if accept else headers[1:])
    assert (again.status, again.body) == (304, b"")


@in_server
async def test_the_forms_have_tags_of_their_own(server: Server) -> None:
    as_json = await server.get("/openapi/v2")
    headers = [("Accept", PROTOBUF), ("If-None-Match", as_json.headers["etag"])]
    assert (await server.get("/openapi/v2", headers=headers)).status == 200


@in_server
async def test_what_nobody_can_write_is_406(server: Server) -> None:
    reply = await server.get("/openapi/v2", headers=[("Accept", "text/html")])
    assert (reply.status, reply.obj["reason"]) == (406, "NotAcceptable")
    assert reply.message == f"only the following media types are accepted: {JSON}, {PROTOBUF}"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/api/v1/namespaces/{namespace}/pods/{name}", "io.k8s.api.core.v1.Pod"),
        ("/api/v1/namespaces/{namespace}/secrets/{name}", "io.k8s.apimachinery.pkg.apis.meta.v1.Status"),
        ("/api/v1/namespaces/{namespace}/pods", "io.k8s.apimachinery.pkg.apis.meta.v1.Status"),
        ("/apis/storage.k8s.io/v1/csinodes/{name}", "io.k8s.api.storage.v1.CSINode"),
    ],
)
@in_server
async def test_what_a_deletion_answers_with(server: Server, path: str, answer: str) -> None:
    """Test the return types of deletes in generated clients: V1Pod for a Pod, V1Status for a Secret."""
    old = (await server.get("/openapi/v2")).obj["paths"][path]["delete"]["responses"]["200"]["schema"]
    assert old == {"$ref": f"#/definitions/{answer}"}
    document = "/".join(path.split("/")[1:3]) if path.startswith("/api/") else "/".join(path.split("/")[1:4])
    new = (await server.get(f"/openapi/v3/{document}")).obj["paths"][path]["delete"]["responses"]["200"]["content"]
    assert new["application/json"]["schema"] == {"$ref": f"#/components/schemas/{answer}"}


@in_server
async def test_the_old_paths_of_watches_are_named_and_served(server: Server) -> None:
    """A client that builds itself from this document has no other way to watch."""
    document = (await server.get("/openapi/v2")).obj
    watches = {path: item["get"] for path, item in document["paths"].items() if "/watch/" in path}
    listed = {
        path.replace("/watch/", "/", 1)
        for path, operation in watches.items()
        if operation["x-kubernetes-action"] == "watchlist"
    }
    streams = {"name": "watch", "in": "query"}
    assert listed == {
        path
        for path, item in document["paths"].items()
        if path not in watches
        and any(streams.items() <= one.items() for one in item.get("get", {}).get("parameters", ()))
    }
    for path, operation in watches.items():
        assert operation["responses"]["200"]["schema"] == {
            "$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"
        }
        stream = await server.follow(
            path.replace("{namespace}", "default").replace("{name}", "x") + "?timeoutSeconds=1"
        )
        assert stream.status == 200, path
        await stream.end()
    operations = [
        one["operationId"] for item in document["paths"].values() for one in item.values() if "operationId" in one
    ]
    assert len(set(operations)) == len(operations)
    assert "watchCoreV1NamespacedConfigMapList" in operations
