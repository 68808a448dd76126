"""Memory of an idle connection: bounded buffers after large messages, nothing kept for rare cases (docs/adr/0017)."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any, ClassVar

import pytest
from OpenSSL import SSL

from mooring.server.transport import http1, http2, http2stream
from mooring.server.transport.http import Application, Pieces, Request, Response
from mooring.server.transport.http1 import Exchange
from mooring.server.transport.responsewriter import ResponseWriter
from mooring.server.transport.tlsconnection import PIECE, TlsProtocol, TlsTransport
from tests.support.http2peer import peer
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import reply, request, serving

PIECES = 24
CHUNK = b"y" * (1 << 20)


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA()


async def sized(req: Request) -> Response:
    """Answer with as many bytes as the path names; `/pieces` exceeds the kernel's buffers."""
    if req.path == "/pieces":
        return Response(200, Pieces([CHUNK] * PIECES))
    return Response(200, b"x" * int(req.path.removeprefix("/")))


class MeasuredConnection(SSL.Connection):
    """Notes how many octets pass through its memory BIOs at once."""

    sizes: ClassVar[list[int]] = []

    def bio_write(self, buf: Any) -> int:
        self.sizes.append(len(buf))
        return super().bio_write(buf)

    def sendall(self, buf: Any, flags: int = 0) -> int:
        self.sizes.append(len(buf))
        return super().sendall(buf, flags)


def test_a_large_request_and_a_large_reply_pass_the_memory_bios_in_pieces(
    ca: ThrowawayCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a memory BIO never holds more than a piece, because it keeps its largest size."""
    MeasuredConnection.sizes.clear()
    monkeypatch.setattr(SSL, "Connection", MeasuredConnection)
    body = bytes(range(256)) * 4096

    async def echo(req: Request) -> Response:
        return Response(200, await req.body())

    with serving(ca, echo) as served, served.client(tmp_path) as peer:
        peer.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert reply(peer)[2] == body
    assert max(MeasuredConnection.sizes) == PIECE


def test_a_reply_in_pieces_waits_for_a_client_that_is_behind_and_arrives_whole(ca: ThrowawayCA, tmp_path: Path) -> None:
    with serving(ca, sized) as served, served.client(tmp_path) as peer:
        for _ in range(2):  # the second one meets whatever the first left paused
            peer.sendall(request("/pieces"))
            assert len(reply(peer)[2]) == PIECES * len(CHUNK)
        (protocol,) = served.ask(lambda: [protocol.inner for protocol in served.listener.connections])
        assert not protocol.is_choked


def test_pausing_twice_is_pausing_once() -> None:
    async def story() -> None:
        protocol = http1.Http1Connection(Application(sized))
        protocol.loop = asyncio.get_running_loop()
        protocol.resume_writing()
        protocol.pause_writing()
        waiting = asyncio.ensure_future(protocol.drained())
        await asyncio.sleep(0)
        protocol.pause_writing()
        protocol.resume_writing()
        await waiting
        assert not protocol.is_choked

    asyncio.run(story())


def alive(*kinds: type) -> dict[int, object]:
    """Objects of these types that exist, reachable or not, by identity. Those of earlier tests may end at any moment."""
    return {id(one): one for one in gc.get_objects() if isinstance(one, kinds)}


@pytest.mark.parametrize("way", ["HTTP/1.1", "HTTP/2"])
def test_a_client_that_left_leaves_nothing_to_the_garbage_collector(ca: ThrowawayCA, tmp_path: Path, way: str) -> None:
    """OpenSSL's 27 kB of a connection go with it: rounds of a thousand watches do not add up until the collector comes."""
    kinds = (
        SSL.Connection,
        TlsProtocol,
        TlsTransport,
        http1.Http1Connection,
        http2.Http2Connection,
        http2stream.Http2Stream,
        Exchange,
        ResponseWriter,
    )

    async def watched(req: Request) -> Response:
        async def stream(frames: ResponseWriter) -> None:
            frames.write(b"first")
            await frames.ended

        return Response(200, stream=stream)

    with serving(ca, watched) as served:
        gc.collect()
        before = alive(*kinds)
        gc.disable()
        try:
            if way == "HTTP/1.1":
                with served.client(tmp_path) as plain:
                    plain.sendall(request("/"))
                    assert plain.recv(1000)
                    assert alive(*kinds).keys() - before.keys(), "the search finds what is there"
            else:
                with peer(served, tmp_path) as client:
                    stream = client.ask("/")
                    client.until(lambda: bool(client.replies[stream].pieces))
                    assert alive(*kinds).keys() - before.keys(), "the search finds what is there"

            async def gone() -> None:
                while served.listener.connections or served.application.tasks:
                    await asyncio.sleep(0)
                for _ in range(5):
                    await asyncio.sleep(0)

            served.run(gone)
            assert not alive(*kinds).keys() - before.keys()
        finally:
            gc.enable()
