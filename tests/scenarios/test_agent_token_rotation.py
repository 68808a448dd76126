"""Rotations of the agent token, with a grace and without: of two servers on one store, and of workers on one data directory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mooring.trust.k3s.token import parse_token
from tests.support import forkserver, liveserver
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.servertokens import accepts
from tests.support.sharedstore import shared_store
from tests.support.workers import WORKERS, worker_pids

__all__ = ["mooring"]
AGENT, NEW = "agent-agent-agent-agent", "fedcba9876543210fedcba9876543210"
CONFIG = "/v1-k3s/config"


BRISK = """
from mooring.controlplane.sharedkeys import share
from mooring.storage import formatlevel
share.FOLLOW_SECONDS = formatlevel.RENEW_SECONDS = 0.3
from mooring.cli.main import main
main()
"""
"""`mooring` with short times between two looks at the store."""


def launched(data_dir: Path, port: int, flags: tuple[str, ...]) -> forkserver.Process:
    place = ("--data-dir", str(data_dir), "--bind-address", "127.0.0.1", "--secure-port", str(port))
    with (data_dir.parent / f"{data_dir.name}.log").open("ab") as log:
        return forkserver.Process(("-c", BRISK, "server", *place, *flags), stdout=log, stderr=log)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LiveServer, LiveServer]]:
    monkeypatch.setattr(liveserver, "_launched", launched)
    flags = ("--k3s-supervisor", "--agent-token", AGENT, *shared_store(tmp_path))
    with ThreadPoolExecutor() as pool:
        one, two = pool.map(lambda name: start_server(tmp_path / name, *flags), ("one", "two"))
    yield one, two
    one.stop()
    two.stop()


@pytest.fixture
def server_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr(liveserver, "_launched", launched)
    server = start_server(tmp_path / "data", "--k3s-supervisor", "--workers", str(WORKERS))
    yield server
    server.stop()


def is_agent(server: LiveServer, password: str) -> bool:
    return accepts(server, password, user="node", path=CONFIG)


def agent_token(server: LiveServer) -> str:
    password = parse_token((server.data_dir / "server/agent-token").read_text().strip()).password
    return password.reveal().decode() if password else ""


def test_the_agent_token_of_two_servers_is_rotated(
    servers: tuple[LiveServer, LiveServer], mooring: CommandLine, tmp_path: Path
) -> None:
    one, two = servers
    place = ("--data-dir", str(one.data_dir))
    file = tmp_path / "new"
    file.write_text(NEW)
    file.chmod(0o600)

    refused = mooring(
        "token", "rotate", "--agent", "-s", one.url, "-t", (one.data_dir / "server/agent-token").read_text()
    )
    assert "this is an agent token" in refused.err

    def rotate() -> bool:
        done = mooring(
            "token",
            "rotate",
            "--agent",
            "-s",
            one.url,
            *place,
            "--new-token-file",
            str(file),
            "--grace",
            "1h",
            "-o",
            "json",
        )
        assert done.code == 0 or "the format of this store has level 1" in done.err, done.err
        assert NEW not in done.all
        if done.code == 0:
            assert json.loads(done.out)["kind"] == "AgentTokenRotation"
        return done.code == 0

    eventually(rotate, one)  # the servers raise the level of the store first
    for server in servers:
        eventually(lambda server=server: is_agent(server, NEW), server)  # type: ignore[misc] # bound at once
        assert is_agent(server, AGENT)
        eventually(lambda server=server: agent_token(server) == NEW, server)  # type: ignore[misc] # bound at once
        assert not accepts(server, NEW)

    local = ("--data-dir", str(two.data_dir), "--storage", f"sqlite:{tmp_path}/store.db")
    status = json.loads(mooring.done("token", "rotate", "--agent", *local, "--status", "-o", "json"))
    assert [(term["state"], term["expired"]) for term in status["tokens"]] == [("present", False), ("former", False)]

    said = mooring.done("token", "rotate", "--agent", *local, "--grace", "0")
    assert "The agent token was replaced." in said
    third = agent_token(two)
    assert third not in (NEW, AGENT)
    assert third not in said
    for server in servers:
        eventually(lambda server=server: not is_agent(server, NEW), server)  # type: ignore[misc] # bound at once
        assert is_agent(server, third)
        assert not is_agent(server, AGENT)

    two.kill()
    two.restart()  # with the flag that names the first agent token
    assert is_agent(two, third)
    assert not is_agent(two, AGENT)
    assert "it is not used; leave the flag out" in two.log
    for secret in (AGENT, NEW, third):
        assert secret not in one.log + two.log


def test_every_worker_follows_a_rotation_of_the_agent_token(
    server_of_workers: LiveServer, mooring: CommandLine
) -> None:
    server = server_of_workers
    first = parse_token((server.data_dir / "server/token").read_text().strip()).password
    assert first is not None
    place, formers = ("--data-dir", str(server.data_dir)), [first.reveal().decode()]

    def rotated(grace: str) -> str:
        """Rotate the token, and wait until many connections in a row take the new one; the kernel spreads them over the workers."""
        eventually(lambda: mooring("token", "rotate", "--agent", *place, "--grace", grace).code == 0, server)
        new = agent_token(server)
        eventually(lambda: all(is_agent(server, new) for _ in range(8 * WORKERS)), server)
        return new

    formers.append(rotated("1h"))
    assert all(is_agent(server, formers[0]) for _ in range(8 * WORKERS)), "the grace"
    present = rotated("0")
    for former in formers * WORKERS:
        assert not is_agent(server, former)
    killed = worker_pids(server)[0]
    os.kill(killed, signal.SIGKILL)  # its successor reads the files
    eventually(lambda: len(pids := worker_pids(server)) == WORKERS and killed not in pids, server)
    assert all(is_agent(server, present) for _ in range(8 * WORKERS))
    for former in formers * WORKERS:
        assert not is_agent(server, former)
    assert accepts(server, formers[0], path="/v1-k3s/encrypt/status"), "the server token stays"
    for secret in (*formers, present):
        assert secret not in server.log
