"""Accepting from sockets that several workers share (`mooring.server.transport.listener`)."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from mooring.listensockets import bound_port, listen
from mooring.server.sharedmemory import Counted, SharedMemory
from mooring.server.transport import listener
from mooring.server.transport.listener import SharedListener


class Worker:
    """One worker, in the loop of the test."""

    def __init__(self, sockets: tuple[socket.socket, ...], memory: SharedMemory, number: int) -> None:
        self.number = number
        self.held: list[asyncio.BaseTransport] = []
        duplicates = tuple(one.dup() for one in sockets)
        for one in duplicates:
            one.setblocking(False)
        share = memory.share_of(number)
        self.listener = SharedListener(duplicates, lambda: Accepted(self), share)
        self._count = share.count(Counted.CONNECTIONS)

    def admit(self, transport: asyncio.BaseTransport) -> None:
        self.held.append(transport)
        self._count.set(len(self.held))


class Accepted(asyncio.Protocol):
    """A connection that its worker holds."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._worker.admit(transport)


@asynccontextmanager
async def workers(
    count: int,
) -> AsyncIterator[tuple[list[Worker], SharedMemory, Callable[[], Coroutine[Any, Any, None]]]]:
    """Yield workers that do not accept yet, their memory, and a function that opens a connection."""
    sockets = listen("127.0.0.1", 0)
    memory = SharedMemory(count + 1)
    made = [Worker(sockets, memory, seat) for seat in range(count)]
    clients: list[asyncio.StreamWriter] = []

    async def connect() -> None:
        clients.append((await asyncio.open_connection("127.0.0.1", bound_port(sockets)))[1])

    try:
        yield made, memory, connect
    finally:
        for worker in made:
            worker.listener.close()
            for transport in worker.held:
                transport.close()
        for client in clients:
            client.close()
            await client.wait_closed()
        for one in sockets:
            one.close()


def holds(made: list[Worker], connections: int) -> bool:
    return sum(len(worker.held) for worker in made) == connections


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def test_workers_share_the_connections_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "YIELD_SECONDS", 30.0)  # a worker with more accepts nothing here

    async def scenario() -> None:
        async with workers(2) as (made, _, connect):
            for worker in made:
                worker.listener.start()
            for n in range(1, 9):
                await connect()
                await until(partial(holds, made, n))
                for worker in made:
                    if worker.listener._resting is not None:  # the next connection finds it awake
                        worker.listener._resting.cancel()
                        worker.listener._rested()
                assert made[0].listener.least() == n // 2
            assert [len(worker.held) for worker in made] == [4, 4]

    asyncio.run(scenario())


def test_a_worker_that_does_not_accept_delays_a_connection_only_shortly() -> None:
    async def scenario() -> None:
        async with workers(2) as (made, memory, connect):
            memory.row(Counted.ACCEPTING)[1] = 1  # it serves and is busy
            made[0].listener.start()
            for _ in range(3):
                await connect()
            await until(lambda: len(made[0].held) == 3)

    asyncio.run(scenario())


def test_a_worker_that_has_ended_counts_no_more() -> None:
    async def scenario() -> None:
        async with workers(2) as ((first, second), memory, _):
            assert first.listener.least() == 0
            for worker, connections in ((first, 7), (second, 3)):
                worker.listener.start()
                memory.row(Counted.CONNECTIONS)[worker.number] = connections
            assert first.listener.least() == second.listener.least() == 3
            memory.row(Counted.ACCEPTING)[second.number] = 6
            assert first.listener.least() == 7, "five connections that it has accepted count too"
            memory.clear(second.number)
            assert first.listener.least() == 7

    asyncio.run(scenario())


def test_a_closed_listener_leaves_connections_to_the_others() -> None:
    async def scenario() -> None:
        async with workers(2) as (made, memory, connect):
            for worker in made:
                worker.listener.start()
            made[0].listener.close()
            assert made[1].listener.least() == 0
            assert memory.row(Counted.ACCEPTING).tolist() == [0, 1, 0]
            for _ in range(3):
                await connect()
            await until(lambda: len(made[1].held) == 3)
            assert not made[0].held

    asyncio.run(scenario())


def test_a_worker_without_descriptors_pauses_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE_SECONDS", 0.01)

    class Failing:
        """A listening socket whose first calls of accept fail."""

        def __init__(self, real: socket.socket) -> None:
            self._real = real
            self.errors = [errno.EMFILE, errno.ECONNABORTED, errno.EPERM]

        def fileno(self) -> int:
            return self._real.fileno()

        def close(self) -> None:
            self._real.close()

        def accept(self) -> tuple[socket.socket, Any]:
            if self.errors:
                raise OSError(self.errors.pop(0), "no")
            return self._real.accept()

    async def scenario() -> None:
        async with workers(1) as ((worker,), _, connect):
            failing = Failing(worker.listener.sockets[0])
            worker.listener.sockets = (failing,)  # type: ignore[assignment]  # as much of a socket as is used
            worker.listener.start()
            await connect()
            await until(lambda: len(worker.held) == 1)
            assert not failing.errors

    asyncio.run(scenario())
    assert caplog.messages == ["connections cannot be accepted, and are closed: no"]


def test_clients_of_a_worker_without_descriptors_are_turned_away_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE_SECONDS", 0.01)

    class Full:
        """A listening socket of a process that has one descriptor left, until it is freed."""

        def __init__(self, real: socket.socket) -> None:
            self._real = real
            self.has_room: Callable[[], bool] = lambda: False

        def fileno(self) -> int:
            return self._real.fileno()

        def close(self) -> None:
            self._real.close()

        def accept(self) -> tuple[socket.socket, Any]:
            if not self.has_room():
                raise OSError(errno.EMFILE, "Too many open files")
            return self._real.accept()

    async def scenario() -> None:
        async with workers(1) as ((worker,), _, connect):
            refused: list[None] = []
            listening = worker.listener
            listening._refused = lambda: refused.append(None)
            full = Full(listening.sockets[0])
            full.has_room = lambda: listening._reserve is None
            listening.sockets = (full,)  # type: ignore[assignment]  # as much of a socket as is used
            listening.start()
            port = full._real.getsockname()[1]
            for number in (1, 2, 3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert await reader.read() == b"", "it was closed at once"
                writer.close()
                assert len(refused) == number
            full.has_room = lambda: True
            await connect()
            await until(lambda: len(worker.held) == 1)

    asyncio.run(scenario())
    assert caplog.messages == ["connections cannot be accepted, and are closed: too many open files"]
