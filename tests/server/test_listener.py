"""Test the listener over real TLS: peer chains, plain HTTP, limits, order of bytes (docs/adr/0003)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import resource
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from mooring.apimachinery.codec.json import MAX_BODY
from mooring.pki import pem
from mooring.server.transport import http, http1, listener, tlsconnection
from mooring.server.transport.http import Request, Response
from mooring.server.transport.listener import Listener
from mooring.server.transport.responsewriter import ResponseWriter
from mooring.server.transport.tlsconnection import TlsConnection, TlsProtocol
from tests.support.testca import Pair, ThrowawayCA
from tests.support.tlspeer import Served, reply, request, rest, serving

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA()


async def tell(req: Request) -> Response:
    """Says what the server saw: the chain as fingerprints, path, headers, length and digest of the body."""
    if req.path == "/unread":
        return Response(401, b"no")
    if req.path.startswith("/large/"):
        return Response(200, b"x" * int(req.path.removeprefix("/large/")))
    if req.path == "/stream":

        async def stream(frames: ResponseWriter) -> None:
            frames.write(b"first\n")
            await frames.ended

        return Response(200, stream=stream)
    body = await req.body()
    seen = {
        "chain": [hashlib.sha256(der).hexdigest() for der in req.connection.chain],
        "source": req.connection.source,
        "path": req.path,
        "headers": [name.decode() for name, _ in req.headers],
        "size": len(body),
        "digest": hashlib.sha256(body).hexdigest(),
    }
    return Response(200, json.dumps(seen).encode())


@pytest.fixture(scope="module")
def server(ca: ThrowawayCA) -> Iterator[Served]:
    with serving(ca, tell) as served:
        yield served


@dataclass(frozen=True)
class OddPair(Pair):
    """Certificate and key, of which the server presents other bytes."""

    presented: bytes

    @property
    def certificate_pem(self) -> bytes:
        return pem.encode(pem.CERTIFICATE, self.presented)


def digest(pair: Pair) -> str:
    return hashlib.sha256(pair.der).hexdigest()


def asked(peer: socket.socket, target: str = "/") -> dict[str, object]:
    peer.sendall(request(target))
    status, _, body = reply(peer)
    assert status == 200
    seen: dict[str, object] = json.loads(body)
    return seen


# -- who the peer is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [TLS12, TLS13], ids=["TLS 1.2", "TLS 1.3"])
class TestPeer:
    def test_a_client_without_a_certificate_is_served_and_has_no_chain(
        self, server: Served, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        with server.client(tmp_path, version=version) as peer:
            seen = asked(peer)
        assert (seen["chain"], seen["source"]) == ([], "127.0.0.1")

    def test_a_certificate_of_the_cluster_arrives(
        self, server: Served, ca: ThrowawayCA, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        ann = ca.client("ann")
        with server.client(tmp_path, ann, version=version) as peer:
            chain = asked(peer)["chain"]
        assert chain == [digest(ann), hashlib.sha256(ca.certificate.der).hexdigest()], (
            "OpenSSL's clients add the authorities they know"
        )

    def test_a_client_whose_certificate_has_a_thousand_groups_is_answered(
        self, server: Served, ca: ThrowawayCA, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        ann = ca.client("ann", *(f"group-{number:04}" for number in range(1200)))
        context = server.context(tmp_path, ann, version=version)
        with server.client(tmp_path, context=context) as first:
            assert cast(list[str], asked(first)["chain"])[0] == digest(ann)
            session = first.session
        with server.client(tmp_path, context=context, session=session) as second:
            assert cast(list[str], asked(second)["chain"])[0] == digest(ann)
            assert not second.session_reused, "its ticket would carry the certificate"

    def test_the_handshake_of_a_stranger_succeeds_and_judging_is_left_to_authentication(
        self, server: Served, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        stranger = ThrowawayCA("stranger").client("ann")
        with server.client(tmp_path, stranger, version=version) as peer:
            assert asked(peer)["chain"] == [digest(stranger)]

    def test_a_certificate_that_only_openssl_can_parse_reaches_authentication_as_it_is(
        self, server: Served, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        ann = ThrowawayCA("stranger").client("ann")
        odd = ann.der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020105"), 1)  # X.509 version 6
        ann_odd = OddPair(ann.certificate, ann.key, odd)
        with server.client(tmp_path, ann_odd, version=version) as peer:
            assert asked(peer)["chain"] == [hashlib.sha256(odd).hexdigest()]

    def test_the_leaf_is_the_certificate_whose_key_was_proved_whatever_else_is_sent(
        self, server: Served, ca: ThrowawayCA, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        mallory, admin = ThrowawayCA("stranger").client("mallory"), ca.client("admin", "system:masters")
        with server.client(tmp_path, mallory, admin, version=version) as peer:
            assert asked(peer)["chain"] == [digest(mallory), digest(admin)]

    def test_a_leaf_is_judged_without_the_intermediate_that_another_connection_sent(
        self, server: Served, ca: ThrowawayCA, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        ann, between = ThrowawayCA("stranger").client("ann"), ca.client("some-intermediate")
        with server.client(tmp_path, ann, between, version=version) as first:
            assert asked(first)["chain"] == [digest(ann), digest(between)]
        with server.client(tmp_path, ann, version=version) as second:
            assert asked(second)["chain"] == [digest(ann)]

    def test_a_session_with_intermediates_is_not_resumed_so_that_they_are_sent_again(
        self, server: Served, ca: ThrowawayCA, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        ann, between = ca.client("ann"), ca.client("some-intermediate")
        context = server.context(tmp_path, ann, between, version=version)
        with server.client(tmp_path, context=context) as first:
            before = asked(first)["chain"]
            session = first.session
        with server.client(tmp_path, context=context, session=session) as second:
            after = asked(second)["chain"]
            assert not second.session_reused
        assert before == after == [digest(ann), digest(between)]

    def test_a_session_of_a_leaf_below_a_root_of_the_bundle_is_resumed_by_tls_1_3(
        self, server: Served, ca: ThrowawayCA, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        ann = ca.client("ann")
        context = server.context(tmp_path, ann, version=version)
        with server.client(tmp_path, context=context) as first:
            assert len(cast(list[str], asked(first)["chain"])) == 2, "the leaf and the root, which the client knows"
            session = first.session
        with server.client(tmp_path, context=context, session=session) as second:
            assert cast(list[str], asked(second)["chain"])[0] == digest(ann)
            assert second.session_reused == (version is TLS13)

    def test_a_resumed_session_without_intermediates_keeps_its_leaf(
        self, server: Served, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        bob = ThrowawayCA("stranger").client("bob")
        context = server.context(tmp_path, bob, version=version)
        with server.client(tmp_path, context=context) as first:
            asked(first)
            session = first.session
        with server.client(tmp_path, context=context, session=session) as second:
            assert asked(second)["chain"] == [digest(bob)]
            assert second.session_reused == (version is TLS13)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_the_names_of_the_client_authorities_are_advertised(server: Served, ca: ThrowawayCA) -> None:
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-servername", "localhost"]
    shown = subprocess.run(command, input=b"", capture_output=True, timeout=60).stdout.decode()
    assert "Acceptable client certificate CA names\nCN = kubernetes" in shown.replace(
        "CN=kubernetes", "CN = kubernetes"
    )


def test_protocols_older_than_tls_1_2_are_refused(server: Served, tmp_path: Path) -> None:
    context = server.context(tmp_path)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        server.client(tmp_path, context=context)


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["h2", "http/1.1"], "h2"),
        (["http/1.1", "h2"], "h2"),
        (["h2"], "h2"),
        (["http/1.1"], "http/1.1"),
        (["h3"], None),
        ([], None),
    ],
    ids=str,
)
def test_the_protocol_is_agreed_on_by_alpn(
    server: Served, tmp_path: Path, offered: list[str], chosen: str | None
) -> None:
    context = server.context(tmp_path)
    if offered:
        context.set_alpn_protocols(offered)
    with server.client(tmp_path, context=context) as peer:
        assert peer.selected_alpn_protocol() == chosen


# -- what is not right -------------------------------------------------------------------------------------------


def test_bytes_that_are_not_tls_end_the_connection_and_are_counted(server: Served) -> None:
    before = server.listener.failed_handshakes
    with server.plain() as peer:
        peer.sendall(b"no TLS at all\r\n")
        assert not rest(peer).startswith(b"HTTP")
    assert server.listener.failed_handshakes == before + 1


def test_plain_http_gets_the_answer_of_go(server: Served) -> None:
    with server.plain() as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert rest(peer) == (b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")


def test_a_handshake_that_does_not_end_is_ended(ca: ThrowawayCA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tlsconnection, "HANDSHAKE_SECONDS", 0.01)
    with serving(ca, tell) as served, served.plain() as peer:
        assert rest(peer) == b""


def test_a_client_that_never_asks_anything_is_cut_off(
    ca: ThrowawayCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "HEADER_SECONDS", 0.01)
    with serving(ca, tell) as served, served.client(tmp_path) as peer:
        assert rest(peer) == b""


def test_headers_that_do_not_end_are_cut_off(ca: ThrowawayCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(ca, tell) as served, served.client(tmp_path) as peer:
        asked(peer)
        monkeypatch.setattr(http1, "HEADER_SECONDS", 0.01)
        peer.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert rest(peer) == b""


def test_connections_beyond_the_limit_get_an_alert_and_are_counted_with_one_line(
    ca: ThrowawayCA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(ca, tell, max_connections=1) as served, served.client(tmp_path) as first:
        asked(first)
        for _ in range(3):
            with served.plain() as refused:
                assert rest(refused) == tlsconnection.REFUSAL
        with pytest.raises((ssl.SSLError, ConnectionError)):
            served.client(tmp_path)
        assert served.listener.refused == 4
        assert asked(first)["path"] == "/"
    (line,) = [message for message in caplog.messages if "refused" in message]
    assert line.startswith("connections are refused, 1 so far: all 1 of this process")
    assert "raise it with ulimit -n" in line


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"\x00\x01\x02\r\n\r\n", id="no method"),
        pytest.param(b"GET / HTTP/9.9\r\n\r\n", id="no such version"),
        pytest.param(b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", id="a length that is no number"),
        pytest.param(b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", id="two lengths"),
        pytest.param(b"CONNECT somewhere:443 HTTP/1.1\r\n\r\n", id="a tunnel"),
        pytest.param(b"GET \xff\xfe HTTP/1.1\r\n\r\n", id="a target that is no text"),
    ],
)
def test_bytes_that_are_not_http_are_400_and_the_end(server: Served, tmp_path: Path, junk: bytes) -> None:
    with server.client(tmp_path) as peer:
        peer.sendall(junk)
        assert rest(peer).startswith(b"HTTP/1.1 400 ")
    with server.client(tmp_path) as peer:
        assert asked(peer)["path"] == "/", "the server lives on"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"X-Long: " + b"x" * 200_000, id="one header without an end"),
        pytest.param(b"X-Name" * 40_000, id="one name without an end"),
        pytest.param(b"\r\n".join(b"X-%d: y" % number for number in range(20_000)), id="many headers"),
        pytest.param(
            b"\r\n".join(b"A: b" for _ in range(http.MAX_HEADERS + 1)) + b"\r\n\r\n", id="too many small ones"
        ),
    ],
)
def test_headers_beyond_the_limit_are_431(server: Served, tmp_path: Path, head: bytes) -> None:
    with server.client(tmp_path) as peer:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + head)
        answer = rest(peer)
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")
    with server.client(tmp_path) as peer:
        assert asked(peer)["path"] == "/"


def test_a_target_beyond_the_limit_is_431(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as peer:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            peer.sendall(b"GET /" + b"x" * 200_000)
        answer = rest(peer)
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")


def test_headers_just_below_the_limit_pass(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as peer:
        peer.sendall(request("/", headers=("X-Long: " + "x" * 60_000,)))
        assert reply(peer)[0] == 200


def test_trailers_do_not_become_headers(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as peer:
        head = request("/", "POST", ("Transfer-Encoding: chunked", "Trailer: X-Evil"))
        peer.sendall(head + b"3\r\nabc\r\n0\r\nX-Evil: 1\r\n\r\n")
        status, _, body = reply(peer)
    seen = json.loads(body)
    assert (status, seen["size"]) == (200, 3)
    assert "x-evil" not in seen["headers"]


def test_trailers_without_an_end_are_cut_off(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as peer:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            peer.sendall(request("/", "POST", ("Transfer-Encoding: chunked",)) + b"0\r\nX-Evil: " + b"x" * 400_000)
        answer = rest(peer)
    assert b" 200 " not in answer[:20]


# -- bytes in the right order ------------------------------------------------------------------------------------


def test_a_large_body_arrives_whole(server: Served, tmp_path: Path) -> None:
    body = bytes(range(256)) * (MAX_BODY // 256)
    with server.client(tmp_path) as peer:
        peer.sendall(request("/", "POST", body=body))
        _, _, answer = reply(peer)
    assert json.loads(answer)["digest"] == hashlib.sha256(body).hexdigest()


def test_a_body_in_chunks_arrives_whole(server: Served, tmp_path: Path) -> None:
    pieces = [bytes([number % 256]) * 40_000 for number in range(40)]
    with server.client(tmp_path) as peer:
        peer.sendall(request("/", "POST", ("Transfer-Encoding: chunked",)))
        for piece in pieces:
            peer.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        peer.sendall(b"0\r\n\r\n")
        _, _, answer = reply(peer)
    assert json.loads(answer)["digest"] == hashlib.sha256(b"".join(pieces)).hexdigest()


def test_a_body_that_nobody_reads_does_not_disturb_the_next_request(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as peer:
        peer.sendall(request("/unread", "POST", body=b"x" * 1_000_000))
        assert reply(peer)[0] == 401
        assert asked(peer)["path"] == "/"


@pytest.mark.parametrize("size", [0, 1, 16_384, 262_143, 262_144, 262_145, 20_000_000])
def test_a_reply_of_any_size_arrives_whole(server: Served, tmp_path: Path, size: int) -> None:
    with server.client(tmp_path) as peer:
        peer.sendall(request(f"/large/{size}"))
        status, _, body = reply(peer)
    assert (status, len(body)) == (200, size)


def test_one_reply_may_be_larger_than_what_may_wait(
    ca: ThrowawayCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlsconnection, "MAX_UNSENT", 1 << 20)
    with serving(ca, tell) as served, served.client(tmp_path) as peer:
        peer.sendall(request("/large/12000000"))
        assert len(reply(peer)[2]) == 12_000_000


def test_pipelined_requests_are_answered_in_order(server: Served, tmp_path: Path) -> None:
    targets = [f"/{number}" for number in range(300)]
    with server.client(tmp_path) as peer:
        peer.sendall(b"".join(request(target) for target in targets[:-1]))
        peer.sendall(request(targets[-1], headers=("Connection: close",)))
        answer = rest(peer)
    assert [f'"path": "{target}"'.encode() in answer for target in targets] == [True] * len(targets)
    places = [answer.index(f'"path": "{target}"'.encode()) for target in targets]
    assert places == sorted(places)


def test_a_pipelined_request_behind_a_body_above_the_pause_mark_is_answered(server: Served, tmp_path: Path) -> None:
    body = b"x" * 500_000
    with server.client(tmp_path) as peer:
        peer.sendall(request("/a", "POST", body=body) + request("/b", "POST", ("Connection: close",), body))
        answer = rest(peer)
    assert answer.count(hashlib.sha256(body).hexdigest().encode()) == 2


def test_head_has_the_length_and_no_body(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as peer:
        peer.sendall(request("/large/5", "HEAD", ("Connection: close",)))
        head, _, body = rest(peer).partition(b"\r\n\r\n")
    assert b"content-length: 5" in head
    assert body == b""


def test_a_wish_to_upgrade_is_ignored(server: Served, tmp_path: Path) -> None:
    with server.client(tmp_path) as peer:
        peer.sendall(request("/", headers=("Connection: Upgrade", "Upgrade: websocket")))
        assert reply(peer)[0] == 200


# -- ends --------------------------------------------------------------------------------------------------------


def connections(server: Served) -> int:
    return int(server.ask(lambda: len(server.listener.connections)))


def test_a_peer_that_closes_its_half_ends_its_stream(ca: ThrowawayCA, tmp_path: Path) -> None:
    with serving(ca, tell) as served:
        peer = served.client(tmp_path)
        peer.sendall(request("/stream"))
        seen = b""
        while b"first" not in seen:
            seen += peer.recv(4096)
        peer.shutdown(socket.SHUT_WR)
        rest(peer)
        peer.close()

        async def gone() -> None:
            while served.listener.connections or served.application.tasks:
                await asyncio.sleep(0)

        served.run(gone)


def test_a_request_whose_reply_goes_on_keeps_no_credentials(ca: ThrowawayCA, tmp_path: Path) -> None:
    kept: list[tuple[bytes, bytes]] = []

    async def handler(req: Request) -> Response:
        assert req.header(b"authorization") == "Bearer swordfish"

        async def stream(frames: ResponseWriter) -> None:
            kept.extend(req.headers)

        return Response(200, stream=stream)

    with serving(ca, handler) as served:
        peer = served.client(tmp_path)
        peer.sendall(
            b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: tester\r\nAuthorization: Bearer swordfish\r\nConnection: close\r\n\r\n"
        )
        rest(peer)
        peer.close()
    assert kept == [(b"user-agent", b"tester")]


def test_a_client_that_leaves_before_its_stream_begins_leaves_nothing_behind(ca: ThrowawayCA, tmp_path: Path) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()
    ended = asyncio.Event()

    async def late(req: Request) -> Response:
        arrived.set()
        await go_on.wait()

        async def stream(frames: ResponseWriter) -> None:
            await frames.ended
            ended.set()

        return Response(200, stream=stream)

    with serving(ca, late) as served:
        peer = served.client(tmp_path)
        peer.sendall(request("/"))
        served.run(arrived.wait)
        peer.close()

        async def leave() -> None:
            while served.listener.connections:
                await asyncio.sleep(0)
            go_on.set()
            await ended.wait()

        served.run(leave)


def test_a_connection_accepted_before_the_drain_gets_its_first_reply(
    ca: ThrowawayCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "KEPT_SECONDS", 0)
    with serving(ca, tell) as served, served.client(tmp_path) as fresh, served.client(tmp_path) as idle:
        idle.sendall(request("/"))
        assert reply(idle)[0] == 200
        waits = asyncio.Event()

        async def drain() -> None:
            served.listener.stop_accepting()
            waiting = asyncio.ensure_future(served.listener.wait_until_requested(60))
            await asyncio.sleep(0)
            assert not waiting.done()
            waits.set()
            await waiting
            await served.application.drain(60)

        def send() -> None:
            served.run(waits.wait)
            fresh.sendall(request("/"))

        sending = threading.Thread(target=send)
        sending.start()
        served.run(drain)
        sending.join()
        assert reply(fresh)[0] == 200
        assert rest(idle) == rest(fresh) == b""


def test_drain_waits_for_a_silent_connection_no_longer_than_it_may(ca: ThrowawayCA, tmp_path: Path) -> None:
    with serving(ca, tell) as served, served.client(tmp_path) as silent:
        served.run(lambda: served.listener.wait_until_requested(0.02))
        served.run(lambda: served.application.drain(60))
        assert rest(silent) == b""


def test_drain_finishes_what_runs_and_closes_what_is_idle(ca: ThrowawayCA, tmp_path: Path) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(req: Request) -> Response:
        if req.path == "/slow":
            arrived.set()
            await go_on.wait()
        return Response(200, b"done")

    with serving(ca, slow) as served, served.client(tmp_path) as idle, served.client(tmp_path) as busy:
        idle.sendall(request("/"))
        assert reply(idle)[0] == 200
        busy.sendall(request("/slow"))
        served.run(arrived.wait)

        async def drain() -> None:
            served.listener.stop_accepting()
            draining = asyncio.ensure_future(served.application.drain(10))
            await asyncio.sleep(0)
            go_on.set()
            await draining

        served.run(drain)
        assert rest(idle) == b""
        status, headers, _ = reply(busy)
        assert (status, headers.get("connection", "close")) == (200, "close")
        assert rest(busy) == b""
        with pytest.raises(ConnectionError):
            served.plain()


def test_a_key_that_is_not_the_certificates_is_a_clear_error(ca: ThrowawayCA) -> None:
    from mooring.errors import ConfigError
    from mooring.server.transport.tls import server_context

    with pytest.raises(ConfigError, match="do not belong together"):
        server_context([ca.server().certificate], ca.server().key, [ca.certificate])


def test_one_source_holds_at_most_half_of_the_connections() -> None:
    listening = Listener(cast(Any, None), cast(Any, None), max_connections=4)

    def connected(source: str) -> tuple[TlsProtocol, bool]:
        protocol = TlsProtocol.__new__(TlsProtocol)
        protocol.connection, protocol.held = TlsConnection(source), 0
        return protocol, listening.admit(protocol)

    first, _ = connected("192.0.2.1")
    assert [connected("192.0.2.1")[1], connected("192.0.2.1")[1], connected("192.0.2.2")[1]] == [True, False, True]
    listening.dismiss(first)
    assert connected("192.0.2.1")[1]
    assert [connected("192.0.2.3")[1], connected("192.0.2.4")[1]] == [True, False]
    assert listening.refused == 2


def test_no_more_connections_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, wanted: limits.update(now=wanted))
    assert listener.affordable_connections() == 4096 - listener.SPARE_FILES
    assert limits["now"] == (4096, 4096)
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert listener.affordable_connections() == listener.MAX_CONNECTIONS


@pytest.mark.parametrize(("limit", "connections"), [(64, 32), (200, 100), (256, 128), (1024, 896)])
def test_descriptors_are_kept_for_everything_else_whatever_the_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert listener.affordable_connections() == connections
    is_told = f"the limit of open files, {limit}, allows {connections} connections" in caplog.text
    assert is_told == (connections < listener.FEW_CONNECTIONS)


def test_a_long_body_that_nobody_reads_ends_the_connection(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlsconnection, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(tlsconnection, "SILENT_SECONDS", 0.02)
    with server.client(tmp_path) as peer:
        head, _, _ = request("/unread", "POST", body=b"x").partition(b"\r\n\r\n")
        sent = head.replace(b"Content-Length: 1", b"Content-Length: %d" % (1 << 40))
        assert sent != head
        peer.sendall(sent + b"\r\n\r\n")
        assert reply(peer)[0] == 401
        with pytest.raises(OSError):  # noqa: PT012 - at one of these pieces the connection is gone
            while True:
                peer.sendall(bytes(http1.MAX_DISCARDED))
