"""Test that a watch whose reply fails is unsubscribed, over HTTP/1.1, HTTP/2 and WebSocket.

Rules kept here: what is counted are the subscriptions of the watch cache, which is what an update costs and what keeps memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from h2.errors import ErrorCodes

from mooring.api.mooring.certificaterevocation import serial_entry
from mooring.apimachinery.options import ListOptions
from mooring.identity import MASTERS
from mooring.registry.cache.kindcache import WINDOW_BYTES, KindCache, Watch
from mooring.server import pipeline
from mooring.server.transport.http import Request, Response
from mooring.server.transport.responsewriter import ResponseWriter
from tests.server.test_websockets import HANDSHAKE, WATCH
from tests.support.http2peer import Peer, peer
from tests.support.manualclock import settle
from tests.support.registryroom import secret
from tests.support.servedroom import served_room
from tests.support.serverroom import Server, Stream, in_server
from tests.support.tlspeer import PATIENCE, Served, request, rest

WAYS = ("HTTP/1.1", "HTTP/2", "WebSocket")


class House:
    """Whole server behind a real listener. `gate` delays finished replies; `spoil` changes them."""

    def __init__(self, served: Served, server: Server, directory: Path) -> None:
        self.served = served
        self.server = server
        self.directory = directory
        self.admin = server.ca.client("admin", MASTERS)
        self.gate: asyncio.Event | None = None
        self.spoil: Callable[[Response], None] = lambda response: None

    async def handle(self, asked: Request) -> Response:
        response = await self.server.handle(asked)
        if self.gate is not None:
            await self.gate.wait()
        self.spoil(response)
        return response

    def do(self, step: Callable[[Server], Awaitable[Any]]) -> Any:
        return self.served.run(lambda: step(self.server))

    def until_watches(self, number: int) -> None:
        async def look() -> None:
            async with asyncio.timeout(PATIENCE):
                while self.server.registry.cache.kinds["secrets"].watches != number:
                    await asyncio.sleep(0.001)

        self.served.run(look)

    def until_idle(self) -> None:
        async def look() -> None:
            async with asyncio.timeout(PATIENCE):
                while self.served.application.tasks:
                    await asyncio.sleep(0.001)

        self.served.run(look)

    @contextlib.contextmanager
    def watching(self, way: str, headers: tuple[str, ...] = ()) -> Iterator[ssl.SSLSocket | Peer]:
        """Connect a client that has started a watch over one protocol."""
        if way == "HTTP/2":
            with peer(self.served, self.directory, self.admin) as client:
                client.ask(WATCH)
                yield client
            return
        with self.served.client(self.directory, self.admin) as plain:
            plain.sendall(request(WATCH, headers=(*(HANDSHAKE if way == "WebSocket" else ()), *headers)))
            yield plain


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with served_room() as (served, server):
        house = House(served, server, tmp_path)
        served.application.handler = house.handle
        yield house


def answered(client: ssl.SSLSocket | Peer) -> None:
    """Wait until the server has ended its reply or the connection."""
    if isinstance(client, Peer):
        reply = client.replies[1]
        client.until(lambda: reply.ended or reply.reset is not None or client.is_closed)
    else:
        rest(client)


def no_header(response: Response) -> None:
    response.headers = ((b"x-broken", None),)  # type: ignore[assignment] # a bug: no transport can encode it


def no_switch(response: Response) -> None:
    def refuse(transport: object) -> Any:
        raise RuntimeError("the connection switches to nothing")

    response.upgrade = refuse


def broken_stream(response: Response) -> None:
    async def fail(frames: ResponseWriter) -> None:
        raise RuntimeError("the stream never begins")

    response.stream = fail


SPOILED = [
    *(pytest.param(way, no_header, id=f"{way}, headers that cannot be encoded") for way in WAYS),
    *(pytest.param(way, broken_stream, id=f"{way}, a stream that fails at once") for way in WAYS),
    pytest.param("WebSocket", no_switch, id="WebSocket, a switch that fails"),
]


@pytest.mark.parametrize(("way", "spoil"), SPOILED)
def test_a_reply_that_cannot_begin(house: House, way: str, spoil: Callable[[Response], None]) -> None:
    house.spoil = spoil
    with house.watching(way) as client:
        answered(client)
    house.until_idle()
    house.until_watches(0)


@pytest.mark.parametrize("way", WAYS)
def test_a_pipeline_that_fails_after_the_subscription(house: House, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("no headers today")

    monkeypatch.setattr(pipeline, "reply_headers", fail)
    with house.watching(way) as client:
        answered(client)
    house.until_idle()
    house.until_watches(0)


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_before_the_headers(house: House, way: str) -> None:
    house.gate = house.served.ask(asyncio.Event)
    with house.watching(way):
        house.until_watches(1)

    async def gone() -> None:
        while house.served.listener.connections:
            await asyncio.sleep(0)

    house.served.run(gone)
    house.served.ask(house.gate.set)
    house.until_idle()
    house.until_watches(0)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the headers", "after them"])
def test_a_stream_that_is_reset(house: House, is_late: bool) -> None:
    house.gate = house.served.ask(asyncio.Event)
    with house.watching("HTTP/2") as client:
        assert isinstance(client, Peer)
        house.until_watches(1)
        if is_late:
            house.served.ask(house.gate.set)
            client.until(lambda: client.replies[1].status == 200)
        client.h2.reset_stream(1, ErrorCodes.CANCEL)
        client.flush()
        house.served.ask(house.gate.set)
        house.until_idle()
        house.until_watches(0)


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_in_the_middle(house: House, way: str) -> None:
    with house.watching(way):
        house.until_watches(1)
    house.until_watches(0)


@pytest.mark.parametrize("way", WAYS)
def test_an_event_that_cannot_be_encoded(house: House, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with house.watching(way):
        house.until_watches(1)

        def fail(*_: object) -> bytes:
            raise RuntimeError("this event has no bytes")

        monkeypatch.setattr(ResponseWriter, "send", fail)
        house.do(lambda server: server.create("secrets", secret("a")))
        monkeypatch.undo()
        house.until_watches(0)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_stops(house: House, way: str) -> None:
    with house.watching(way):
        house.until_watches(1)
        house.served.ask(house.server.assembly.http.watches.drain)
        if way != "WebSocket":  # whose client would have to answer the goodbye
            house.until_idle()
        house.until_watches(0)


@pytest.mark.parametrize("way", WAYS)
def test_a_certificate_that_is_revoked(house: House, way: str) -> None:
    serial_number = f"{house.admin.certificate.serial_number:x}"
    entry = {"metadata": {"name": serial_entry(serial_number)}, "spec": {"serialNumber": serial_number}}
    with house.watching(way) as client:
        house.until_watches(1)
        house.do(lambda server: server.create("certificaterevocations", entry, namespace=""))
        if way != "WebSocket":  # whose client would have to answer the goodbye
            house.until_idle()
        house.until_watches(0)
        if isinstance(client, Peer):
            client.until(lambda: client.replies[1].ended)
            client.ask(WATCH)
            client.until(lambda: client.replies[3].status == 401)
        elif way == "HTTP/1.1":
            client.sendall(request(WATCH, headers=("Connection: close",)))
            assert b"0\r\n\r\nHTTP/1.1 401 " in rest(client)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("Sec-WebSocket-Protocol: 私", id="a subprotocol that no header can carry back"),
        pytest.param("Sec-WebSocket-Key: ключ", id="a key that is not ASCII"),
    ],
)
def test_a_handshake_that_cannot_be_answered_is_400_and_subscribes_nothing(house: House, header: str) -> None:
    name = header.partition(":")[0]
    handshake = tuple(line for line in HANDSHAKE if not line.startswith(name))
    with house.served.client(house.directory, house.admin) as plain:
        plain.sendall(request(WATCH, headers=(*handshake, header, "Connection: close")))
        assert rest(plain).startswith(b"HTTP/1.1 400 ")
    house.until_watches(0)


@in_server
async def test_a_beginning_that_cannot_be_delivered(server: Server) -> None:
    kind = server.registry.cache.kinds["secrets"].kind

    def fail(*_: object) -> None:
        raise RuntimeError("a bug in the middle of the replay")

    first = await server.create("secrets", secret("a"))
    await server.create("secrets", secret("b"))
    for failing, options in (
        ("send", ListOptions()),
        ("_deliver", ListOptions(resource_version=str(first.revision))),
    ):
        watch = await server.registry.reader.watch(kind, "", options, lambda event: None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Watch, failing, fail)
            with pytest.raises(RuntimeError):
                await watch.replay()
        assert server.registry.cache.kinds["secrets"].watches == 0


@in_server
async def test_a_client_that_never_takes_the_headers_does_not_gather_events(server: Server) -> None:
    """Test a pipelined watch behind an unread reply: while its headers wait, it holds only changes that the watch cache holds
    too."""
    secrets = server.registry.cache.kinds["secrets"]
    subscribed: list[Watch] = []
    subscribe = KindCache.subscribe

    def record(cache: KindCache, watch: Watch) -> None:
        subscribed.append(watch)
        subscribe(cache, watch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KindCache, "subscribe", record)
        response = await server.response("GET", WATCH)
    [watch] = subscribed
    assert server.registry.cache.kinds["secrets"].watches == 1
    largest = secret("a", data={"key": "A" * 1_000_000})
    for number in range(WINDOW_BYTES // 2_000_000 + 2):
        await server.create("secrets", {**largest, "metadata": {"name": f"large-{number}"}})
    await settle()
    kept = secrets.window.after(secrets.window.floor)
    assert watch.waiting
    assert {id(transition) for transition in watch.waiting} <= {id(transition) for transition in kept}
    stream = Stream(response)
    await settle()
    assert [event["object"]["code"] for event in stream.events] == [410]
    assert server.registry.cache.kinds["secrets"].watches == 0


class Outlet:
    """Outlet that keeps what was written to it."""

    waiting = 0

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    async def drained(self) -> None:
        pass

    def abort(self) -> None:
        pass


def test_all_watchers_take_the_same_chunk_of_an_event_and_each_its_own_events() -> None:
    async def write() -> list[list[bytes]]:
        outlets = [Outlet(), Outlet()]
        first, second = map(ResponseWriter, outlets)
        for event in (b"one", b"three"):
            first.write(event)
            second.write(event)
        first.write(b"one")
        return [outlet.written for outlet in outlets]

    first, second = asyncio.run(write())
    assert first == [b"3\r\none\r\n", b"5\r\nthree\r\n", b"3\r\none\r\n"]
    assert second == first[:2]
    assert all(mine is other for mine, other in zip(first, second, strict=False)), "each watcher keeps a copy"
