"""`mooring token rotate`: through a server, on its data directory, and what both refuse."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooring.client.http.requests import fetch
from mooring.clock import SystemClock
from mooring.secret import Secret
from mooring.trust.httpexchange import HttpRequest, HttpResponse, Trust
from mooring.trust.k3s.token import parse_token
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.servertokens import accepts

__all__ = ["mooring"]
NEW, NEXT = "fedcba9876543210fedcba9876543210", "aaaabbbbccccddddeeeeffff00001111"
OTHER = "0011223344556677889900aabbccddee"
"""A token of no server here, whichever test came before."""
"""Tokens in the order of the tests of this file."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with the supervisor API, whose token each test rotates."""
    found = start_server(tmp_path_factory.mktemp("rotation") / "data", "--k3s-supervisor", "--workers", "2")
    yield found
    found.stop()


@pytest.fixture
def guessed_server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server for a test that uses up the guesses of this address."""
    found = start_server(tmp_path / "data", "--k3s-supervisor", "--workers", "2")
    yield found
    found.stop()


def token_of(server: LiveServer) -> str:
    return (server.data_dir / "server/token").read_text().strip()


def password_of(server: LiveServer) -> str:
    password = parse_token(token_of(server)).password
    assert password is not None
    return password.reveal().decode()


STATUS = "/v1-k3s/encrypt/status"
"""A path that the server token alone may read."""
CONFIG = "/v1-k3s/config"
"""A path that agents may read, too."""


def test_a_rotation_through_the_server_leaves_both_tokens_in_force(server: LiveServer, mooring: CommandLine) -> None:
    old = password_of(server)
    said = mooring(
        "token", "rotate", "-s", server.url, "-t", token_of(server), "--new-token", NEW, "--grace", "1h", "-o", "json"
    )
    assert said.code == 0, said.err
    assert json.loads(said.out)["kind"] == "ServerTokenRotation"
    assert "Keep the former one with the backups" in said.err
    assert NEW not in said.all
    assert old not in said.all
    assert password_of(server) == NEW
    eventually(lambda: accepts(server, NEW, path=STATUS) and accepts(server, NEW, user="node", path=CONFIG), server)
    assert accepts(server, old, path=STATUS)
    assert accepts(server, old, user="node", path=CONFIG)

    here = json.loads(mooring.done("token", "rotate", "--data-dir", str(server.data_dir), "--status", "-o", "json"))
    assert [(one["state"], one["expired"]) for one in here["tokens"]] == [("present", False), ("former", False)]
    table = mooring.done("token", "rotate", "--data-dir", str(server.data_dir), "--status")
    assert table.splitlines()[0].split() == ["ID", "TOKEN", "AGE", "GRACE", "ENDS"]
    assert NEW not in table


def test_a_rotation_beside_the_server_is_followed_by_its_workers(
    guessed_server: LiveServer, mooring: CommandLine
) -> None:
    server = guessed_server
    old, file = password_of(server), server.data_dir.parent / "next"
    file.write_text(NEXT)
    file.chmod(0o600)
    said = mooring.done(
        "token", "rotate", "--data-dir", str(server.data_dir), "--new-token-file", str(file), "--grace", "0"
    )
    assert "Every server refuses the former one within 10 seconds." in said
    eventually(lambda: accepts(server, NEXT, path=STATUS), server)
    eventually(lambda: not accepts(server, old, path=STATUS), server)  # by the other worker
    assert password_of(server) == NEXT


@pytest.mark.parametrize("kind", [(), ("--agent",)], ids=["server token", "agent token"])
def test_a_server_whose_store_is_its_own_says_where_the_status_is(
    server: LiveServer, mooring: CommandLine, kind: tuple[str, ...]
) -> None:
    refused = mooring("token", "rotate", *kind, "--status", "-s", server.url, "-t", token_of(server))
    assert refused.code != 0
    assert "etcd disabled" not in refused.err
    assert (
        "it is in a file of that server: run the command on its machine, with --data-dir and without --server"
        in refused.err
    )


REFUSED: dict[str, tuple[list[str], int, str]] = {
    "a bootstrap token as the new one": (["--new-token", "abcdef.0123456789abcdef"], 2, "this is a bootstrap token"),
    "a new token that can be guessed": (["--new-token", "short"], 2, "16 to 512"),
    "a bootstrap token as the new agent token": (
        ["--agent", "--new-token", "abcdef.0123456789abcdef"],
        2,
        "new-token: this is a bootstrap token",
    ),
    "a server token as the new agent token": (
        ["--agent", "--new-token", f"K10{'0' * 64}::server:{NEW}"],
        2,
        "new-token: the agent token must end with ::node",
    ),
    "an agent token with an agent token": (
        ["--agent", "-s", "https://127.0.0.1:1", "-t", f"K10{'0' * 64}::node:{NEW}"],
        1,
        "this is an agent token",
    ),
    "two new tokens": (["--new-token", NEW, "--new-token-file", "x"], 2, "not both"),
    "a grace of a year": (["--grace", "9000h"], 2, "0 to 720 hours"),
    "a status with a new token": (["--status", "--new-token", NEW], 2, "changes nothing"),
    "a bootstrap token as the present one": (
        ["-s", "https://127.0.0.1:1", "-t", "abcdef.0123456789abcdef"],
        1,
        "a server needs the server token",
    ),
    "an agent token": (
        ["-s", "https://127.0.0.1:1", "-t", f"K10{'0' * 64}::node:{NEW}"],
        1,
        "this is an agent token",
    ),
    "a token without the hash": (["-s", "https://127.0.0.1:1", "-t", NEW], 1, "no hash of the CA"),
    "a server without TLS": (
        ["-s", "http://127.0.0.1:1", "-t", f"K10{'0' * 64}::server:{NEW}"],
        1,
        "the scheme must be https",
    ),
    "a token of another data directory": (["-t", OTHER], 1, "not the present server token"),
    "a data directory without a store": (["--data-dir", "/nonexistent"], 1, "/nonexistent"),
    "no present token": (
        ["-s", "https://127.0.0.1:1", "--data-dir", "/nonexistent"],
        1,
        "give the present server token",
    ),
}


@pytest.mark.parametrize(("flags", "code", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_before_anything_changes(
    server: LiveServer, mooring: CommandLine, flags: list[str], code: int, reason: str
) -> None:
    before = token_of(server)
    found = mooring("token", "rotate", "--data-dir", str(server.data_dir), *flags)
    assert (found.code, found.err.count("\n")) == (code, 1), found.err
    assert reason in found.err
    assert NEW not in found.err
    assert OTHER not in found.err
    assert token_of(server) == before


def test_keys_in_clear_are_never_served(server: LiveServer) -> None:
    for path in ("/v1-k3s/server-bootstrap", "/v1-k3s/token", "/v1-k3s/config"):
        credentials = KubeconfigUser("", username="server", password=Secret(password_of(server)))
        reply = asyncio.run(
            fetch(HttpRequest(Trust(server.ca_pem), url=server.url + path, credentials=credentials), SystemClock())
        )
        assert isinstance(reply, HttpResponse)
        for name in ("ca.key", "sa.key"):
            text = (server.data_dir / "pki" / name).read_bytes()
            assert text.splitlines()[1] not in reply.body
            assert base64.b64encode(text)[:40] not in reply.body


def test_the_present_token_stays_when_nothing_answers(mooring: CommandLine, tmp_path: Path) -> None:
    found = mooring("token", "rotate", "-s", "https://127.0.0.1:1", "-t", f"K10{'0' * 64}::server:{NEW}")
    assert (found.code, found.err.count("\n")) == (1, 1)
    assert "nothing answers there" in found.err
