"""Server level of the supervisor API: the sealed keys, and rotations of the server token (docs/protocol/k3s.md#server-level)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from mooring.errors import (
    BadRequestError,
    ConfigError,
    InternalServerError,
    StorageError,
    TooManyRequestsError,
    UnauthorizedError,
)
from mooring.secret import Secret
from mooring.server.endpoints.supervisor.servers import Confirm, ServerKeys, rotate_token, server_bootstrap
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.sharedkeys.serverjoin import KnownTokenError
from mooring.trust.sharedkeys.servertoken import AgentRotationRefusedError
from tests.server.test_supervisor import SERVER_TOKEN, ask, supervised
from tests.support.serverroom import Server
from tests.support.testca import ThrowawayCA

NEW = "fedcba9876543210fedcba9876543210"
BOOTSTRAP_TOKEN = "abcdef.0123456789abcdef"


class Asked:
    """A request with a body."""

    audit_id = "5f3c"

    def __init__(self, body: bytes = b"") -> None:
        self.request = self
        self._body = body

    async def body(self) -> bytes:
        return self._body

    async def confirm(self) -> None:
        """Accept the credential again."""


CA_PEM = ThrowawayCA().certificate_pem


class Keys:
    """Keys of a server; records rotations."""

    def __init__(self, error: Exception | None = None, row: Any = None, datastore: Any = None) -> None:
        self.rotations: list[tuple[bytes | None, timedelta]] = []
        self.agent_rotations: list[tuple[bytes | None, timedelta]] = []
        self.error, self.row = error, row
        self.read: list[bool] = []
        self.served = ServerKeys(
            views={},
            configuration=lambda: {"ClusterDomain": "x"},
            sealed_row=self.sealed_row,
            datastore=datastore,
            server_ca=lambda: CA_PEM,
            read_tokens=lambda: self.read.append(True),
            rotate=self.rotate,
            rotate_agent=self.rotate_agent,
        )

    async def sealed_row(self) -> Any:
        return self.row

    async def rotate(self, token: Secret | None, grace: timedelta, confirm: Confirm) -> None:
        await asyncio.sleep(0)
        await confirm()
        if self.error is not None:
            raise self.error
        self.rotations.append((token.reveal() if token is not None else None, grace))

    async def rotate_agent(self, token: Secret | None, grace: timedelta, confirm: Confirm) -> None:
        if self.error is not None:
            raise self.error
        self.agent_rotations.append((token.reveal() if token is not None else None, grace))


def put(keys: Keys, body: bytes) -> Any:
    context: Any = Asked(body)
    return asyncio.run(_run(rotate_token, context, keys.served))


async def _run(handler: Callable[[Any, ServerKeys], Awaitable[Any]], context: Any, keys: ServerKeys) -> Any:
    return await handler(context, keys)


DAY = timedelta(hours=24)
ACCEPTED: dict[str, tuple[dict[str, str], tuple[bytes | None, timedelta]]] = {
    "a token": ({"newToken": NEW}, (NEW.encode(), DAY)),
    "a token of k3s": ({"newToken": f"K10{ca_hash(CA_PEM)}::server:{NEW}"}, (NEW.encode(), DAY)),
    "a token without a hash": ({"newToken": f"K10::server:{NEW}"}, (NEW.encode(), DAY)),
    "no token": ({"newToken": ""}, (None, DAY)),
    "a grace": ({"newToken": NEW, "grace": "90m"}, (NEW.encode(), timedelta(minutes=90))),
    "a field of a later k3s": ({"newToken": NEW, "later": "x"}, (NEW.encode(), DAY)),
    "no grace": ({"newToken": NEW, "grace": "0"}, (NEW.encode(), timedelta())),
}


@pytest.mark.parametrize(("body", "expected"), ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_rotations(body: dict[str, str], expected: tuple[bytes | None, timedelta]) -> None:
    keys = Keys()
    answer = put(keys, json.dumps(body).encode())
    assert (answer.status, answer.body) == (200, b"")
    assert keys.rotations == [expected]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"newAgentToken": NEW}, (NEW.encode(), DAY)),
        ({"newAgentToken": f"K10{ca_hash(CA_PEM)}::node:{NEW}", "grace": "0"}, (NEW.encode(), timedelta())),
        ({"newAgentToken": "", "grace": "1h"}, (None, timedelta(hours=1))),
    ],
    ids=["a token", "a whole token without a grace", "a token that the server makes"],
)
def test_an_agent_token_is_replaced_by_its_own_field(
    body: dict[str, str], expected: tuple[bytes | None, timedelta]
) -> None:
    keys = Keys()
    assert put(keys, json.dumps(body).encode()).status == 200
    assert (keys.rotations, keys.agent_rotations) == ([], [expected])


REFUSED: dict[str, tuple[bytes, str]] = {
    "both tokens": (json.dumps({"newToken": NEW, "newAgentToken": NEW}).encode(), "newAgentToken: .* not both"),
    "an agent token of null": (b'{"newAgentToken": null}', "newAgentToken: give the new agent token"),
    "a server token as agent token": (
        json.dumps({"newAgentToken": f"K10{ca_hash(CA_PEM)}::server:{NEW}"}).encode(),
        "newAgentToken: the agent token must end with ::node",
    ),
    "a bootstrap token as agent token": (
        json.dumps({"newAgentToken": BOOTSTRAP_TOKEN}).encode(),
        "newAgentToken: this is a bootstrap token",
    ),
    "an agent token that can be guessed": (b'{"newAgentToken": "short"}', "newAgentToken: .*16 to 512"),
    "an agent token of another cluster": (
        json.dumps({"newAgentToken": f"K10{'0' * 64}::node:{NEW}"}).encode(),
        "newAgentToken: its CA hash is not that of this cluster",
    ),
    "an empty body": (b"", "unexpected end of JSON input"),
    "half of a body": (b'{"newToken": "', "unexpected end of JSON input"),
    "a list": (b"[]", "not a JSON object"),
    "no token": (b"{}", "newToken: give the new"),
    "null": (b'{"newToken": null}', "newToken: give the new"),
    "a number": (b'{"newToken": 5}', "newToken: give the new"),
    "a bootstrap token": (json.dumps({"newToken": BOOTSTRAP_TOKEN}).encode(), "this is a bootstrap token"),
    "a whole bootstrap token": (
        json.dumps({"newToken": f"K10{'0' * 64}::{BOOTSTRAP_TOKEN}"}).encode(),
        "this is a bootstrap token",
    ),
    "a token that can be guessed": (b'{"newToken": "short"}', "16 to 512"),
    "a token of another cluster": (
        json.dumps({"newToken": f"K10{'0' * 64}::server:{NEW}"}).encode(),
        "its CA hash is not that of this cluster",
    ),
    "half of a surrogate pair": (b'{"newToken": "\\ud8000000000000000000"}', "surrogate"),
    "a grace that is none": (json.dumps({"newToken": NEW, "grace": "tomorrow"}).encode(), "grace: give a duration"),
    "a grace of a number": (json.dumps({"newToken": NEW, "grace": 5}).encode(), "grace: give a duration"),
    "a grace without an end": (json.dumps({"newToken": NEW, "grace": "10000h"}).encode(), "0 to 720 hours"),
}


@pytest.mark.parametrize(("body", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_rotations_change_nothing(body: bytes, reason: str) -> None:
    keys = Keys()
    with pytest.raises(BadRequestError, match=reason) as raised:
        put(keys, body)
    assert (keys.rotations, keys.agent_rotations) == ([], [])
    assert NEW not in str(raised.value)
    assert BOOTSTRAP_TOKEN not in str(raised.value)


def test_a_token_that_is_known_is_the_clients_fault() -> None:
    with pytest.raises(BadRequestError, match="newToken: the same"):
        put(Keys(KnownTokenError("the same")), b'{"newToken": ""}')


def test_an_agent_token_that_is_refused_is_the_clients_fault_and_a_failure_names_what_was_not_rotated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(BadRequestError, match="newAgentToken: too early"):
        put(Keys(AgentRotationRefusedError("too early")), b'{"newAgentToken": ""}')
    with pytest.raises(InternalServerError, match="the agent token was not rotated"), caplog.at_level(logging.ERROR):
        put(Keys(StorageError("disk full")), b'{"newAgentToken": ""}')
    assert "the agent token was not rotated: disk full" in caplog.text


@pytest.mark.parametrize("error", [StorageError("disk full"), ConfigError("wrong file")], ids=["store", "files"])
def test_a_rotation_that_fails_names_the_entry_of_the_log(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys(error)
    with pytest.raises(InternalServerError, match="under Audit-Id 5f3c"), caplog.at_level(logging.ERROR):
        put(keys, json.dumps({"newToken": NEW}).encode())
    assert f"5f3c: the server token was not rotated: {error}" in caplog.text
    keys.error = None
    put(keys, b'{"newToken": ""}')  # the next one is not held up


def test_one_rotation_runs_at_a_time() -> None:
    keys = Keys()

    async def both() -> Any:
        context: Any = Asked(b'{"newToken": ""}')
        two = (rotate_token(context, keys.served), rotate_token(context, keys.served))
        return await asyncio.gather(*two, return_exceptions=True)

    results = asyncio.run(both())
    assert isinstance(results[1], TooManyRequestsError)
    assert len(keys.rotations) == 1


PLACE = {"etcdServers": ["https://192.0.2.1:2379"], "etcdPrefix": "/registry"}


def test_keys_are_served_sealed_with_the_place_of_the_store() -> None:
    context: Any = Asked()
    answer = asyncio.run(_run(server_bootstrap, context, Keys(row={"version": 2}, datastore=PLACE).served))
    assert json.loads(answer.body) == {
        "version": 1,
        "configuration": {"ClusterDomain": "x"},
        "sealedKeys": {"version": 2},
        "datastore": PLACE,
    }


def test_keys_that_are_files_are_not_served() -> None:
    context: Any = Asked()
    with pytest.raises(BadRequestError, match="--shared-keys files"):
        asyncio.run(_run(server_bootstrap, context, Keys(datastore=PLACE).served))


@supervised()
async def test_a_first_server_without_etcd_says_how_to_get_there(server: Server) -> None:
    reply = await ask(server, "/v1-k3s/server-bootstrap", "server", SERVER_TOKEN)
    assert reply.status == 400
    assert reply.message.startswith("etcd disabled: ")


@supervised()
async def test_only_servers_reach_these_paths_and_only_with_their_methods(server: Server) -> None:
    await server.bootstrap_token(BOOTSTRAP_TOKEN)
    for path, method in (("/v1-k3s/server-bootstrap", "GET"), ("/v1-k3s/token", "PUT")):
        node = await ask(server, path, "node", SERVER_TOKEN, method=method)
        machine = await ask(server, path, method=method, headers=[("Authorization", f"Bearer {BOOTSTRAP_TOKEN}")])
        assert (node.status, machine.status) == (403, 403)
        other = await ask(server, path, "server", SERVER_TOKEN, method="POST")
        assert other.status == 405


@supervised()
async def test_a_rotation_of_a_store_in_memory_fails_with_an_id(server: Server) -> None:
    reply = await ask(
        server, "/v1-k3s/token", "server", SERVER_TOKEN, method="PUT", body=json.dumps({"newToken": NEW}).encode()
    )
    assert reply.status == 500
    assert reply.headers["audit-id"] in reply.message


def test_a_token_that_was_replaced_a_moment_ago_rotates_nothing() -> None:
    keys = Keys()
    context: Any = Asked(b'{"newToken": "nnnnnnnnnnnnnnnn"}')

    async def confirm() -> None:
        assert keys.read, "the tokens of the files judge"
        raise UnauthorizedError()

    context.confirm = confirm
    with pytest.raises(UnauthorizedError):
        asyncio.run(_run(rotate_token, context, keys.served))
    assert (keys.rotations, keys.served.is_rotating) == ([], False)
