"""Servers and agents of systemd's Type=notify: a socket plays the service manager's end."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.test_renewal import agent, joined
from tests.support.liveserver import LiveServer, live_server, start_server

__all__ = ["live_server"]
WATCHDOG_MICROSECONDS = "300000"
WAIT_SECONDS = 60.0
MAX_MESSAGES = 500
"""Messages among which a wanted one is found: 50 seconds of signs of life."""

Messages = queue.SimpleQueue[str]


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Messages]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        monkeypatch.setenv("WATCHDOG_USEC", WATCHDOG_MICROSECONDS)
        messages: Messages = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(listening, messages), daemon=True)
        reader.start()
        yield messages
        listening.shutdown(socket.SHUT_RD)
        reader.join(60)


def _read(listening: socket.socket, messages: Messages) -> None:
    """Take the messages as they come, as a service manager does."""
    while message := listening.recv(4096):
        messages.put(message.decode())


def until(manager: Messages, words: str) -> list[str]:
    """Return the messages up to the first that begins with `words`."""
    found = [manager.get(timeout=WAIT_SECONDS)]
    while not found[-1].startswith(words):
        assert len(found) < MAX_MESSAGES, f"none of {MAX_MESSAGES} messages begins with {words}"
        found.append(manager.get(timeout=WAIT_SECONDS))
    return found


@pytest.mark.parametrize("workers", ["1", "2"], ids=["one process", "two workers"])
def test_a_server_is_ready_once_it_serves_lives_and_stops(workers: str, tmp_path: Path, manager: Messages) -> None:
    server = start_server(tmp_path / "data", "--workers", workers, "--audit-log-path", "")
    try:
        ready = until(manager, "READY=1")[-1]
        assert f"STATUS=serving on 127.0.0.1:{server.port}" in ready
        assert until(manager, "WATCHDOG=1")
        if workers == "2":
            os.kill(server.process.pid, signal.SIGHUP)
            until(manager, "RELOADING=1\nMONOTONIC_USEC=")
            assert until(manager, "READY=1")[-1] == ready
        server.process.send_signal(signal.SIGTERM)
        until(manager, "STOPPING=1")
        assert server.process.wait(60) == 0
    finally:
        server.stop()


def test_an_agent_is_ready_as_a_member_lives_and_stops(
    live_server: LiveServer, tmp_path: Path, manager: Messages
) -> None:
    root = tmp_path / "root"
    joined(live_server, "notifying", root)
    with agent(root) as (process, _):
        assert until(manager, "READY=1")[-1] == f"READY=1\nSTATUS=member notifying of {live_server.url}"
        until(manager, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        until(manager, "STOPPING=1")
        assert process.wait(60) == 0
