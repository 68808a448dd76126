"""Test the forms of `/openapi/v3/<group version>`.

Source: docs/protocol/openapi.md.
"""

from __future__ import annotations

import pytest

from tests.support.serverroom import Server, in_server

PROTOBUF = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
OLD = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
JSON = "application/json"
CORE = "/openapi/v3/api/v1"


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        pytest.param("", JSON, id="who says nothing gets JSON"),
        pytest.param("*/*", JSON, id="who takes anything gets JSON"),
        pytest.param(PROTOBUF, PROTOBUF, id="protobuf in the new spelling"),
        pytest.param(OLD, PROTOBUF, id="protobuf in the only spelling that client-go knows, answered in the new one"),
        pytest.param(f"{PROTOBUF};q=0.1,{JSON}", JSON, id="JSON where it is preferred"),
        pytest.param(f"text/html,{OLD};q=0.1", PROTOBUF, id="what nobody has is passed over"),
    ],
)
@in_server
async def test_the_form_is_the_callers_choice(server: Server, accept: str, answered: str) -> None:
    wanted = [("Accept", accept)] if accept else []
    reply = await server.get(CORE, headers=wanted)
    assert (reply.status, reply.headers["content-type"]) == (200, answered)
    assert reply.headers["vary"] == "Accept-Encoding, Accept"
    assert reply.body.startswith(b'{"openapi":"3.0.0"' if answered == JSON else b"\x0a\x053.0.0")
    again = await server.get(CORE, headers=[*wanted, ("If-None-Match", reply.headers["etag"])])
    assert (again.status, again.body) == (304, b"")


@in_server
async def test_the_hash_of_the_index_is_right_for_both_forms_and_their_tags_are_their_own(server: Server) -> None:
    url = (await server.get("/openapi/v3")).obj["paths"]["api/v1"]["serverRelativeURL"]
    replies = [await server.get(url, headers=[("Accept", accept)]) for accept in (JSON, PROTOBUF)]
    assert [reply.status for reply in replies] == [200, 200]
    assert {reply.headers["cache-control"] for reply in replies} == {"public, immutable"}
    assert replies[0].headers["etag"] != replies[1].headers["etag"]
    moved = await server.get(f"{CORE}?hash=old", headers=[("Accept", OLD)])
    assert (moved.status, moved.headers["location"]) == (301, url)


@in_server
async def test_what_nobody_can_write_is_406(server: Server) -> None:
    reply = await server.get(CORE, headers=[("Accept", "text/html")])
    assert (reply.status, reply.obj["reason"]) == (406, "NotAcceptable")
    assert reply.message == f"only the following media types are accepted: {JSON}, {PROTOBUF}"
