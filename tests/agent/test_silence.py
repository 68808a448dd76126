"""Silence of a machine: when a heartbeat was answered last, and what the log says of it after the end of the membership."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from mooring.agent.heartbeat import RECORD_SECONDS, Heartbeat
from mooring.agent.k3s.files import DATA_DIR, AgentFiles
from mooring.agent.member import SILENT, Member, NodeOptions, silence
from mooring.agent.state import NodeState
from mooring.client.cluster import ClusterClient
from mooring.clock import rfc3339
from mooring.errors import UnauthorizedError
from tests.agent.k3s.test_live import bootstrap_token
from tests.agent.test_heartbeat import MACHINE, Cluster
from tests.scenarios.test_renewal import agent, joined
from tests.support import forkserver
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.manualclock import ManualClock, settle
from tests.support.polling import eventually

__all__ = ["live_server"]
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def test_an_answered_heartbeat_is_reported_rarely_and_at_the_end() -> None:
    answers: list[datetime] = []

    async def run() -> None:
        clock = ManualClock()
        cluster = Cluster(clock)
        start = clock.now()
        task = asyncio.create_task(Heartbeat(cast(ClusterClient, cluster), MACHINE, on_answered=answers.append).run())
        await settle()
        assert answers == [start]
        await clock.advance(RECORD_SECONDS - 10)
        assert len(answers) == 1
        await clock.advance(10)
        assert answers[1:] == [start + timedelta(seconds=RECORD_SECONDS)]
        await clock.advance(20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert answers[2:] == [start + timedelta(seconds=RECORD_SECONDS + 20)]

    asyncio.run(run())


def test_a_heartbeat_that_was_never_answered_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[datetime] = []

    async def run() -> None:
        clock = ManualClock()
        cluster = Cluster(clock)

        async def refuse(*_: Any, **__: Any) -> None:
            raise UnauthorizedError

        monkeypatch.setattr(cluster, "get", refuse)
        task = asyncio.create_task(Heartbeat(cast(ClusterClient, cluster), MACHINE, on_answered=answers.append).run())
        await settle()
        await clock.advance(5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert answers == []


@pytest.mark.parametrize(
    ("last", "said"),
    [
        pytest.param(
            rfc3339(NOW - timedelta(days=31)), "from 2026-10-29T12:00:00Z to 2026-11-29T12:00:00Z (31d", id="long"
        ),
        pytest.param(rfc3339(NOW - SILENT), "(20m by its own clock)", id="as long as may be"),
        pytest.param(rfc3339(NOW - SILENT + timedelta(seconds=1)), "", id="short"),
        pytest.param(rfc3339(NOW + timedelta(days=1)), "", id="the clock went back"),
        pytest.param("", "", id="never"),
        pytest.param("soon", "", id="unreadable"),
    ],
)
def test_a_silence_is_a_sentence(last: str, said: str, tmp_path: Path) -> None:
    files = NodeState(tmp_path)
    files.record.write("lastHeartbeat", last)
    sentence = silence(files, NOW)
    assert bool(sentence) is bool(said)
    assert said in sentence


@pytest.mark.parametrize("is_there", [True, False])
def test_a_machine_that_has_left_gets_no_record(is_there: bool, tmp_path: Path) -> None:
    files = NodeState(tmp_path)
    if is_there:
        files.record.write("nodeUID", "u")
    Member("n", (), files, NodeOptions()).remember_heartbeat(NOW)
    assert files.record.read().last_heartbeat == ("2026-11-29T12:00:00Z" if is_there else "")
    assert files.record.path.exists() is is_there


def test_a_record_that_cannot_be_written_ends_no_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = NodeState(tmp_path)
    files.record.write("nodeUID", "u")

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(Path, "replace", full)
    Member("n", (), files, NodeOptions()).remember_heartbeat(NOW)
    assert files.record.read().last_heartbeat == ""


# ── with a server ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = start_server(tmp_path_factory.mktemp("k3s") / "server", "--k3s-supervisor")
    yield server
    server.stop()


def is_recorded(files: NodeState | AgentFiles, than: str = "") -> bool:
    return files.record.read().last_heartbeat > than


def test_the_log_says_how_long_the_machine_was_silent(live_server: LiveServer, tmp_path: Path) -> None:
    root = tmp_path / "root"
    state = joined(live_server, "slept", root)
    with agent(root):
        eventually(lambda: is_recorded(state), live_server)
    state.record.write("lastHeartbeat", rfc3339(datetime.now(UTC) - timedelta(days=31)))
    live_server.run(lambda client: client.delete("nodes", "slept"))
    with agent(root) as (_, log):
        eventually(lambda: "The heartbeat has ended" in log.read_text(), live_server)
    (line,) = (line for line in log.read_text().splitlines() if "The heartbeat has ended" in line)
    assert (
        "(31d by its own clock): a cluster may remove silent machines (reason Silent). The heartbeat has ended" in line
    )
    assert "mooring join ADDRESS --token TOKEN" in line


def test_a_machine_that_was_not_silent_is_told_nothing_of_it(live_server: LiveServer, tmp_path: Path) -> None:
    root = tmp_path / "root"
    state = joined(live_server, "awake", root)
    with agent(root) as (_, log):
        eventually(lambda: is_recorded(state), live_server)
        live_server.run(lambda client: client.delete("nodes", "awake"))
        eventually(lambda: "The heartbeat has ended" in log.read_text(), live_server)
    assert "Silent" not in log.read_text()


def test_the_error_says_it_to_a_machine_of_the_k3s_way(supervisor: LiveServer, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    _, token = bootstrap_token(supervisor)
    flags = ("--server", supervisor.url, "--node-name", "slept", "--disable-apiserver-lb")
    files = AgentFiles(root, DATA_DIR)
    with agent(root, "--token", token, *flags):
        eventually(lambda: is_recorded(files), supervisor)
    files.record.write("lastHeartbeat", rfc3339(datetime.now(UTC) - timedelta(days=31)))
    supervisor.run(lambda client: client.delete("nodes", "slept"))
    done = forkserver.run(["-m", "mooring", "agent", "--root", str(root), *flags])
    assert done.returncode == 1
    assert (
        b"(31d by its own clock): a cluster may remove silent machines (reason Silent); give a valid token to join again"
        in done.stderr
    )
