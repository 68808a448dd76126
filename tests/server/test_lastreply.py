"""Test that a client which is still sending can read the last reply of its connection (RFC 9112 9.6)."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from h2.errors import ErrorCodes

from mooring.apimachinery.codec.json import MAX_BODY
from mooring.server.transport import tlsconnection
from mooring.server.transport.http import Request, Response
from mooring.server.transport.tlsconnection import TlsProtocol
from tests.support.http2peer import peer
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import PATIENCE, Served, reply, request, rest, serving

BODY = 4_000_000
"""Bytes: more than a body may have, and than the buffers of both kernels take."""
LAST = ("Connection: close",)


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA()


async def refuse(asked: Request) -> Response:
    """Reply before the body is read."""
    return Response(401, b"no", closes_http2=True)


@pytest.fixture(scope="module")
def server(ca: ThrowawayCA) -> Iterator[Served]:
    with serving(ca, refuse) as served:
        yield served


def head_of(declared: int, headers: tuple[str, ...] = LAST, target: str = "/") -> bytes:
    return request(target, "POST", (*headers, f"Content-Length: {declared}"))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(head_of(BODY), 401, id="a reply before the body was read"),
        pytest.param(head_of(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"), 401, id="the same over HTTP/1.0"),
        pytest.param(head_of(BODY, ("Expect: 100-continue",)), 401, id="a client that was not asked for its body"),
        pytest.param(head_of(BODY, ("Host: twice",)), 400, id="a request that is refused for its head"),
        pytest.param(request("/", "POST", ("Transfer-Encoding: gzip, chunked",)), 501, id="a coding that is not known"),
        pytest.param(head_of(BODY, (f"X: {'x' * 70_000}",)), 431, id="a head that is too large"),
    ],
)
def test_the_reply_is_read_after_the_whole_body_was_sent(
    server: Served, tmp_path: Path, version: ssl.TLSVersion, head: bytes, status: int
) -> None:
    with server.client(tmp_path, version=version) as client:
        client.sendall(head)
        client.sendall(bytes(BODY))
        assert reply(client)[0] == status
        assert client.recv(1) == b""


def test_a_client_sees_the_end_of_the_reply_while_it_is_sending(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as client:
        client.sendall(head_of(BODY))
        assert reply(client)[0] == 401
        assert client.recv(1) == b""
        client.sendall(bytes(BODY))


def test_urllib_sees_the_status_of_a_reply_before_its_body_was_read(server: Served, tmp_path: Path) -> None:
    asked = urllib.request.Request(f"https://localhost:{server.port}/", bytes(BODY))
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, context=server.context(tmp_path), timeout=PATIENCE)
    caught.value.close()
    assert caught.value.code == 401


def test_a_plain_request_with_a_body_reads_that_the_port_speaks_tls(server: Served) -> None:
    plain = http.client.HTTPConnection("localhost", server.port, timeout=PATIENCE)
    try:
        plain.request("POST", "/", bytes(BODY))
        assert plain.getresponse().read() == b"Client sent an HTTP request to an HTTPS server.\n"
    finally:
        plain.close()


@pytest.mark.parametrize(
    ("head", "connection"),
    [
        pytest.param(head_of(8 * MAX_BODY, ()), "close", id="a declared length"),
        pytest.param(
            request("/", "POST", ("Transfer-Encoding: chunked",)) + b"%x\r\n" % (8 * MAX_BODY), None, id="a chunk"
        ),
    ],
)
def test_what_comes_after_more_than_a_body_may_have_is_discarded_without_decrypting(
    server: Served, tmp_path: Path, head: bytes, connection: str | None
) -> None:
    with server.client(tmp_path) as client:
        client.sendall(head)
        client.sendall(bytes(8 * MAX_BODY))
        status, headers, _ = reply(client)
        assert (status, headers.get("connection")) == (401, connection)
        assert client.recv(1) == b""


def test_a_connection_is_kept_after_an_early_reply_whose_body_may_be_discarded(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as client:
        for _ in range(2):
            client.sendall(head_of(MAX_BODY, ()))
            client.sendall(bytes(MAX_BODY))
            status, headers, _ = reply(client)
            assert (status, headers.get("connection")) == (401, None)


def is_cut(client: socket.socket) -> bool:
    """Send until the connection is gone."""
    try:
        while True:
            client.sendall(bytes(1 << 16))
    except OSError:
        return True


def test_a_client_that_never_stops_sending_is_cut_off(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlsconnection, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(tlsconnection, "SILENT_SECONDS", 0.02)
    with server.client(tmp_path) as client:
        client.sendall(head_of(1 << 40))
        assert is_cut(client)


def test_a_client_that_goes_on_sending_is_read_from_with_pauses(
    ca: ThrowawayCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlsconnection, "DISCARD_SECONDS", PATIENCE)
    with serving(ca, refuse) as server, server.client(tmp_path) as client:
        client.sendall(head_of(BODY))
        assert reply(client)[0] == 401
        client.sendall(b"x")
        connections = server.listener.connections
        while server.ask(lambda: any(one.tcp.is_reading() for one in connections)):
            pass
        assert server.ask(lambda: [one.is_lingering for one in connections]) == [True]


def test_a_client_that_sends_no_more_and_does_not_close_is_closed(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlsconnection, "SILENT_SECONDS", 0.02)
    with server.client(tmp_path) as client:
        client.sendall(head_of(BODY))
        assert reply(client)[0] == 401
        deadline = time.monotonic() + PATIENCE
        while server.ask(lambda: len(server.listener.connections)) and time.monotonic() < deadline:
            server.run(lambda: asyncio.sleep(0.01))
        assert not server.ask(lambda: len(server.listener.connections))


def test_a_server_that_stops_lets_a_client_that_is_sending_read_its_reply(ca: ThrowawayCA, tmp_path: Path) -> None:
    with serving(ca, refuse) as stopping, stopping.client(tmp_path) as client:
        client.sendall(head_of(BODY))
        stopping.ask(stopping.listener.stop_accepting)
        stopping.run(lambda: stopping.application.drain(PATIENCE))
        waiting = asyncio.run_coroutine_threadsafe(stopping.listener.wait_until_sent(PATIENCE), stopping.loop)
        client.sendall(bytes(BODY))
        assert reply(client)[0] == 401
        client.close()
        waiting.result(PATIENCE)
        assert not stopping.ask(lambda: len(stopping.listener.connections))


def test_over_http2_a_client_that_is_sending_reads_its_reply_and_the_goaway(server: Served, tmp_path: Path) -> None:
    with peer(server, tmp_path) as client:
        stream = client.begin("/", "POST")
        client.send(stream, bytes(200_000), end=False)
        client.until(lambda: client.replies[stream].ended)
        assert (client.replies[stream].status, client.replies[stream].body) == (401, b"no")
        assert client.end() == ErrorCodes.NO_ERROR


def test_over_http2_the_reset_of_a_stream_comes_after_its_reply(server: Served, tmp_path: Path) -> None:
    """curl 7.88 reports "Stream error in the HTTP/2 framing layer", and no status, when it reads both at once."""
    with peer(server, tmp_path) as client:
        stream = client.begin("/", "POST")
        client.send(stream, bytes(1000), end=False)
        client.until(lambda: client.replies[stream].ended)
        assert client.replies[stream].reset is None
        refused = client.get()
        assert (refused.status, refused.reset) == (0, ErrorCodes.REFUSED_STREAM)
        client.until(lambda: client.replies[stream].reset is not None)
        assert client.replies[stream].reset == ErrorCodes.NO_ERROR
        assert client.end() == ErrorCodes.NO_ERROR
        assert server.ask(lambda: server.http2.open_streams) == {}


def test_over_http2_a_server_that_stops_resets_the_stream_at_once(server: Served, tmp_path: Path) -> None:
    with peer(server, tmp_path) as client:
        stream = client.begin("/", "POST")
        client.until(lambda: client.replies[stream].ended)
        server.run(lambda: server.application.drain(PATIENCE))
        assert client.end() == ErrorCodes.NO_ERROR
        assert client.replies[stream].reset == ErrorCodes.NO_ERROR


@pytest.mark.parametrize("more", [b"\r\n", request("/")], ids=["a line break", "another request"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_sends_more_behind_its_last_request_reads_the_whole_reply(
    ca: ThrowawayCA, tmp_path: Path, version: str, more: bytes
) -> None:
    async def respond(asked: Request) -> Response:
        return Response(200, bytes(200_000))

    with serving(ca, respond) as server, socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # most of the reply waits in the server's kernel
        raw.settimeout(PATIENCE)
        raw.connect(("127.0.0.1", server.port))
        with server.context(tmp_path).wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(request(headers=LAST).replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
            while server.ask(lambda: any(not one.is_lingering for one in server.listener.connections)):
                pass
            client.sendall(more)
            assert len(reply(client)[2]) == 200_000


def test_bytes_of_another_request_behind_the_last_do_not_reset_its_reply(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as client:
        client.sendall(head_of(1) + b"x" + request("/"))
        assert rest(client).count(b"HTTP/1.1 ") == 1


def test_a_client_that_has_gone_before_the_end_is_no_fault(server: Served) -> None:
    """asyncio shuts the socket down at once, and the kernel knows of no peer."""
    done: list[str] = []

    def shut_down() -> None:
        raise OSError(errno.ENOTCONN, "gone")

    protocol = TlsProtocol(server.listener)
    tcp = SimpleNamespace(is_closing=lambda: False, write_eof=shut_down, abort=lambda: done.append("aborted"))
    protocol.tcp = cast(asyncio.Transport, tcp)
    server.ask(cast(Any, protocol)._linger)
    assert done == ["aborted"]
