"""What a process tells the service manager that started it: the messages of sd_notify(3)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mooring import servicenotifier
from mooring.servicenotifier import REPEAT_SECONDS, SIGNS_IN_WATCHDOG, ServiceNotifier
from tests.support.manualclock import ManualClock


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.settimeout(10)
        yield path, listening


def read(listening: socket.socket) -> list[bytes]:
    """Return the messages that are there."""
    found: list[bytes] = []
    listening.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            found.append(listening.recv(4096))
    return found


def of(monkeypatch: pytest.MonkeyPatch, **variables: str) -> ServiceNotifier:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.setenv(name, variables.get(name, ""))
    return ServiceNotifier.of_environment()


@pytest.mark.parametrize(
    ("say", "message"),
    [
        pytest.param(
            lambda one: one.ready("serving on\n  [::]:6443"), "READY=1\nSTATUS=serving on [::]:6443", id="ready"
        ),
        pytest.param(lambda one: one.status("waits"), "STATUS=waits", id="a state"),
        pytest.param(lambda one: one.status("/a\udcff"), "STATUS=/a?", id="a path that is no UTF-8"),
        pytest.param(lambda one: one.stopping(), "STOPPING=1\nSTATUS=stopping", id="the stop"),
        pytest.param(lambda one: one.alive(), "WATCHDOG=1", id="a sign of life"),
    ],
)
def test_a_message_is_one_datagram(
    say: Callable[[ServiceNotifier], None], message: str, address: tuple[str, socket.socket]
) -> None:
    say(ServiceNotifier(address[0], 1.0))
    assert address[1].recv(4096).decode() == message


def test_a_reload_begins_with_its_time_and_ends_with_the_state_of_before(address: tuple[str, socket.socket]) -> None:
    manager = ServiceNotifier(address[0])
    manager.ready("serving")
    manager.reloading("restarting")
    manager.ready()
    _, reloading, ready = (address[1].recv(4096).decode() for _ in range(3))
    begin, microseconds, state = reloading.split("\n")
    assert (begin, state, ready) == ("RELOADING=1", "STATUS=restarting", "READY=1\nSTATUS=serving")
    assert int(microseconds.removeprefix("MONOTONIC_USEC=")) > 0


def test_an_abstract_address_begins_with_a_commercial_at() -> None:
    name = f"mooring-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(10)
        ServiceNotifier(f"@{name}").status("here")
        assert listening.recv(4096) == b"STATUS=here"


def test_the_variables_are_read_once_and_no_child_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = of(monkeypatch, NOTIFY_SOCKET="/run/notify", WATCHDOG_USEC="60000000", WATCHDOG_PID=str(os.getpid()))
    assert manager.pause == 60.0 / SIGNS_IN_WATCHDOG
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"WATCHDOG_USEC": "60000000"}, id="no service manager"),
        pytest.param({"NOTIFY_SOCKET": "/run/notify"}, id="no watchdog"),
        pytest.param(
            {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, id="another process"
        ),
        pytest.param({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "soon"}, id="no number"),
        pytest.param({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "0"}, id="no time"),
    ],
)
def test_a_process_without_a_watchdog_of_its_own_gives_no_signs(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of(monkeypatch, **variables).pause is None


def test_a_service_manager_that_is_gone_or_does_not_read_stops_nothing(tmp_path: Path) -> None:
    ServiceNotifier(str(tmp_path / "missing"), 1.0).ready("serving")
    path = str(tmp_path / "full")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        manager = ServiceNotifier(path, 1.0)
        for _ in range(1000):  # more than its queue holds (net.unix.max_dgram_qlen); each returns at once
            manager.alive()


def test_signs_of_life_come_in_thirds_of_the_watchdog(address: tuple[str, socket.socket]) -> None:
    async def body() -> None:
        clock = ManualClock()
        task = asyncio.create_task(ServiceNotifier(address[0], 20.0).keep_alive(clock))
        for _ in range(3):
            await clock.advance(20.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())
    assert [address[1].recv(64) for _ in range(3)] == [b"WATCHDOG=1"] * 3


def test_a_ready_that_was_not_read_in_time_is_repeated(
    address: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd reads no messages while it reads its units again, and its queue holds ten (net.unix.max_dgram_qlen)."""
    monkeypatch.setattr(servicenotifier, "SEND_SECONDS", 0.01)

    async def body() -> None:
        manager, clock = ServiceNotifier(address[0]), ManualClock()
        while manager._send("STATUS=starting", 0.0):
            pass
        manager.ready("serving")
        task = asyncio.create_task(manager.keep_alive(clock))
        await clock.advance(REPEAT_SECONDS)
        assert set(read(address[1])) == {b"STATUS=starting"}
        for _ in range(3):
            await clock.advance(REPEAT_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())
    assert read(address[1]) == [b"READY=1\nSTATUS=serving"]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(lambda one: one.stopping(), id="it stops"),
        pytest.param(lambda one: one.reloading("restarting"), id="it begins again"),
    ],
)
def test_a_ready_that_was_not_read_is_forgotten_when(
    after: Callable[[ServiceNotifier], None], address: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicenotifier, "SEND_SECONDS", 0.01)
    manager = ServiceNotifier(address[0], 1.0)
    while manager._send("STATUS=starting", 0.0):
        pass
    manager.ready("serving")
    after(manager)
    assert b"READY=1\nSTATUS=serving" not in read(address[1])
    manager.alive()
    assert read(address[1]) == [b"WATCHDOG=1"]
