"""A Keystone behind a whole server, over verified TLS: the simulated one, and the real one where it is installed."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.authn.keystone import MAX_ANSWER
from mooring.client.http.connection import ConnectionPool
from mooring.errors import ConfigError
from mooring.server.transport.http import Response
from tests.support.keystonepeer import HOME, Keystone, SimulatedKeystone, real, simulated
from tests.support.manualclock import settle
from tests.support.serverroom import Reply, Server, connection, open_server
from tests.support.testca import ThrowawayCA

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}


@pytest.fixture(scope="module", params=["simulated", "real"])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keystone]:
    if request.param == "real" and not (HOME / "bin/keystone-manage").exists():
        pytest.skip(f"no Keystone in {HOME}: python -m tests.keystone installs one")
    kind: Any = {"simulated": simulated, "real": real}[request.param]
    with kind(tmp_path_factory.mktemp("keystone")) as running:
        yield running


@pytest.fixture
def imitation(tmp_path: Path) -> Iterator[SimulatedKeystone]:
    """One that does as it is told."""
    with simulated(tmp_path) as running:
        yield running


def in_server_of(keystone: Keystone, test: Callable[[Server], Awaitable[None]], **flags: Any) -> None:
    """Run `test` with a server that asks this Keystone."""

    async def run() -> None:
        asked = {"keystone_url": keystone.url, "keystone_ca_file": str(keystone.ca_file), **flags}
        async with open_server(**asked) as server:
            try:
                await test(server)
            finally:
                await server.assembly.trust.authentication.close()

    asyncio.run(run())


async def sent(server: Server, user: str, password: str, source: str = "192.0.2.1") -> Reply:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return await server.post(
        REVIEWS, REVIEW, headers=[("authorization", f"Basic {encoded}")], via=connection(source=source)
    )


async def user(server: Server, name: str, password: str) -> Any:
    """Who this is; 401 for nobody."""
    answer = await sent(server, name, password)
    return answer.obj["status"]["userInfo"] if answer.status == 201 else answer.status


async def reason(server: Server, name: str, password: str) -> tuple[str, str]:
    """What the operator reads of a refusal."""
    answer = await sent(server, name, password)
    assert answer.status == 401
    assert answer.obj["message"] == "Unauthorized"
    record = await server.get(f"/debug/authentication/refusals/{answer.headers['audit-id']}")
    assert password not in record.text
    (step,) = (one for one in record.obj["authenticators"] if one["name"] == "keystone")
    return step["reason"], step.get("detail", "")


@pytest.mark.parametrize(
    ("offered", "password", "name", "domain", "known_as"),
    [
        pytest.param("jane", "hunter2", "jane", "Default", "jane", id="of the configured domain"),
        pytest.param("jane@Default", "hunter2", "jane", "Default", "jane", id="the same with its domain"),
        pytest.param("jane@people", "other", "jane", "people", "jane@people", id="of another domain"),
        pytest.param(
            "jane@people@Default", "third", "jane@people", "Default", "jane@people@Default", id="with an @ in the name"
        ),
        pytest.param(
            "žofie@people", 'pa:ss"wörd ', "žofie", "people", "žofie@people", id="with all kinds of letters"
        ),
    ],
)  # fmt: skip
def test_who_comes_in(peer: Keystone, offered: str, password: str, name: str, domain: str, known_as: str) -> None:
    async def test(server: Server) -> None:
        groups = ["system:authenticated"]
        expected = {"username": known_as, "uid": peer.user_id(name, domain), "groups": groups}
        assert await user(server, offered, password) == expected
        assert await user(server, offered, password) == expected

    in_server_of(peer, test)


@pytest.mark.parametrize(
    ("offered", "password", "code"),
    [
        pytest.param("jane", "hunter3", "wrong-user-or-password", id="a wrong password"),
        pytest.param("jane", "other", "wrong-user-or-password", id="the password of the jane of another domain"),
        pytest.param("jane@people", "hunter2", "wrong-user-or-password", id="the other way round"),
        pytest.param("jane@people", "third", "wrong-user-or-password", id="a name with an @ is no user of a domain"),
        pytest.param("nobody", "hunter2", "wrong-user-or-password", id="an unknown user"),
        pytest.param("jane@nowhere", "hunter2", "wrong-user-or-password", id="an unknown domain"),
        pytest.param("gone", "fifth", "wrong-user-or-password", id="a user who is disabled"),
        pytest.param("careful", "sixth", "needs-more-than-a-password", id="a user with a second factor"),
        pytest.param("careful", "wr0ng", "wrong-user-or-password", id="that user with a wrong password"),
        pytest.param("jane@", "hunter2", "no-keystone-name", id="an empty domain"),
    ],
)
def test_who_does_not(peer: Keystone, offered: str, password: str, code: str) -> None:
    async def test(server: Server) -> None:
        assert (await reason(server, offered, password))[0] == code

    in_server_of(peer, test)


def test_a_user_of_keystone_has_no_groups_and_so_no_rights_that_nobody_gave(peer: Keystone) -> None:
    async def test(server: Server) -> None:
        encoded = base64.b64encode(b"jane:hunter2").decode()
        headers = [("authorization", f"Basic {encoded}")]
        answer = await server.get("/api/v1/secrets", headers=headers, via=connection())
        assert answer.status == 403
        assert 'User "jane" cannot list resource "secrets"' in answer.message

    in_server_of(peer, test)


def test_another_ca_is_not_believed_and_the_password_is_not_sent(imitation: SimulatedKeystone, tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    other.write_bytes(ThrowawayCA("stranger").certificate_pem)

    async def test(server: Server) -> None:
        code, detail = await reason(server, "jane", "hunter2")
        assert code == "keystone-unreachable"
        assert "certificate" in detail

    in_server_of(imitation, test, keystone_ca_file=str(other))
    assert imitation.requests == []


def test_without_a_ca_the_machines_roots_are_all_that_is_believed(imitation: SimulatedKeystone) -> None:
    async def test(server: Server) -> None:
        assert (await reason(server, "jane", "hunter2"))[0] == "keystone-unreachable"

    in_server_of(imitation, test, keystone_ca_file="")
    assert imitation.requests == []


@pytest.mark.parametrize("content", ["nothing", "", "\n"])
def test_a_ca_file_that_is_none_stops_the_start(imitation: SimulatedKeystone, tmp_path: Path, content: str) -> None:
    nothing = tmp_path / "nothing.crt"
    nothing.write_text(content)
    with pytest.raises(ConfigError, match="keystone-ca-file: "):
        in_server_of(imitation, lambda server: asyncio.sleep(0), keystone_ca_file=str(nothing))


def test_the_ca_file_is_followed(imitation: SimulatedKeystone, monkeypatch: pytest.MonkeyPatch) -> None:
    good, closed, close = imitation.ca_file.read_bytes(), list[ConnectionPool](), ConnectionPool.close

    async def noted(pool: ConnectionPool) -> None:
        closed.append(pool)
        await close(pool)

    monkeypatch.setattr(ConnectionPool, "close", noted)

    async def test(server: Server) -> None:
        assert (await user(server, "jane", "hunter2"))["username"] == "jane"
        for content, status in (
            (ThrowawayCA("stranger").certificate_pem, 401),
            (b"nothing", 401),
            (b"", 401),
            (good, 201),
        ):
            imitation.ca_file.write_bytes(content)
            await server.files_changed()
            assert (await sent(server, "jane", "hunter2")).status == status
        await server.clock.advance(60)
        await settle()
        assert (await user(server, "jane", "hunter2"))["username"] == "jane"
        assert len(closed) == 2, "of each change that was used, the connections before it"
        imitation.ca_file.write_bytes(good + good)
        await server.files_changed()
        assert (await user(server, "jane", "hunter2"))["username"] == "jane"
        await settle()
        assert len(closed) == 3
        await server.assembly.trust.authentication.close()
        assert len(set(closed)) == len(closed) == 4, "the connections in use as well"

    in_server_of(imitation, test)


def test_nobody_listening_is_a_refusal_that_names_it(tmp_path: Path) -> None:
    with simulated(tmp_path) as gone:
        pass

    async def test(server: Server) -> None:
        assert await reason(server, "jane", "hunter2") == (
            "keystone-unreachable",
            "connection refused, at 127.0.0.1",
        )

    in_server_of(gone, test)


@pytest.mark.parametrize(
    ("response", "code"),
    [
        pytest.param(Response(200, b"{}"), "keystone-unexpected-status", id="200"),
        pytest.param(
            Response(307, b"", ((b"location", b"https://elsewhere.example/v3/auth/tokens"),)), "keystone-unexpected-status",
            id="a redirect is not followed",
        ),
        pytest.param(Response(403, b"{}"), "keystone-forbids", id="403"),
        pytest.param(Response(404, b"{}"), "keystone-not-found", id="404"),
        pytest.param(Response(429, b"{}", ((b"retry-after", b"60"),)), "keystone-busy", id="429"),
        pytest.param(Response(503, b"{}"), "keystone-failed", id="503"),
        pytest.param(Response(201, b"{}"), "keystone-answer-unreadable", id="201 with something else"),
        pytest.param(Response(201, b" " * (MAX_ANSWER + 1)), "keystone-unreachable", id="an answer without an end"),
        pytest.param(
            Response(401, b"{}", ((b"openstack-auth-receipt", b"gAAAAA"),)), "needs-more-than-a-password", id="a second factor"
        ),
    ],
)  # fmt: skip
def test_whatever_keystone_answers_else_is_a_refusal(
    imitation: SimulatedKeystone, response: Response, code: str
) -> None:
    imitation.override = response

    async def test(server: Server) -> None:
        assert (await reason(server, "jane", "hunter2"))[0] == code
        assert len(imitation.requests) >= 1

    in_server_of(imitation, test)


def test_a_name_of_the_clusters_own_is_refused(imitation: SimulatedKeystone) -> None:
    imitation.override = imitation.token("system:admin", "Default")

    async def test(server: Server) -> None:
        assert await reason(server, "jane", "hunter2") == ("reserved-name", "the name begins with system:")

    in_server_of(imitation, test)


def test_who_was_accepted_is_not_asked_about_for_a_while(imitation: SimulatedKeystone) -> None:
    async def test(server: Server) -> None:
        for _ in range(3):
            assert (await sent(server, "jane", "hunter2")).status == 201
        assert len(imitation.requests) == 1
        imitation.override = imitation.refused(401, "Unauthorized")
        assert (await sent(server, "jane", "hunter2")).status == 201, "as long as it is remembered"
        await server.clock.advance(10.0)
        assert (await sent(server, "jane", "hunter2")).status == 401

    in_server_of(imitation, test)


def test_without_a_time_to_remember_keystone_is_asked_each_time(imitation: SimulatedKeystone) -> None:
    async def test(server: Server) -> None:
        for _ in range(3):
            assert (await sent(server, "jane", "hunter2")).status == 201
        assert len(imitation.requests) == 3

    in_server_of(imitation, test, authentication_cache_ttl=timedelta(0))


def test_a_storm_of_one_password_is_one_asking(imitation: SimulatedKeystone) -> None:
    async def test(server: Server) -> None:
        answers = await asyncio.gather(*(sent(server, "jane", "hunter2") for _ in range(20)))
        assert {answer.status for answer in answers} == {201}
        assert len(imitation.requests) == 1

    in_server_of(imitation, test)


def test_who_guesses_beyond_the_budget_does_not_reach_keystone(imitation: SimulatedKeystone) -> None:
    async def test(server: Server) -> None:
        for number in range(20):
            assert (await sent(server, "jane", f"guess-{number}", "198.51.100.7")).status == 401
        before = len(imitation.requests)
        late = asyncio.ensure_future(sent(server, "jane", "hunter2", "198.51.100.7"))
        await settle()
        await server.clock.advance(1.0)
        assert (await late).status == 429
        assert len(imitation.requests) == before
        assert (await sent(server, "jane", "hunter2", "198.51.100.8")).status == 201

    in_server_of(imitation, test)


def test_a_user_of_the_password_file_is_not_keystones_to_name(imitation: SimulatedKeystone, tmp_path: Path) -> None:
    file = tmp_path / "passwords.csv"
    file.write_text("plain-pw,jane,42\n")

    async def test(server: Server) -> None:
        assert (await user(server, "jane", "plain-pw"))["uid"] == "42"
        assert await user(server, "jane", "hunter2") == 401, "although Keystone's jane has it"
        assert imitation.requests == []
        assert (await user(server, "jane@people", "other"))["username"] == "jane@people"

    in_server_of(imitation, test, basic_auth_file=str(file))


def test_a_token_is_not_shown_to_keystone(imitation: SimulatedKeystone) -> None:
    async def test(server: Server) -> None:
        assert (await server.get("/version", token="hunter2")).status == 401
        assert imitation.requests == []

    in_server_of(imitation, test)


def test_neither_password_nor_keystones_token_is_in_any_log(
    imitation: SimulatedKeystone, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "httpcore2")  # as `mooring.cli.serverlogs` has it
    token = imitation.token("jane", "Default")
    subject = dict(token.headers)[b"x-subject-token"].decode()
    imitation.override = token

    async def test(server: Server) -> None:
        assert (await sent(server, "jane", "hunter2-in-no-log")).status == 201
        imitation.override = Response(503, b"hunter2-in-no-log", token.headers)
        assert (await sent(server, "jane", "other-in-no-log")).status == 401

    in_server_of(imitation, test)
    for secret in ("hunter2-in-no-log", "other-in-no-log", subject):
        assert secret not in caplog.text
