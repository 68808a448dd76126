"""Connections of a server that stops: requests that a client sends before it can know are answered (RFC 9112 9.6, RFC 9113 6.8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import PingFrame

from mooring.server.transport import http1
from mooring.server.transport.http import Request, Response
from mooring.server.transport.responsewriter import ResponseWriter
from tests.support.http2peer import Peer, peer
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import PATIENCE, Served, reply, request, rest, serving

GOAWAY, PING, HEADERS, DATA, RST_STREAM = 7, 6, 1, 0, 3


class Handler:
    """Counts requests. `/stream` lasts until the test ends it, `/late` waits for the test."""

    def __init__(self) -> None:
        self.answered = 0
        self.began = threading.Semaphore(0)
        self.writer: ResponseWriter
        self.gate = asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        await request.body()
        self.answered += 1
        if request.path == "/late":
            self.began.release()
            await self.gate.wait()
        if request.path != "/stream":
            return Response(200, b"ok")

        async def stream(writer: ResponseWriter) -> None:
            self.writer = writer
            self.began.release()
            await writer.ended

        return Response(200, stream=stream)


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def served(handler: Handler) -> Iterator[Served]:
    with serving(ThrowawayCA(), handler) as served:
        yield served


@pytest.fixture
def client(served: Served, tmp_path: Path) -> Iterator[Peer]:
    with peer(served, tmp_path) as client:
        yield client


def leave(served: Served) -> None:
    async def ask() -> None:
        served.listener.stop_accepting()
        served.application.leave()

    served.run(ask)


def expects(served: Served) -> bool:
    """Return whether a drain would wait for a request of one of the connections."""

    async def ask() -> bool:
        return any(connection.expects_request for connection in served.listener.connections)

    return bool(served.run(ask))


# -- HTTP/1.1 ----------------------------------------------------------------------------------------------------------


def test_a_kept_connection_gets_one_more_reply_which_says_that_it_ends(
    served: Served, handler: Handler, tmp_path: Path
) -> None:
    with served.client(tmp_path) as kept:
        kept.sendall(request("/"))
        assert "connection" not in reply(kept)[1]
        leave(served)
        assert expects(served), "a drain waits for it"
        kept.sendall(request("/", "POST", body=b"{}"))
        assert reply(kept)[1]["connection"] == "close"
        assert rest(kept) == b""
    served.run(lambda: served.listener.wait_until_requested(PATIENCE))
    assert (expects(served), handler.answered) == (False, 2)


def test_of_requests_that_were_sent_together_the_last_reply_says_that_the_connection_ends(
    served: Served, handler: Handler, tmp_path: Path
) -> None:
    with served.client(tmp_path) as client:
        client.sendall(request("/late") + request("/") + request("/"))
        assert handler.began.acquire(timeout=PATIENCE)
        leave(served)
        served.ask(handler.gate.set)
        replies = rest(client).split(b"HTTP/1.1 200 OK")[1:]
    assert [b"connection: close" in one for one in replies] == [False, False, True]


def test_after_a_reply_that_had_begun_the_next_request_is_served(
    served: Served, handler: Handler, tmp_path: Path
) -> None:
    with served.client(tmp_path) as client:
        client.sendall(request("/stream"))
        assert handler.began.acquire(timeout=PATIENCE)
        leave(served)
        draining = asyncio.run_coroutine_threadsafe(served.application.drain(PATIENCE), served.loop)
        served.ask(handler.writer.end)
        draining.result(PATIENCE)
        assert expects(served)
        head = b""
        while not head.endswith(b"0\r\n\r\n"):
            head += client.recv(1 << 16)
        assert b"connection: close" not in head
        client.sendall(request("/", "POST", body=b"{}"))
        assert reply(client)[1]["connection"] == "close"
        assert rest(client) == b""


def test_a_connection_that_has_been_silent_is_not_waited_for(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "KEPT_SECONDS", 0)
    with served.client(tmp_path) as silent:
        silent.sendall(request("/"))
        reply(silent)
        leave(served)
        assert not expects(served)
        served.run(lambda: served.application.drain(PATIENCE))
        assert rest(silent) == b""


# -- HTTP/2 ------------------------------------------------------------------------------------------------------------


def acknowledge(client: Peer) -> None:
    ping = PingFrame(0, b"leaving.")
    ping.flags.add("ACK")
    client.raw(ping)


def headers(client: Peer, stream: int) -> bytes:
    block = client.h2.encoder.encode([(":method", "GET"), (":scheme", "https"), (":authority", "l"), (":path", "/")])
    return len(block).to_bytes(3) + b"\x01\x05" + stream.to_bytes(4) + block


def test_streams_that_a_client_opens_before_it_knows_are_served_and_later_ones_are_not(
    client: Peer, served: Served, handler: Handler
) -> None:
    assert client.get().status == 200
    leave(served)
    assert expects(served), "a drain waits until the client knows"
    client.raw(headers(client, 3), headers(client, 5))
    acknowledge(client)
    frames = client.rest()
    goaways = [payload for kind, _, payload in frames if kind == GOAWAY]
    assert [(int.from_bytes(one[:4]), int.from_bytes(one[4:8])) for one in goaways] == [(2**31 - 1, 0), (5, 0)]
    assert [kind for kind, _, _ in frames].index(PING) > [kind for kind, _, _ in frames].index(GOAWAY)
    assert [(stream, payload) for kind, stream, payload in frames if kind == DATA and payload] == [
        (3, b"ok"),
        (5, b"ok"),
    ]
    assert (expects(served), handler.answered) == (False, 3)


def test_a_stream_after_the_last_goaway_is_refused_and_may_be_repeated_elsewhere(
    client: Peer, served: Served, handler: Handler
) -> None:
    client.ask("/late")
    assert handler.began.acquire(timeout=PATIENCE)
    leave(served)
    acknowledge(client)
    client.raw(headers(client, 3))
    served.ask(handler.gate.set)
    frames = client.rest()
    assert (RST_STREAM, 3, int(ErrorCodes.REFUSED_STREAM).to_bytes(4)) in frames
    assert (DATA, 1, b"ok") in frames
    assert handler.answered == 1


def test_a_client_that_acknowledges_nothing_is_told_the_last_stream_by_the_drain(client: Peer, served: Served) -> None:
    assert client.get().status == 200
    leave(served)
    leave(served)  # once is enough
    served.run(lambda: served.application.drain(PATIENCE))
    goaways = [int.from_bytes(payload[:4]) for kind, _, payload in client.rest() if kind == GOAWAY]
    assert goaways == [2**31 - 1, 1]


def test_an_acknowledgement_of_another_ping_means_nothing(client: Peer, served: Served) -> None:
    acknowledge(client)
    assert client.get().status == 200
    leave(served)
    ping = PingFrame(0, b"another!")
    ping.flags.add("ACK")
    client.raw(ping, headers(client, 3))
    client.raw(headers(client, 5))
    acknowledge(client)
    frames = client.rest()
    assert [stream for kind, stream, payload in frames if kind == DATA and payload] == [3, 5]


def test_a_connection_that_is_made_while_the_server_leaves_gets_its_first_reply(
    served: Served, handler: Handler, tmp_path: Path
) -> None:
    served.ask(served.application.leave)
    with peer(served, tmp_path) as client:
        client.raw(headers(client, 1))
        acknowledge(client)
        frames = client.rest()
    assert (DATA, 1, b"ok") in frames
    assert handler.answered == 1
