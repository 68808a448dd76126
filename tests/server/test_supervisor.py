"""The supervisor API of k3s, by requests to a whole server (docs/protocol/k3s.md#supervisor)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mooring.identity import MASTERS, NODES
from mooring.server.endpoints.supervisor.table import ROUTES
from mooring.trust.k3s.identity import Access
from tests.support.serverroom import Reply, Server, connection, open_server

SERVER_TOKEN, AGENT_TOKEN = "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "agent-agent-agent-agent"
BOOTSTRAP_TOKEN = "abcdef.0123456789abcdef"
Case = Callable[[Server], Awaitable[None]]


def supervised(**flags: Any) -> Callable[[Case], Callable[[], None]]:
    """Run an async test with a server that serves the supervisor API."""

    def decorate(test: Case) -> Callable[[], None]:
        def run() -> None:
            async def body() -> None:
                async with open_server(**{"k3s_supervisor": True, "server_token": SERVER_TOKEN, **flags}) as server:
                    await test(server)

            asyncio.run(body())

        run.__name__ = test.__name__
        return run

    return decorate


def basic(user: str, password: str) -> list[tuple[str, str]]:
    return [("Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())]


async def ask(server: Server, path: str, *credential: str, method: str = "GET", **how: Any) -> Reply:
    """Send a request with a user and a password, or without a credential."""
    headers = [*how.pop("headers", ()), *(basic(*credential) if credential else ())]
    return await server.call(method, path, headers=headers, via=how.pop("via", connection()), **how)


@supervised()
async def test_public_paths_need_no_credential_and_read_none(server: Server) -> None:
    for credential in ((), ("node", "wrong")):
        assert (await ask(server, "/ping", *credential)).text == "pong"
        assert (await ask(server, "/cacerts", *credential)).body == server.plane.serving.root_ca.pem


PROTECTED = [row for row in ROUTES if row.access is not Access.PUBLIC]


@pytest.mark.parametrize("row", ROUTES, ids=lambda row: row.path)
def test_without_the_flag_no_path_exists(row: Any) -> None:
    async def body() -> None:
        async with open_server() as server:
            for method in row.methods:
                off = await server.call(method, row.path)
                assert (off.status, off.body) == (404, b"404 page not found\n")
                stranger = await server.call(method, row.path, via=connection())
                assert stranger.status == 403
                assert "forbidden: User" in stranger.message

    asyncio.run(body())


@supervised()
async def test_protected_paths_answer_forbidden_without_a_credential_and_not_authorized_to_a_wrong_one(
    server: Server,
) -> None:
    for row in PROTECTED:
        nobody = await ask(server, row.path, method=row.methods[0])
        assert (nobody.status, nobody.message) == (403, "forbidden")
    for credential in (("node", "wrong"), ("server", "wrong"), ("jane", SERVER_TOKEN)):
        wrong = await ask(server, PROTECTED[0].path, *credential)
        assert (wrong.status, wrong.message) == (401, "not authorized")


@supervised(agent_token=AGENT_TOKEN)
async def test_each_level_is_open_to_its_groups_alone(server: Server) -> None:
    await server.bootstrap_token(BOOTSTRAP_TOKEN)
    node = server.user("system:node:worker", NODES)
    for row in PROTECTED:
        refused = {
            Access.AGENT: [("server", SERVER_TOKEN)],
            Access.NODE: [("server", SERVER_TOKEN), ("node", AGENT_TOKEN)],
            Access.SERVER: [("node", AGENT_TOKEN)],
        }[row.access]
        for credential in refused:
            assert (await ask(server, row.path, *credential, method=row.methods[0])).message == "forbidden"
        if row.access is not Access.AGENT:
            assert (await server.call(row.methods[0], row.path, token=BOOTSTRAP_TOKEN)).message == "forbidden"
        assert (await server.call(row.methods[0], row.path)).message == "forbidden", "system:masters"
    assert (await ask(server, "/v1-k3s/config", "node", AGENT_TOKEN)).status == 200
    assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)).status == 401
    assert (await server.get("/v1-k3s/config", token=BOOTSTRAP_TOKEN)).status == 200
    assert (await server.get("/v1-k3s/config", via=node)).status == 200


@supervised()
async def test_groups_of_k3s_count_from_a_token_only(server: Server) -> None:
    for group in ("k3s:agent", "k3s:server"):
        claimed = server.user("mallory", group, MASTERS)
        for row in PROTECTED:
            assert (await server.call(row.methods[0], row.path, via=claimed)).message == "forbidden"


@supervised()
async def test_a_token_opens_nothing_of_the_kubernetes_api(server: Server) -> None:
    for user in ("server", "node"):
        for path in ("/api/v1/nodes", "/v1-k3s/config/", "//v1-k3s/config", "/v1-k3s", "/v1-k3s/nothing", "/cacerts/"):
            refused = await ask(server, path, user, SERVER_TOKEN)
            assert refused.status == 403
            assert "system:anonymous" in refused.message


@supervised()
async def test_a_method_that_a_route_does_not_know_is_405(server: Server) -> None:
    assert (await ask(server, "/ping", method="POST")).status == 405
    assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN, method="POST")).status == 405
    assert (await ask(server, "/v1-k3s/config", method="POST")).status == 403
