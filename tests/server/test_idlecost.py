"""What an idle connection keeps: no buffer of a large reply, and nothing for cases that hardly ever come (docs/adr/0017)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.bindings.openssl.binding import Binding
from OpenSSL import SSL

from mooring.server.transport import listener
from mooring.server.transport.frames import Frames
from mooring.server.transport.http import Application, Pieces, Request, Response
from mooring.server.transport.http1 import connection as http1
from mooring.server.transport.http1.exchange import Exchange
from mooring.server.transport.http2 import connection as http2
from mooring.server.transport.http2 import stream as http2stream
from mooring.server.transport.listener import KEPT_BUFFER, TlsProtocol, TlsTransport
from mooring.server.transport.tls import renew_bios, server_context
from tests.support.http2peer import peer
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import reply, request, serving

PIECES = 24
PIECE = b"y" * (1 << 20)


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA()


async def sized(req: Request) -> Response:
    """As many bytes as the path says; `/pieces` is too much for the kernel's buffers."""
    if req.path == "/pieces":
        return Response(200, Pieces([PIECE] * PIECES))
    return Response(200, b"x" * int(req.path.removeprefix("/")))


class Pair:
    """The server's TLS and a client's, joined in memory, handshake done."""

    def __init__(self, ca: ThrowawayCA, version: ssl.TLSVersion) -> None:
        serving = ca.server()
        self.tls = SSL.Connection(server_context([serving.certificate], serving.key, [ca.certificate]), None)
        self.tls.set_accept_state()
        context = ssl.create_default_context(cadata=ca.certificate_pem.decode())
        context.minimum_version = context.maximum_version = version
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.peer = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        for _ in range(3):
            for step, again in (
                (self.peer.do_handshake, ssl.SSLWantReadError),
                (self.tls.do_handshake, SSL.WantReadError),
            ):
                with contextlib.suppress(again):
                    step()
                self.exchange()

    def exchange(self) -> None:
        if self._out.pending:
            self.tls.bio_write(self._out.read())
        self.deliver()

    def deliver(self) -> None:
        with contextlib.suppress(SSL.WantReadError):
            self._in.write(self.tls.bio_read(1 << 20))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
class TestRenewedBuffers:
    def test_a_connection_goes_on_over_new_buffers_in_both_directions(
        self, ca: ThrowawayCA, version: ssl.TLSVersion
    ) -> None:
        pair = Pair(ca, version)
        for turn in range(3):
            assert renew_bios(pair.tls)
            pair.peer.write(b"question %d" % turn)
            pair.exchange()
            assert pair.tls.recv(100) == b"question %d" % turn
            pair.tls.sendall(b"answer %d" % turn)
            pair.exchange()
            assert pair.peer.read(100) == b"answer %d" % turn

    def test_bytes_not_yet_read_are_not_lost(self, ca: ThrowawayCA, version: ssl.TLSVersion) -> None:
        pair = Pair(ca, version)
        pair.peer.write(b"question")
        pair.exchange()
        assert not renew_bios(pair.tls)
        assert pair.tls.recv(100) == b"question"
        assert renew_bios(pair.tls)

    def test_bytes_not_yet_sent_are_not_lost(self, ca: ThrowawayCA, version: ssl.TLSVersion) -> None:
        pair = Pair(ca, version)
        pair.tls.sendall(b"answer")
        assert not renew_bios(pair.tls)
        pair.exchange()
        assert pair.peer.read(100) == b"answer"
        assert renew_bios(pair.tls)


def test_no_memory_for_new_buffers_is_an_error_and_not_a_connection_without(
    ca: ThrowawayCA, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(ca, ssl.TLSVersion.TLSv1_3)
    lib, nothing = Binding.lib, Binding.ffi.NULL
    full = SimpleNamespace(BIO_get_mem_data=lib.BIO_get_mem_data, BIO_s_mem=lib.BIO_s_mem, BIO_new=lambda _: nothing)
    monkeypatch.setattr(Binding, "lib", full)
    with pytest.raises(MemoryError):
        renew_bios(pair.tls)


@pytest.mark.parametrize(
    ("size", "renewed"),
    [(KEPT_BUFFER // 2, False), (KEPT_BUFFER * 2, True), (1 << 20, True)],
    ids=["small", "large", "huge"],
)
def test_the_buffers_of_a_large_reply_are_given_back_and_those_of_a_small_one_kept(
    ca: ThrowawayCA, tmp_path: Path, size: int, renewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []

    def noted(tls: SSL.Connection) -> bool:
        given.append(renew_bios(tls))
        return given[-1]

    monkeypatch.setattr(listener, "renew_bios", noted)
    with serving(ca, sized) as served, served.client(tmp_path) as peer:
        peer.sendall(request("/1"))
        reply(peer)
        served.ask(given.clear)
        peer.sendall(request(f"/{size}"))
        assert len(reply(peer)[2]) == size
        assert served.ask(lambda: any(given)) == renewed


def test_a_reply_in_pieces_waits_for_a_client_that_is_behind_and_arrives_whole(ca: ThrowawayCA, tmp_path: Path) -> None:
    with serving(ca, sized) as served, served.client(tmp_path) as peer:
        for _ in range(2):  # the second one meets whatever the first left paused
            peer.sendall(request("/pieces"))
            assert len(reply(peer)[2]) == PIECES * len(PIECE)
        (protocol,) = served.ask(lambda: [protocol.inner for protocol in served.listener.connections])
        assert not protocol.is_choked


def test_pausing_twice_is_pausing_once() -> None:
    async def story() -> None:
        protocol = http1.Protocol(Application(sized))
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
        http1.Protocol,
        http2.Protocol,
        http2stream.Stream,
        Exchange,
        Frames,
    )

    async def watched(req: Request) -> Response:
        async def stream(frames: Frames) -> None:
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
