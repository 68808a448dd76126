"""Requests that cost much: what is not parsed for strangers, and what does not stop the others."""

from __future__ import annotations

import pytest

from mooring.server import http
from tests.support.serverroom import Server, connection, in_server

LONG_QUERY = "fieldSelector=" + "a%3Db," * 5_000


@in_server
async def test_a_long_query_is_not_parsed_before_authentication(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def parse_query(raw: bytes) -> dict[str, list[str]]:
        parsed.append(raw)
        return {}

    monkeypatch.setattr(http, "parse_query", parse_query)
    refused = await server.get(f"/api/v1/secrets?{LONG_QUERY}", token="wrong", via=connection())
    assert (refused.status, parsed) == (401, [])


@in_server
async def test_a_long_selector_is_a_bad_request_and_its_query_is_parsed_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    before = http.parse_query

    def parse_query(raw: bytes) -> dict[str, list[str]]:
        parsed.append(raw)
        return before(raw)

    monkeypatch.setattr(http, "parse_query", parse_query)
    refused = await server.get(f"/api/v1/secrets?{LONG_QUERY}")
    assert (refused.status, refused.message) == (
        400,
        "a selector may have at most 16384 characters; select in several requests",
    )
    assert len(parsed) == 1
