"""In which form the legacy discovery documents come (reference/kubernetes.md 7.1, 7.10)."""

from __future__ import annotations

import pytest

from mooring.wire.yamltext import decode_yaml
from tests.support.serverroom import Server, in_server

PATHS = ["/api", "/apis", "/api/v1", "/apis/coordination.k8s.io", "/apis/coordination.k8s.io/v1"]
PROTOBUF = "application/vnd.kubernetes.protobuf"


@pytest.mark.parametrize(
    "accept",
    [
        pytest.param("*/*", id="whoever takes anything"),
        pytest.param("application/json", id="who wants JSON"),
        pytest.param(f"{PROTOBUF}, */*", id="who prefers protobuf"),
        pytest.param(PROTOBUF, id="who names protobuf alone"),
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
async def test_what_nobody_can_write_is_406(server: Server, path: str) -> None:
    answer = await server.get(path, headers=[("Accept", "text/html")])
    assert (answer.status, answer.obj["reason"]) == (406, "NotAcceptable")
