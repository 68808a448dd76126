"""The supervisor API of k3s, by requests to a whole server (docs/protocol/k3s.md#supervisor)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import websocket as websocket_client

from mooring.authn.authfailures import BURST
from mooring.errors import ConfigError, ServiceUnavailableError, StorageError, TooManyRequestsError
from mooring.identity import MASTERS, NODES
from mooring.secret import Secret
from mooring.server import pipeline
from mooring.server.endpoints.routes import find
from mooring.server.endpoints.supervisor.routes import MAX_AGENT_BODY, ROUTES
from mooring.server.endpoints.supervisor.tunnel import PING_SECONDS, SILENCE_SECONDS
from mooring.server.flowcontrol import ANONYMOUS_SEATS
from mooring.server.requestcontext import MAX_CHANGING, MAX_READING, InFlight
from mooring.server.sharedmemory import SharedMemory
from mooring.server.transport.httpgrammar import read_target
from mooring.server.transport.responsewriter import Streamer, WebSocketWriter
from mooring.server.transport.tlsconnection import TlsTransport
from mooring.trust.k3s.acceptedtokens import FormerToken, digest, encode_former
from mooring.trust.k3s.identity import Access
from mooring.trust.sharedkeys.servertoken import AgentTerm, encode_agent_tokens, rotated
from tests.server.test_revocation import revoke
from tests.support.manualclock import settle
from tests.support.servedroom import served_room
from tests.support.serverroom import PlainTransport, Reply, Server, connection, open_server
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import PATIENCE
from tests.support.tlspeer import reply as wire_reply
from tests.support.tlspeer import request as wire_request

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
        assert (await ask(server, "/cacerts", *credential)).body == server.assembly.trust.serving.root_ca.pem


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


def test_no_path_belongs_to_both_apis() -> None:
    assert [row.path for row in ROUTES if find(row.path) is not None] == []
    assert len({row.path for row in ROUTES}) == len(ROUTES)


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
            Access.AGENT: [],
            Access.NODE: [("server", SERVER_TOKEN), ("node", AGENT_TOKEN)],
            Access.SERVER: [("node", AGENT_TOKEN)],
        }[row.access]
        for credential in refused:
            assert (await ask(server, row.path, *credential, method=row.methods[0])).message == "forbidden"
        if row.access is not Access.AGENT:
            assert (await server.call(row.methods[0], row.path, token=BOOTSTRAP_TOKEN)).message == "forbidden"
        assert (await server.call(row.methods[0], row.path)).message == "forbidden", "system:masters"
    assert (await ask(server, "/v1-k3s/config", "node", AGENT_TOKEN)).status == 200
    assert (await ask(server, "/v1-k3s/config", "server", SERVER_TOKEN)).status == 200
    assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)).status == 401
    assert (await ask(server, "/v1-k3s/config", "server", AGENT_TOKEN)).status == 401
    assert (await server.get("/v1-k3s/config", token=BOOTSTRAP_TOKEN)).status == 200
    assert (await server.get("/v1-k3s/config", via=node)).status == 200


@supervised(agent_token=AGENT_TOKEN)
async def test_the_codes_are_those_of_k3s(server: Server) -> None:
    """The table by which k3s tests its own handlers."""
    stranger = ThrowawayCA("another", server.clock.now()).client("system:node:worker", NODES)
    for number, row in enumerate(PROTECTED):
        source = f"198.51.100.{number}"
        refusals = {
            "anonymous": (403, await ask(server, row.path, method=row.methods[0])),
            "the agent token for server": (
                401,
                await ask(
                    server, row.path, "server", AGENT_TOKEN, method=row.methods[0], via=connection(source=source)
                ),
            ),
            "the certificate of another CA": (
                401,
                await server.call(row.methods[0], row.path, via=connection([stranger.der], source)),
            ),
            "a certificate without a group": (
                403,
                await server.call(row.methods[0], row.path, via=server.user("system:monitoring", "system:monitoring")),
            ),
        }
        assert {name: answer.status for name, (_, answer) in refusals.items()} == {
            name: expected for name, (expected, _) in refusals.items()
        }, row.path
        if row.methods == ("PUT",):
            assert (await ask(server, row.path, "server", SERVER_TOKEN)).status == 405


@supervised()
async def test_a_token_comes_before_the_certificate_that_is_offered_beside_it(server: Server) -> None:
    node = server.user("system:node:worker", NODES)
    assert (await ask(server, "/v1-k3s/encrypt/status", "server", SERVER_TOKEN, via=node)).status == 200
    assert (await ask(server, CONNECT, "node", SERVER_TOKEN, via=node, headers=HANDSHAKE)).message == "forbidden"
    assert (await ask(server, "/v1-k3s/config", "node", "wrong", via=node)).status == 200, "the certificate rescues it"


@supervised()
async def test_groups_of_k3s_count_from_a_token_only(server: Server) -> None:
    for group in ("k3s:agent", "k3s:server"):
        claimed = server.user("mallory", group, MASTERS)
        for row in PROTECTED:
            assert (await server.call(row.methods[0], row.path, via=claimed)).message == "forbidden"


@supervised()
async def test_a_token_opens_nothing_of_the_kubernetes_api(server: Server) -> None:
    for user in ("server", "node"):
        for path in ("/api/v1/nodes", "/v1-k3s/config/", "/v1-k3s", "/v1-k3s/nothing", "/cacerts/", "//api/v1/nodes"):
            refused = await ask(server, path, user, SERVER_TOKEN)
            assert refused.status == 403
            assert "system:anonymous" in refused.message


SPELLINGS: dict[bytes, str] = {
    b"//ping": "/ping",
    b"/./cacerts": "/cacerts",
    b"/ping/.": "/ping",
    b"/../../cacerts": "/cacerts",
    b"//v1-k3s/config": "/v1-k3s/config",
    b"/v1-k3s//config": "/v1-k3s/config",
    b"/v1-k3s/encrypt/../token": "/v1-k3s/token",
    b"/api/v1/nodes/made-up/../../../../v1-k3s/server-bootstrap": "/v1-k3s/server-bootstrap",
    b"/static/../v1-k3s/token": "/v1-k3s/token",
    b"/static/..%2fv1-k3s%2ftoken": "/v1-k3s/token",
    b"/v1-k3s/%2e%2e/ping": "/ping",
    b"/%0d%0aset-cookie:a=b/../ping": "/ping",
    b"//evil.test/../ping": "/ping",
    b"/static": "/static/",
    b"/static/x/..?next=//evil.test": "/static/",
    b"//v1-k3s/connect?password=hush-hush": "/v1-k3s/connect",
}
"""Targets of requests that are redirected, with the path that the redirect names."""
FOREIGN = (
    b"//ping/",
    b"/v1-k3s//config/",
    b"/v1-k3s/config/..",
    b"/v1-k3s/config/./",
    b"/static/../token",
    b"/v1-k3s/%252e%252e/ping",
    b"/V1-k3s//config",
    b"/v1-k3s/config%00/../x",
    b"//api/v1/nodes",
    b"/api/v1/../v1/nodes",
)
"""Targets that belong to the Kubernetes API, whatever a clean form would be."""


def spelled(target: bytes) -> str:
    """Return a target as the transport hands it over."""
    read = read_target(target)
    assert read is not None
    return f"{read[0]}?{read[1].decode()}" if read[1] else read[0]


@supervised()
async def test_another_spelling_of_a_path_is_redirected_before_a_credential_is_read(server: Server) -> None:
    node = server.user("system:node:worker", NODES)
    for target, location in SPELLINGS.items():
        for method in ("GET", "HEAD", "PUT", "POST", "PATCH"):
            answers = [
                await ask(server, spelled(target), method=method),
                await ask(server, spelled(target), "server", SERVER_TOKEN, method=method),
                await ask(server, spelled(target), "server", "wrong", method=method),
                await ask(server, spelled(target), method=method, via=node, headers=[("Impersonate-User", "x")]),
            ]
            for answer in answers:
                assert (answer.status, answer.headers["location"], answer.body) == (307, location, b""), target
                assert "www-authenticate" not in answer.headers
                assert "no-cache" in answer.headers["cache-control"]
    assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)).status == 200, "no failure was counted"


@supervised()
async def test_a_redirect_opens_nothing(server: Server) -> None:
    for location in set(SPELLINGS.values()) - {"/ping", "/cacerts", "/static/"}:
        row = next(row for row in PROTECTED if row.path == location)
        assert (await ask(server, location, method=row.methods[0])).message == "forbidden"


@supervised()
async def test_every_other_spelling_is_judged_by_the_kubernetes_api(server: Server) -> None:
    for target in FOREIGN:
        for user in ("server", "node"):
            refused = await ask(server, spelled(target), user, SERVER_TOKEN)
            assert (refused.status, refused.headers.get("location")) == (403, None), target
            assert "system:anonymous" in refused.message


def test_a_redirect_is_recorded_and_makes_no_label(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"

    async def body() -> None:
        async with open_server(k3s_supervisor=True, server_token=SERVER_TOKEN, audit_log_path=str(log)) as server:
            await ask(server, "/api/v1/made-up/x/../../../../ping", "server", SERVER_TOKEN)
            shown = (await server.get("/metrics")).text
            assert "made-up" not in shown

    asyncio.run(body())
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (found,) = (one for one in events if "made-up" in one["requestURI"] and one["stage"] == "ResponseComplete")
    assert found["responseStatus"]["code"] == 307
    assert found["annotations"]["authorization.k8s.io/reason"] == "supervisor: public level"
    assert SERVER_TOKEN not in log.read_text()


def test_the_body_of_a_redirected_request_is_no_request(tmp_path: Path) -> None:
    with served_room(k3s_supervisor=True, server_token=SERVER_TOKEN) as (served, _):
        smuggled = wire_request("/v1-k3s/token", "PUT", tuple(f"{k}: {v}" for k, v in basic("server", SERVER_TOKEN)))
        with served.client(tmp_path) as peer:
            for target, location in ((b"//v1-k3s/token", "/v1-k3s/token"), (b"/v1-k3s/%2e%2E/ping", "/ping")):
                peer.sendall(wire_request(target.decode(), "PUT", body=smuggled))
                status, headers, body = wire_reply(peer)
                assert (status, headers["location"], body) == (307, location, b"")
            peer.sendall(wire_request("/ping"))
            assert wire_reply(peer)[::2] == (200, b"pong")


@supervised()
async def test_redirects_wait_in_the_line_of_anonymous_requests(server: Server) -> None:
    flow = server.pipeline.flow
    for _ in range(ANONYMOUS_SEATS):
        await flow.enter_anonymous()
    waiting = asyncio.ensure_future(ask(server, "//ping"))
    await settle()
    assert not waiting.done()
    for _ in range(ANONYMOUS_SEATS):
        flow.leave_anonymous()
    assert (await waiting).status == 307


@supervised()
async def test_a_method_that_a_route_does_not_know_is_405(server: Server) -> None:
    assert (await ask(server, "/ping", method="POST")).status == 405
    assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN, method="POST")).status == 405
    assert (await ask(server, "/v1-k3s/config", method="POST")).status == 403


@supervised()
async def test_a_request_that_impersonates_is_refused(server: Server) -> None:
    node = server.user("system:node:worker", NODES)
    headers = [("Impersonate-User", "system:node:other")]
    assert (await server.get("/v1-k3s/config", via=node, headers=headers)).message == "forbidden"


@supervised()
async def test_the_operator_finds_the_reason_of_a_refusal(server: Server) -> None:
    node = server.user("system:node:worker", NODES)
    refused = {
        "wrong-join-token": await ask(server, "/v1-k3s/config", "node", "wrong"),
        "supervisor-no-credential": await ask(server, "/v1-k3s/config"),
        "supervisor-wrong-group": await ask(server, "/v1-k3s/encrypt/status", "node", SERVER_TOKEN),
        "supervisor-impersonation": await server.get("/v1-k3s/config", via=node, headers=[("Impersonate-User", "x")]),
    }
    for reason, answer in refused.items():
        audit_id = answer.headers["audit-id"]
        told = (await server.get(f"/debug/authentication/refusals/{audit_id}")).obj
        assert told["why"] == reason
        assert SERVER_TOKEN not in answer.text + json.dumps(told)


@supervised()
async def test_errors_are_statuses_without_details(server: Server) -> None:
    forbidden, unauthorized = await ask(server, "/v1-k3s/config"), await ask(server, "/v1-k3s/config", "node", "wrong")
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    assert forbidden.obj == {**status, "message": "forbidden", "reason": "Forbidden", "code": 403}
    assert unauthorized.obj == {**status, "message": "not authorized", "reason": "Unauthorized", "code": 401}
    for answer in (forbidden, unauthorized):
        assert answer.headers["content-type"] == "application/json"
        assert "www-authenticate" not in answer.headers


@supervised()
async def test_wrong_tokens_count_with_all_failures_of_a_source(server: Server) -> None:
    for _ in range(BURST):
        assert (await ask(server, "/v1-k3s/config", "node", "wrong")).status == 401
    late = [asyncio.ensure_future(ask(server, "/v1-k3s/config", "node", token)) for token in ("wrong", SERVER_TOKEN)]
    await settle()
    await server.clock.advance(pipeline.TARPIT_SECONDS)
    assert [(await answer).status for answer in late] == [429, 429], "not even the right one is judged"
    node = server.user("system:node:worker", NODES)
    assert (await server.get("/v1-k3s/config", via=node)).status == 200, "other credentials are"
    elsewhere = connection(source="198.51.100.7")
    assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN, via=elsewhere)).status == 200


def test_a_rotated_token_is_good_during_its_grace_and_in_force_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    new = "f" * 32
    (folder / "token").write_text(f"{SERVER_TOKEN}\n")

    async def body() -> None:
        async with open_server(
            k3s_supervisor=True, data_dir=str(tmp_path), storage=f"sqlite:{tmp_path}/x.db"
        ) as server:
            assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)).status == 200
            until = server.clock.now() + timedelta(minutes=5)
            former = encode_former([FormerToken(digest(Secret(SERVER_TOKEN)), until)])
            (folder / "former-tokens.json").write_bytes(former)
            (folder / "token").write_text(f"K10{'0' * 64}::server:{new}\n")
            await server.files_changed()
            for token in (new, SERVER_TOKEN):
                assert (await ask(server, "/v1-k3s/config", "node", token)).status == 200
            await server.clock.advance(301)
            assert (await ask(server, "/v1-k3s/config", "node", new)).status == 200
            refused = await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)
            told = (await server.get(f"/debug/authentication/refusals/{refused.headers['audit-id']}")).obj
            assert (refused.status, told["why"]) == (401, "rotated-token")
            (folder / "token").write_text("damaged")
            await server.files_changed()
            assert (await ask(server, "/v1-k3s/config", "node", new)).status == 200, "the last good content stays"

    asyncio.run(body())


def test_a_rotated_agent_token_is_good_during_its_grace_and_wins_over_the_flag(tmp_path: Path) -> None:
    for folder in ("server", "pki"):
        (tmp_path / folder).mkdir()
    file, new = tmp_path / "pki/agent-tokens.json", "f" * 32
    (tmp_path / "server/token").write_text(f"{SERVER_TOKEN}\n")

    async def body() -> None:
        async with open_server(
            k3s_supervisor=True, data_dir=str(tmp_path), storage=f"sqlite:{tmp_path}/x.db", agent_token=AGENT_TOKEN
        ) as server:
            assert (await ask(server, "/v1-k3s/config", "node", AGENT_TOKEN)).status == 200
            now = server.clock.now()
            former = [AgentTerm("a", digest(Secret(AGENT_TOKEN)))]
            tokens = rotated(former, Secret(new), "b", [], timedelta(minutes=5), now)
            file.write_bytes(encode_agent_tokens(tokens).reveal())
            await server.files_changed()
            for token in (new, AGENT_TOKEN):
                assert (await ask(server, "/v1-k3s/config", "node", token)).status == 200
                assert (await ask(server, "/v1-k3s/config", "server", token)).status == 401
            await server.clock.advance(301)
            assert (await ask(server, "/v1-k3s/config", "node", new)).status == 200
            refused = await ask(server, "/v1-k3s/config", "node", AGENT_TOKEN)
            told = (await server.get(f"/debug/authentication/refusals/{refused.headers['audit-id']}")).obj
            assert (refused.status, told["why"]) == (401, "rotated-agent-token")
            file.unlink()
            await server.files_changed()
            assert (await ask(server, "/v1-k3s/config", "node", new)).status == 200, "the last good content stays"
            file.write_bytes(b"damaged")
            await server.files_changed()
            assert (await ask(server, "/v1-k3s/config", "node", AGENT_TOKEN)).status == 401

    asyncio.run(body())


def test_an_agent_token_file_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "agents"
    file.write_text(f"K10::node:{AGENT_TOKEN}\n")

    async def body() -> None:
        flags = {"k3s_supervisor": True, "server_token": SERVER_TOKEN, "agent_token_file": str(file)}
        async with open_server(**flags) as server:
            assert (await ask(server, "/v1-k3s/config", "node", AGENT_TOKEN)).status == 200
            file.write_text("another-agent-token")
            await server.files_changed()
            assert (await ask(server, "/v1-k3s/config", "node", AGENT_TOKEN)).status == 401
            assert (await ask(server, "/v1-k3s/config", "node", "another-agent-token")).status == 200

    asyncio.run(body())


def test_a_store_in_memory_needs_a_token() -> None:
    async def body() -> None:
        async with open_server(k3s_supervisor=True):
            pass

    with pytest.raises(ConfigError, match="a store in memory keeps no server token"):
        asyncio.run(body())


def test_a_server_token_file_serves_a_store_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SERVER_TOKEN)

    async def body() -> None:
        async with open_server(k3s_supervisor=True, server_token_file=str(file)) as server:
            assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)).status == 200

    asyncio.run(body())


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "most"), [("GET", MAX_READING), ("HEAD", MAX_READING), ("POST", MAX_CHANGING)])
def test_places_are_those_of_the_host(method: str, most: int) -> None:
    memory = SharedMemory(2)
    first, second = (InFlight(memory.share_of(worker)) for worker in range(2))
    with ExitStack() as held:
        for number in range(most):
            held.enter_context((first if number % 2 else second).place(method))
        for worker in (first, second):
            with pytest.raises(TooManyRequestsError) as refused, worker.place(method):
                pass
            assert (refused.value.message, refused.value.details.retry_after) == (
                "Too many requests, please try again later.",
                1,
            )
    with second.place(method):
        pass


def test_reading_and_changing_do_not_displace_each_other() -> None:
    places = InFlight()
    with ExitStack() as held:
        for _ in range(MAX_READING):
            held.enter_context(places.place("GET"))
        with places.place("POST"):
            pass


@supervised()
async def test_beyond_the_places_the_answer_is_429_with_retry_after(server: Server) -> None:
    supervisor = server.assembly.http.supervisor
    assert supervisor is not None
    with ExitStack() as held:
        for _ in range(MAX_READING):
            held.enter_context(supervisor.supervisor.in_flight.place("GET"))
        full = await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)
        assert (full.status, full.headers["retry-after"]) == (429, "1")
        assert (await ask(server, "/ping")).status == 200, "public routes have no limit of places"
    assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)).status == 200


@supervised()
async def test_a_long_body_is_refused_before_it_takes_a_place(server: Server) -> None:
    answer = await ask(
        server, "/v1-k3s/encrypt/config", "server", SERVER_TOKEN, method="PUT", body=b"x" * (MAX_AGENT_BODY + 1)
    )
    assert answer.status == 413


# -- answers ---------------------------------------------------------------------------------------------------------


@supervised(cluster_domain="example.internal")
async def test_agents_read_cas_configuration_addresses_and_readiness(server: Server) -> None:
    async def read(path: str) -> Reply:
        return await ask(server, path, "node", SERVER_TOKEN)

    assert (await read("/v1-k3s/server-ca.crt")).body == (await ask(server, "/cacerts")).body
    assert (await read("/v1-k3s/client-ca.crt")).body == server.ca.certificate_pem
    config = (await read("/v1-k3s/config")).obj
    assert (config["ClusterDomain"], config["HTTPSPort"], config["EncryptSecrets"]) == ("example.internal", 6443, False)
    assert (await read("/v1-k3s/apiservers")).obj == ["192.0.2.10:6443"]
    server.assembly.http.event_loop_lag.start()
    assert (await read("/v1-k3s/readyz")).status in (200, 503)


@supervised()
async def test_readiness_is_that_of_the_server(server: Server) -> None:
    assert (await ask(server, "/v1-k3s/readyz", "node", SERVER_TOKEN)).text == "ok"
    server.assembly.base.stopping.set()
    late = await ask(server, "/v1-k3s/readyz", "node", SERVER_TOKEN)
    assert (late.status, late.message) == (503, "runtime core not ready")


FAILURES: dict[str, tuple[Exception, int, str]] = {
    "a store that fails": (StorageError("disk full"), 503, "the server is currently unable to handle the request"),
    "a part that is not ready": (ServiceUnavailableError("runtime core not ready"), 503, "runtime core not ready"),
    "a bug": (RuntimeError("hush-hush"), 500, "an internal error occurred; the operator finds it under Audit-Id"),
}


@pytest.mark.parametrize(("error", "code", "message"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "text/plain"])
def test_an_agent_of_k3s_shows_the_text_of_a_failure(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, message: str, accept: str
) -> None:
    """k3s's client prints the message of a Status in JSON, and of any other body nothing but the code."""

    def fail(views: object) -> None:
        raise error

    @supervised()
    async def body(server: Server) -> None:
        monkeypatch.setattr("mooring.controlplane.parts.http.api_server_addresses", fail)
        headers = [("Accept", accept)] if accept else []
        answer = await ask(server, "/v1-k3s/apiservers", "node", SERVER_TOKEN, headers=headers)
        assert (answer.status, answer.obj["kind"], answer.obj["code"]) == (code, "Status", code)
        assert answer.message.startswith(message)
        assert "hush-hush" not in answer.text

    body()


@supervised()
async def test_addresses_are_those_of_the_endpointslices(server: Server) -> None:
    def slice_of(
        name: str, service: str, kind: str, addresses: list[str], ready: bool | None, port: str = "https"
    ) -> Any:
        return {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": service}},
            "addressType": kind,
            "ports": [{"name": port, "port": 6443, "protocol": "TCP"}],
            "endpoints": [{"addresses": addresses, **({} if ready is None else {"conditions": {"ready": ready}})}],
        }

    for one in (
        slice_of("a", "kubernetes", "IPv4", ["192.0.2.1"], True),
        slice_of("b", "kubernetes", "IPv6", ["2001:db8::1"], None),
        slice_of("c", "kubernetes", "IPv4", ["192.0.2.3"], False),
        slice_of("d", "other", "IPv4", ["192.0.2.4"], True),
        slice_of("e", "kubernetes", "IPv4", ["192.0.2.5"], True, port="metrics"),
        slice_of("f", "kubernetes", "IPv4", ["192.0.2.1"], True),
    ):
        created = await server.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", one)
        assert created.status == 201, created.text
    listed = (await ask(server, "/v1-k3s/apiservers", "node", SERVER_TOKEN)).obj
    assert listed == ["192.0.2.1:6443", "[2001:db8::1]:6443"]


@supervised()
async def test_changes_that_are_made_in_another_way_name_it(server: Server) -> None:
    for path, command in (
        ("/v1-k3s/encrypt/config", "mooring secrets-encryption rotate"),
        ("/v1-k3s/cert/cacerts", "mooring ca rollover start"),
    ):
        refused = await ask(server, path, "server", SERVER_TOKEN, method="PUT", body={})
        assert refused.status == 400
        assert command in refused.message


@supervised()
async def test_no_static_file_is_served(server: Server) -> None:
    for path in ("/static/", "/static/charts/x.tgz", "/static//../static/x", "//static/\r\nset-cookie: a"):
        answer = await ask(server, path)
        assert (answer.status, answer.body, answer.headers.get("location")) == (404, b"404 page not found\n", None)


@supervised()
async def test_parts_that_are_not_here_have_no_paths(server: Server) -> None:
    for path in ("/db/info", "/db/snapshot", "/v1-k3s/p2p", "/v2/", "/static/../token"):
        assert (await server.get(path)).status == 404
        assert (await ask(server, path, "server", SERVER_TOKEN)).status == 403


def test_the_state_of_encryption_names_keys_and_shows_none(tmp_path: Path) -> None:
    file = tmp_path / "encryption.yaml"
    key = base64.b64encode(b"k" * 32).decode()
    file.write_text(
        json.dumps(
            {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "EncryptionConfiguration",
                "resources": [
                    {
                        "resources": ["secrets"],
                        "providers": [{"aescbc": {"keys": [{"name": "one", "secret": key}]}}, {"identity": {}}],
                    }
                ],
            }
        )
    )

    async def body() -> None:
        flags = {"k3s_supervisor": True, "server_token": SERVER_TOKEN, "encryption_provider_config": str(file)}
        async with open_server(**flags) as server:
            status = await ask(server, "/v1-k3s/encrypt/status", "server", SERVER_TOKEN)
            assert status.obj == {"stage": "start", "activekey": "AES-CBC one", "enable": True, "hashmatch": True}
            assert (await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)).obj["EncryptSecrets"] is True
            assert key not in status.text

    asyncio.run(body())


def test_bodies_are_in_no_audit_log(tmp_path: Path) -> None:
    policy, log = tmp_path / "policy.yaml", tmp_path / "audit.log"
    policy.write_text("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: RequestResponse}]\n")

    async def body() -> None:
        flags = {
            "k3s_supervisor": True,
            "server_token": SERVER_TOKEN,
            "audit_log_path": str(log),
            "audit_policy_file": str(policy),
        }
        async with open_server(**flags) as server:
            await ask(
                server, "/v1-k3s/encrypt/config", "server", SERVER_TOKEN, method="PUT", body={"newToken": "hush-hush"}
            )
            await ask(server, "/v1-k3s/config", "node", SERVER_TOKEN)
            await ask(server, "/v1-k3s/config", "node", "wrong-guess")

    asyncio.run(body())
    events = [json.loads(line) for line in log.read_text().splitlines()]
    ours = [event for event in events if event["requestURI"].startswith("/v1-k3s")]
    ended = [event for event in ours if event["stage"] == "ResponseComplete"]
    assert [(event["user"].get("username"), event["responseStatus"]["code"]) for event in ended] == [
        ("server", 400),
        ("node", 200),
        (None, 401),
    ]
    stages = [event["stage"] for event in ours if event["user"].get("username") == "node"]
    assert stages == ["RequestReceived", "ResponseComplete"]
    for word in ("hush-hush", SERVER_TOKEN, "wrong-guess", "ClusterDomain"):
        assert word not in log.read_text()


# -- the tunnel ------------------------------------------------------------------------------------------------------

HANDSHAKE = [
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
]
CONNECT = "/v1-k3s/connect"


class Outlet(PlainTransport):
    """Takes the frames of one session."""

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        """Opcode and payload of each frame; the server's are not masked."""
        data, frames = b"".join(self.sent), []
        while data:
            frames.append((data[0] & 15, data[2 : 2 + data[1]]))
            data = data[2 + data[1] :]
        return frames


PING, PONG, CLOSE = 9, 10, 8


async def session(server: Server, outlet: Outlet) -> tuple[WebSocketWriter, asyncio.Task[None]]:
    """Open a session as node `worker`."""
    node = server.user("system:node:worker", NODES)
    response = await server.response("GET", CONNECT, via=node, headers=HANDSHAKE)
    assert response.status == 101
    assert dict(response.headers)[b"sec-websocket-accept"] == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert response.upgrade is not None
    assert response.stream is not None
    writer = response.upgrade(cast(TlsTransport, outlet))
    assert isinstance(writer, WebSocketWriter)

    async def run(stream: Streamer) -> None:
        await stream(writer)

    task = asyncio.create_task(run(response.stream))
    await settle()
    return writer, task


@supervised()
async def test_a_node_keeps_a_session_with_pings(server: Server) -> None:
    outlet = Outlet()
    writer, task = await session(server, outlet)
    supervisor = server.assembly.http.supervisor
    assert supervisor is not None
    assert len(supervisor.tunnels) == 1
    for _ in range(30):
        writer.received(b"\x89\x80\0\0\0\0")  # a masked ping without payload
        await server.clock.advance(PING_SECONDS)
    opcodes = [opcode for opcode, _ in outlet.frames]
    assert (opcodes.count(PING), opcodes.count(PONG)) == (31, 30)
    assert not task.done()
    writer.lost()
    await task
    assert len(supervisor.tunnels) == 0


@supervised()
async def test_a_silent_agent_loses_its_session(server: Server) -> None:
    outlet = Outlet()
    _, task = await session(server, outlet)
    for _ in range(int(SILENCE_SECONDS / PING_SECONDS) + 1):
        await server.clock.advance(PING_SECONDS)
    await task


@supervised()
async def test_sessions_end_when_the_server_stops(server: Server) -> None:
    _, task = await session(server, Outlet())
    supervisor = server.assembly.http.supervisor
    assert supervisor is not None
    supervisor.tunnels.drain()
    await task
    _, late = await session(server, Outlet())
    await late


@supervised()
async def test_a_session_ends_when_its_certificate_is_revoked(server: Server) -> None:
    _, task = await session(server, Outlet())
    await revoke(server, nodeName="worker")
    await server.clock.advance(1)
    await task


@supervised()
async def test_only_a_node_with_a_websocket_is_connected(server: Server) -> None:
    node, group = server.user("system:node:worker", NODES), server.user("jane", NODES)
    assert (await server.get(CONNECT, via=node)).status == 400
    stranger = await server.get(CONNECT, via=group, headers=HANDSHAKE)
    assert (stranger.status, stranger.message) == (401, "failed authentication")
    for user in ("node", "server"):
        assert (await ask(server, CONNECT, user, SERVER_TOKEN, headers=HANDSHAKE)).message == "forbidden"
    old = [*HANDSHAKE[:3], ("Sec-WebSocket-Version", "8")]
    assert (await server.get(CONNECT, via=node, headers=old)).status == 400


def test_a_real_client_keeps_a_session_without_an_origin(tmp_path: Path) -> None:
    with served_room(k3s_supervisor=True, server_token=SERVER_TOKEN) as (served, server):
        node = server.ca.client("system:node:worker", NODES)
        peer = websocket_client.create_connection(
            f"wss://localhost:{served.port}{CONNECT}",
            sslopt={"context": served.context(tmp_path, node)},
            suppress_origin=True,
            timeout=PATIENCE,
        )
        assert peer.recv_data(control_frame=True) == (PING, b"")
        peer.ping(b"here")
        assert peer.recv_data(control_frame=True) == (PONG, b"here")
        peer.close(timeout=PATIENCE)
        cast(Any, peer).shutdown()
