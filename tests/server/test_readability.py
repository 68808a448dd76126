"""Test output for people with curl, and paths that only old clients use.

Source: docs/protocol/discovery.md#version, docs/protocol/watch.md, docs/protocol/negotiation.md.
"""

from __future__ import annotations

import pytest

from tests.support.serverroom import Server, in_server

CURL = ("User-Agent", "curl/8.5.0")


@pytest.mark.parametrize(
    "target", ["/api", "/apis", "/api/v1", "/apis/coordination.k8s.io", "/api/v1/namespaces/default"]
)
@in_server
async def test_people_get_lines_and_programs_get_one(server: Server, target: str) -> None:
    for_people = await server.get(target, headers=[CURL])
    for_programs = await server.get(target)
    assert (b"\n" in for_people.body, b"\n" in for_programs.body) == (True, False)
    assert for_people.obj == for_programs.obj
    assert b"\n" not in (await server.get(f"{target}?pretty=false", headers=[CURL])).body


@in_server
async def test_the_version_is_always_readable(server: Server) -> None:
    assert (await server.get("/version")).text.startswith('{\n  "major": "1",\n')


@pytest.mark.parametrize(
    ("target", "told"),
    [
        pytest.param("/api/v1/watch/namespaces/default", ["ADDED default"], id="one Namespace"),
        pytest.param(
            "/api/v1/watch/namespaces/kube-public/configmaps/cluster-info",
            ["ADDED cluster-info"],
            id="one object of one",
        ),
        pytest.param(
            "/apis/rbac.authorization.k8s.io/v1/watch/clusterroles/view",
            ["ADDED view"],
            id="one object of no Namespace",
        ),
    ],
)
@in_server
async def test_a_legacy_watch_path(server: Server, target: str, told: list[str]) -> None:
    stream = await server.follow(target)
    assert stream.event_names == told
    await stream.end()
