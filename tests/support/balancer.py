"""TCP load balancer of a test: gives each connection to the next server that is ready, and reads nothing of what passes.

Rules kept here: it runs in a thread. A server is ready while its /readyz answers 200; one that refuses a connection is passed over
at once. Connections to servers come from an address of the balancer's own, as with a balancer on another machine. Nothing of a
connection is repeated: the end of one side ends the other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from mooring.client.http.requests import fetch
from mooring.clock import SystemClock
from mooring.trust.httpexchange import UNVERIFIED, HttpRequest, HttpResponse

SOURCE = "127.0.0.2"
"""Address from which the servers see every client."""
CHECK_SECONDS = 0.2
PIECE = 1 << 16
"""Octets that are passed on at once."""


class Balancer:
    """Accepts on `port` for the servers on these ports of 127.0.0.1, none of which is ready at first."""

    def __init__(self, port: int, servers: Sequence[int]) -> None:
        self.port = port
        self.ready: frozenset[int] = frozenset()
        self.given: list[int] = []
        """Port of the server of each connection, in the order in which they were accepted."""
        self._servers = list(servers)
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.endpoint}"

    async def run(self, listening: threading.Event, stopping: asyncio.Event) -> None:
        """Pass connections through until told to stop."""
        checks = [asyncio.create_task(self._check(port)) for port in self._servers]
        async with await asyncio.start_server(self._accepted, "127.0.0.1", self.port):
            listening.set()
            await stopping.wait()
            for task in (*checks, *self._connections):
                task.cancel()
            await asyncio.gather(*checks, *self._connections, return_exceptions=True)

    async def _check(self, port: int) -> None:
        while True:
            answer = await fetch(HttpRequest(UNVERIFIED, url=f"https://127.0.0.1:{port}/readyz"), SystemClock())
            is_ready = isinstance(answer, HttpResponse) and answer.status == 200
            self.ready = self.ready | {port} if is_ready else self.ready - {port}
            await asyncio.sleep(CHECK_SECONDS)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in self._servers:
                port = self._next()
                if port in self.ready and await self._served_by(port, reader, writer):
                    return
        finally:
            writer.close()

    def _next(self) -> int:
        port = self._servers.pop(0)
        self._servers.append(port)
        return port

    async def _served_by(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Return False when the server accepts no connection, True at the end of the connection."""
        try:
            theirs, onward = await asyncio.open_connection("127.0.0.1", port, local_addr=(SOURCE, 0))
        except OSError:
            return False
        self.given.append(port)
        ways = [asyncio.create_task(_pass(reader, onward)), asyncio.create_task(_pass(theirs, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            onward.close()
        return True


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(PIECE):
            target.write(data)
            await target.drain()


@contextmanager
def balancer(port: int, servers: Sequence[int]) -> Iterator[Balancer]:
    """Run a balancer until the end of the block."""
    made, listening = Balancer(port, servers), threading.Event()
    loop, stopping = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(made.run(listening, stopping))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert listening.wait(30), "the balancer does not listen"
        yield made
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
