"""A server process from start to stop, and what it leaves behind when it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.controlplane import serverprocess
from mooring.controlplane.addresses import published
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.keystore import KeyStore, prepare
from mooring.controlplane.lifecycle import RunningServer, is_gone, process_identity, running
from mooring.controlplane.maintenance import INTERVAL_SECONDS, compact_forever
from mooring.controlplane.parts.foundation import Process
from mooring.controlplane.serverprocess import serve, serve_until_signal
from mooring.errors import ConfigError
from mooring.storage.contract import CompactedError
from mooring.storage.memory import MemoryStorage
from tests.support.liveserver import start_server
from tests.support.manualclock import ManualClock

# -- who holds a lease -------------------------------------------------------------------------------------------


def ended() -> int:
    """The id of a process that was there and is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def other(place: int, value: str) -> str:
    parts = process_identity().rsplit("_", 3)
    parts[place] = value
    return "_".join(parts)


@pytest.mark.parametrize(
    ("identity", "gone"),
    [
        pytest.param(process_identity, False, id="this process is there"),
        pytest.param(lambda: process_identity(os.getppid()), False, id="its parent is there"),
        pytest.param(lambda: other(2, str(ended())), True, id="one that ended is gone"),
        pytest.param(lambda: other(3, "1"), True, id="one whose number was given to another is gone"),
        pytest.param(lambda: other(0, "elsewhere"), False, id="nothing is known of other machines"),
        pytest.param(lambda: other(1, "earlier"), False, id="nothing is known of another boot or container"),
        pytest.param(lambda: other(2, "x"), False, id="nothing is known of what is no process"),
        pytest.param(lambda: "somebody", False, id="nothing is known of another kind of name"),
        pytest.param(lambda: "", False, id="nothing is known of nobody"),
    ],
)
def test_whether_the_holder_of_a_lease_is_gone(identity: Callable[[], str], gone: bool) -> None:
    assert is_gone(identity()) is gone


def test_a_process_that_ended_and_was_not_collected_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process_identity(process.pid)
    assert not is_gone(identity)
    assert process.stdin is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its entry stays until collected
    assert is_gone(identity)
    process.stdin.close()
    process.wait()


def test_identities_differ_between_processes() -> None:
    assert process_identity() != process_identity(os.getppid())
    assert process_identity().startswith(f"{socket.gethostname()}_")


# -- in process --------------------------------------------------------------------------------------------------


def settings(tmp_path: Path, **flags: Any) -> tuple[ServerConfig, KeyStore]:
    given = {"data_dir": str(tmp_path), "bind_address": "127.0.0.1", "secure_port": 0, "storage": "memory:", **flags}
    config = server_config(**given)
    return config, prepare(config, SystemClock().now(), secrets.token_bytes).key_store


def served(tmp_path: Path) -> AbstractAsyncContextManager[RunningServer]:
    process = Process(identity=process_identity(), is_gone=is_gone)
    return running(*settings(tmp_path), SystemClock(), secrets.token_bytes, process)


def tasks_left() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_a_server_starts_serves_and_stops_and_leaves_no_task_behind(tmp_path: Path) -> None:
    async def body() -> None:
        async with served(tmp_path) as server:
            with socket.create_connection(("127.0.0.1", server.port)):
                pass
            health = server.assembly.http.health
            assert health.report("livez")[0]
        assert not health.report("readyz")[0]
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", server.port))
        assert tasks_left() == []

    asyncio.run(body())


def test_a_port_in_use_is_told_and_nothing_is_left_running(tmp_path: Path) -> None:
    async def body() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*--secure-port"):
                await serve_until_signal(*settings(tmp_path, secure_port=taken.getsockname()[1]))
        assert tasks_left() == []

    asyncio.run(body())


@pytest.mark.parametrize("workers", [1, 2])
def test_an_address_that_cannot_be_listened_on_is_not_written_down(tmp_path: Path, workers: int) -> None:
    config, _ = settings(tmp_path, storage="")
    kubeconfig, endpoints = (tmp_path / "admin.conf").read_bytes(), (tmp_path / "control-plane-endpoint").read_bytes()
    wrong = server_config(data_dir=str(tmp_path), bind_address="203.0.113.9", secure_port=6443, workers=str(workers))
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.9:6443: .*--bind-address"):
        serve(wrong)
    assert (tmp_path / "admin.conf").read_bytes() == kubeconfig
    assert (tmp_path / "control-plane-endpoint").read_bytes() == endpoints
    assert published(tmp_path) == (str(config.endpoints[0]),)


def test_an_audit_log_that_cannot_be_opened_is_told_by_its_flag(tmp_path: Path) -> None:
    async def body() -> None:
        with pytest.raises(ConfigError, match="audit-log-path"):
            await serve_until_signal(*settings(tmp_path, audit_log_path=str(tmp_path / "missing" / "audit.log")))
        assert tasks_left() == []

    asyncio.run(body())


@pytest.mark.parametrize(
    "closed", [False, True], ids=["is ignored, with a word", "of a closed terminal is a signal to stop"]
)
def test_sighup(
    closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = [closed, False]
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and a server keeps to that
    monkeypatch.setattr(serverprocess, "is_terminal", lambda: terminal.pop(0))

    async def body() -> None:
        loop = asyncio.get_running_loop()

        def on_ready(server: RunningServer) -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            if not closed:
                loop.call_soon(wait_for_the_word)

        def wait_for_the_word() -> None:
            if serverprocess.HANGUP_IGNORED in caplog.messages:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                loop.call_later(0.001, wait_for_the_word)

        async with asyncio.timeout(60):
            await serve_until_signal(*settings(tmp_path), on_ready)
        assert tasks_left() == []

    try:
        asyncio.run(body())
    finally:
        signal.signal(signal.SIGHUP, inherited)
    assert (serverprocess.HANGUP_IGNORED in caplog.messages) is not closed


def test_the_past_is_forgotten_after_a_while_and_trouble_does_not_end_it() -> None:
    async def body() -> None:
        clock, storage = ManualClock(), MemoryStorage()
        await storage.open()
        entry = await storage.create("/registry/a", b"1")
        task = asyncio.ensure_future(compact_forever(storage, clock))
        await clock.advance(1)
        await storage.update("/registry/a", b"2", expected=entry.revision)
        await clock.advance(INTERVAL_SECONDS)
        await storage.close()
        await clock.advance(INTERVAL_SECONDS)
        assert not task.done()
        await storage.open()
        await clock.advance(INTERVAL_SECONDS)
        with pytest.raises(CompactedError):
            await storage.get("/registry/a", revision=entry.revision)
        task.cancel()

    asyncio.run(body())


# -- as a process ------------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_what_a_killed_server_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    server = start_server(tmp_path / "data")
    before = {
        path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.suffix in (".crt", ".key", ".conf")
    }
    acknowledged: list[str] = []

    async def write(client: ClusterClient) -> None:
        for number in range(10_000):
            if number == 100:
                server.kill()
            name = f"kept-{number}"
            with contextlib.suppress(Exception):  # whatever a dead server's client meets
                await client.create("secrets", {"metadata": {"name": name, "namespace": "default"}})
                acknowledged.append(name)
                continue
            return

    try:
        server.run(write)
        server.restart()

        async def read(client: ClusterClient) -> set[str]:
            return {item["metadata"]["name"] for item in (await client.list("secrets", "default")).items}

        assert len(acknowledged) >= 100
        assert set(acknowledged) <= server.run(read)
        assert {path: path.read_bytes() for path in before} == before
        assert server.stop() == 0
    finally:
        server.kill()
