"""`mooring agent --leave-on-stop`: the agent ends its membership when it is stopped, and on no other end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooring.agent import daemon, leave
from mooring.agent.k3s import process as k3s_process
from mooring.agent.k3s.files import DATA_DIR, AgentFiles
from mooring.agent.leave import Membership
from mooring.agent.steps import EXISTING, JoinError
from mooring.clock import SystemClock
from mooring.errors import NotFoundError, PeerError
from mooring.trust.kubeconfig import Cluster
from tests.agent.k3s.test_live import bootstrap_token
from tests.cli.test_leave_live import files
from tests.scenarios.test_renewal import agent, joined
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.polling import eventually
from tests.support.ports import free_port

__all__ = ["live_server", "mooring"]


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = start_server(tmp_path_factory.mktemp("k3s") / "server", "--k3s-supervisor")
    yield server
    server.stop()


def is_member(server: LiveServer, name: str) -> bool:
    try:
        server.run(lambda client: client.get("nodes", name))
    except NotFoundError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_agent_leaves(number: signal.Signals, live_server: LiveServer, tmp_path: Path) -> None:
    name = f"thrown-{number.name.lower()}"
    root = tmp_path / "root"
    joined(live_server, name, root)
    with agent(root, "--leave-on-stop") as (process, log):
        eventually(lambda: f"member {name} of" in log.read_text(), live_server)
        process.send_signal(number)
        assert process.wait(20) == 0, log.read_text()
    assert f"left {live_server.url}: node {name} is deleted, its certificates are revoked" in log.read_text()
    assert (is_member(live_server, name), files(root)) == (False, ["agent.log"])


def test_a_stopped_agent_leaves_the_k3s_way(supervisor: LiveServer, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (_, token), port = bootstrap_token(supervisor), str(free_port())
    flags = ("--server", supervisor.url, "--token", token, "--node-name", "thrown-k3s", "--lb-server-port", port)
    with agent(root, "--leave-on-stop", *flags) as (process, log):
        eventually(lambda: is_member(supervisor, "thrown-k3s"), supervisor)
        eventually(lambda: "member thrown-k3s of" in log.read_text(), supervisor)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    assert "node thrown-k3s is deleted" in log.read_text()
    assert not is_member(supervisor, "thrown-k3s")
    assert leave.of_k3s(AgentFiles(root, DATA_DIR)) is None


def test_without_an_answer_the_files_stay_and_a_line_says_so(live_server: LiveServer, tmp_path: Path) -> None:
    root = tmp_path / "root"
    joined(live_server, "unheard", root)
    kubeconfig = root / "etc/kubernetes/kubelet.conf"
    kubeconfig.write_text(kubeconfig.read_text().replace(str(live_server.port), str(free_port())))
    before = files(root)
    with agent(root, "--leave-on-stop") as (process, log):
        eventually(lambda: "member unheard of" in log.read_text(), live_server)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    (line,) = (line for line in log.read_text().splitlines() if "--leave-on-stop" in line)
    assert "was not ended, its files stay" in line
    assert set(before) <= set(files(root))
    assert is_member(live_server, "unheard")


def test_a_server_that_hangs_does_not_hold_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()

    async def hang(*_: Any) -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(leave, "end", hang)
    monkeypatch.setattr(leave, "STOP_SECONDS", 0.01)
    found = Membership((file,), AgentFiles(tmp_path, DATA_DIR), file, file)
    with caplog.at_level(logging.WARNING, "mooring.agent"):
        asyncio.run(leave.on_stop(lambda: found, SystemClock()))
    assert "no server answered within 0.01 s" in caplog.text
    assert file.exists()
    asyncio.run(leave.on_stop(lambda: None, SystemClock()))


def test_a_server_that_hangs_leaves_time_for_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked = tmp_path / "file", list[str]()
    file.touch()

    async def end(found: Membership, clock: object) -> bool:
        asked.append(found.server)
        if found.server == "https://hangs":
            await asyncio.Event().wait()
        if found.server == "https://down":
            raise PeerError("connection refused")
        return True

    monkeypatch.setattr(leave, "end", end)
    monkeypatch.setattr(leave, "STOP_SECONDS", 0.3)
    servers = [f"https://{name}" for name in ("hangs", "down", "answers", "beyond")]
    clusters = tuple(Cluster("", server, b"") for server in servers)
    found = Membership((file,), AgentFiles(tmp_path, DATA_DIR), file, file, "n1", clusters)
    asyncio.run(leave.on_stop(lambda: found, SystemClock()))
    assert asked == servers[:3]
    assert not file.exists()


def test_a_file_that_stays_after_the_end_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def end(found: Membership, clock: object) -> bool:
        return True

    monkeypatch.setattr(leave, "end", end)
    directory = tmp_path / "cannot-be-unlinked"
    directory.mkdir()
    found = Membership(
        (directory,), AgentFiles(tmp_path, DATA_DIR), directory, directory, "n1", (Cluster("", "https://a", b""),)
    )
    with caplog.at_level(logging.WARNING, "mooring.agent"):
        asyncio.run(leave.on_stop(lambda: found, SystemClock()))
    assert "node n1 is deleted, its certificates are revoked, but a file stays" in caplog.text


@pytest.mark.parametrize(
    ("module", "flags"),
    [
        pytest.param(daemon, (), id="kubeadm's way"),
        pytest.param(k3s_process, ("--server", "https://192.0.2.1:6443", "--token", "K10::node:x"), id="k3s's way"),
    ],
)
def test_an_agent_that_ends_by_itself_stays_a_member(
    module: Any, flags: tuple[str, ...], mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    async def fail(*_: Any, **__: Any) -> None:
        raise JoinError(EXISTING, "the disk is full")

    async def on_stop(*given: object) -> None:
        calls.append(given)

    monkeypatch.setattr(module, "run", fail)
    monkeypatch.setattr(leave, "on_stop", on_stop)
    done = mooring("agent", "--root", str(tmp_path), "--leave-on-stop", *flags)
    assert (done.code, "the disk is full" in done.err, calls) == (1, True, [])
