"""Test the forms of the legacy discovery documents.

Source: docs/protocol/discovery.md, docs/protocol/negotiation.md.
"""

from __future__ import annotations

import pytest

from mooring.apimachinery.codec.protobuf import decode_envelope, decode_message
from mooring.apimachinery.codec.yaml import decode_yaml
from mooring.apimachinery.discovery import DOCUMENTS
from tests.support.serverroom import Server, in_server

PATHS = ["/api", "/apis", "/api/v1", "/apis/coordination.k8s.io", "/apis/coordination.k8s.io/v1"]
PROTOBUF = "application/vnd.kubernetes.protobuf"


@pytest.mark.parametrize(
    "accept",
    [
        pytest.param("*/*", id="whoever takes anything"),
        pytest.param("application/json", id="who wants JSON"),
        pytest.param(f"{PROTOBUF}, */*", id="who prefers protobuf"),
        pytest.param(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
            id="who knows an older aggregated form",
        ),
    ],
)
@pytest.mark.parametrize("path", PATHS)
@in_server
async def test_json_is_for(server: Server, path: str, accept: str) -> None:
    answer = await server.get(path, headers=[("Accept", accept)])
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.body == (await server.get(path)).body


@pytest.mark.parametrize("path", PATHS)
@in_server
async def test_yaml_is_for_who_asks_for_it(server: Server, path: str) -> None:
    answer = await server.get(path, headers=[("Accept", "application/yaml")])
    assert (answer.status, answer.headers["content-type"], answer.headers["vary"]) == (
        200,
        "application/yaml",
        "Accept",
    )
    assert decode_yaml(answer.text)[0] == (await server.get(path)).obj


@pytest.mark.parametrize("path", PATHS)
@in_server
async def test_protobuf_is_for_clients_that_accept_nothing_else(server: Server, path: str) -> None:
    answer = await server.get(path, headers=[("Accept", PROTOBUF)])
    assert (answer.status, answer.headers["content-type"]) == (200, PROTOBUF)
    api_version, kind, raw = decode_envelope(answer.body)
    document = (await server.get(path)).obj
    assert (api_version, kind) == (document.get("apiVersion", ""), document["kind"])
    body = {name: value for name, value in document.items() if name not in ("kind", "apiVersion")}
    shown = decode_message(raw, DOCUMENTS[kind])
    for resource in body.get("resources", ()):  # protobuf has every verb list, JSON an empty singularName
        assert resource["verbs"]
    assert shown == body


AGGREGATED = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.mark.parametrize("path", ["/api", "/apis"])
@in_server
async def test_the_aggregated_form_comes_as_protobuf_too(server: Server, path: str) -> None:
    answer = await server.get(path, headers=[("Accept", PROTOBUF + AGGREGATED)])
    assert (answer.status, answer.headers["content-type"]) == (200, PROTOBUF + AGGREGATED)
    api_version, kind, raw = decode_envelope(answer.body)
    document = (await server.get(path, headers=[("Accept", "application/json" + AGGREGATED)])).obj
    assert (api_version, kind) == (document["apiVersion"], document["kind"])
    shown = decode_message(raw, DOCUMENTS[kind])
    names = [[resource["resource"] for resource in item["versions"][0]["resources"]] for item in document["items"]]
    assert [[resource["resource"] for resource in item["versions"][0]["resources"]] for item in shown["items"]] == names
    again = await server.get(
        path, headers=[("Accept", PROTOBUF + AGGREGATED), ("If-None-Match", answer.headers["etag"])]
    )
    assert again.status == 304


@in_server
async def test_the_version_is_json_only(server: Server) -> None:
    assert (await server.get("/version", headers=[("Accept", "application/yaml")])).status == 406
    assert (await server.get("/version", headers=[("Accept", "application/yaml, */*")])).status == 200


@pytest.mark.parametrize("path", PATHS)
@in_server
async def test_what_nobody_can_write_is_406(server: Server, path: str) -> None:
    answer = await server.get(path, headers=[("Accept", "text/html")])
    assert (answer.status, answer.obj["reason"]) == (406, "NotAcceptable")
