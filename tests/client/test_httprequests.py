"""Requests over real sockets: trust, credentials, and the kinds of failure."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Any, cast

import pytest
from cryptography import x509

from mooring.client.http.connection import PIECE, ResponseStream
from mooring.client.http.requests import PROGRESS, drive_fetching, fetch, read_steadily
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.pki.keys import generate_key
from mooring.pki.x509 import profiles
from mooring.pki.x509.names import subject
from mooring.secret import Secret
from mooring.trust.discovery.fetch import DiscoveryExchange, Notice
from mooring.trust.httpexchange import (
    CERTIFICATE,
    CERTIFICATE_TIME,
    NOT_HTTP,
    NOT_TLS,
    SYSTEM_ROOTS,
    TIMEOUT,
    TOO_LONG,
    UNREACHABLE,
    UNVERIFIED,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Trust,
    Wait,
)
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support import peer
from tests.support.manualclock import ManualClock
from tests.support.manualloop import ManualLoop
from tests.support.ports import free_port
from tests.support.testca import LOOPBACK, ThrowawayCA

CA = ThrowawayCA()
OTHER = ThrowawayCA("somebody else")
SERVING = CA.server(*LOOPBACK)


def got(request: HttpRequest) -> HttpResponse | HttpFailure:
    return asyncio.run(fetch(request, SystemClock()))


def failed(request: HttpRequest) -> HttpFailure:
    answer = got(request)
    assert isinstance(answer, HttpFailure), answer
    return answer


def fetched(request: HttpRequest) -> HttpResponse:
    answer = got(request)
    assert isinstance(answer, HttpResponse), answer
    return answer


def test_the_given_ca_is_all_the_trust_there_is() -> None:
    with peer.http_peer(pair=SERVING) as server:
        assert fetched(HttpRequest(Trust(CA.certificate_pem), url=server.url)).body == b"{}"
        assert failed(HttpRequest(Trust(OTHER.certificate_pem), url=server.url)).kind == CERTIFICATE
        assert failed(HttpRequest(SYSTEM_ROOTS, url=server.url)).kind == CERTIFICATE
        assert fetched(HttpRequest(UNVERIFIED, url=server.url)).status == 200


DOCUMENT = b'{"issuer": "https://id.example"}'
LONG = b'"' + b"a" * 10_000_000 + b'"'


@pytest.mark.parametrize(
    ("encoding", "body", "answered"),
    [
        pytest.param("gzip", gzip.compress(DOCUMENT), DOCUMENT, id="gzip, which Go's client requests"),
        pytest.param("GZIP", gzip.compress(DOCUMENT), DOCUMENT, id="in capitals"),
        pytest.param("x-gzip", gzip.compress(DOCUMENT), DOCUMENT, id="by its old name"),
        pytest.param("deflate", zlib.compress(DOCUMENT), DOCUMENT, id="deflate"),
        pytest.param("identity", DOCUMENT, DOCUMENT, id="not compressed, and said so"),
        pytest.param("gzip", gzip.compress(LONG[: PIECE * 3]), LONG[: PIECE * 3], id="longer than a piece"),
        pytest.param("gzip", b"", b"", id="no body"),
        pytest.param("gzip", gzip.compress(LONG), TOO_LONG, id="a bomb"),
        pytest.param("gzip", DOCUMENT, "not what its content-encoding gzip says", id="something else"),
        pytest.param("gzip", gzip.compress(DOCUMENT)[:-9], "by gzip ends too early", id="half of it"),
        pytest.param("gzip", gzip.compress(b"{}") * 2, "more than one stream of gzip", id="two streams"),
        pytest.param("br", b"\x0b\x00\x80", "compressed by 'br', which was not requested", id="another encoding"),
        pytest.param("gzip, gzip", b"", "compressed by 'gzip, gzip'", id="twice"),
    ],
)
def test_an_answer_that_is_compressed_is_read_within_the_limit(
    encoding: str, body: bytes, answered: bytes | str
) -> None:
    reply = peer.Reply(200, body, {"Content-Encoding": encoding})
    with peer.http_peer(lambda received: reply, pair=SERVING) as server:
        answer = got(HttpRequest(Trust(CA.certificate_pem), url=server.url, max_bytes=1_000_000))
    assert server.requests[0].headers["Accept-Encoding"] == "identity"
    if isinstance(answered, bytes):
        assert isinstance(answer, HttpResponse)
        assert answer.body == answered
    else:
        assert isinstance(answer, HttpFailure)
        assert answered in (answer.kind, answer.message) or answered in answer.message
        assert (answer.kind if answer.kind == TOO_LONG else NOT_HTTP, answer.status) == (answer.kind, 200)


def test_a_bomb_is_unpacked_in_pieces_of_which_no_more_is_made_than_is_read() -> None:
    class Received:
        status_code, headers = 200, {"content-encoding": "gzip"}

        async def aiter_raw(self) -> AsyncGenerator[bytes]:
            yield gzip.compress(LONG)

    async def first_pieces() -> list[int]:
        stream = ResponseStream(cast(Any, Received()))
        async with aclosing(stream.chunks()) as chunks:
            return [len(await anext(chunks)) for _ in range(3)]

    assert asyncio.run(first_pieces()) == [PIECE, PIECE, PIECE]


@pytest.mark.parametrize(
    ("name", "unit", "is_taken"),
    [
        ("system:node:n1", "", False),
        ("n1", "system:node:n1", False),
        ("kube-apiserver", "", True),
        ("kube-apiserver", "system:nodes", True),
    ],
)
def test_a_node_is_no_api_server_whatever_names_of_loopback_its_certificate_has(
    name: str, unit: str, is_taken: bool
) -> None:
    """The CA of the cluster signs certificates of nodes for the same purpose; those of k3s's agents have localhost."""
    key = generate_key()
    template = replace(
        profiles.apiserver_serving(key.public_key(), CA.now, ["localhost"], [ip_address("127.0.0.1")]),
        subject=subject(name, ("system:nodes",), unit=unit),
    )
    with peer.http_peer(pair=CA.sign(template, key)) as server:
        request = HttpRequest(Trust(CA.certificate_pem), url=server.url, authorization=Secret(b"Bearer secret"))
        answer = got(request)
    assert isinstance(answer, HttpResponse) is is_taken, answer
    assert bool(server.requests) is is_taken
    if isinstance(answer, HttpFailure):
        assert answer.kind == CERTIFICATE
        assert "that of a node" in answer.message


def test_a_leaf_or_an_intermediate_among_the_given_is_an_anchor_too() -> None:
    with peer.http_peer(pair=SERVING) as server:
        assert fetched(HttpRequest(Trust(SERVING.certificate_pem), url=server.url)).status == 200


def test_the_name_must_be_on_the_certificate_unless_another_is_given() -> None:
    with peer.http_peer(pair=CA.server("api.test")) as server:
        wrong = failed(HttpRequest(Trust(CA.certificate_pem), url=server.url))
        assert (wrong.kind, wrong.message) == (
            CERTIFICATE,
            "ip address mismatch, certificate is not valid for '127.0.0.1'",
        )
        assert fetched(HttpRequest(Trust(CA.certificate_pem, tls_server_name="api.test"), url=server.url)).status == 200


@pytest.mark.parametrize("name", ["api.test.", "API.test."])
def test_the_name_for_tls_has_no_final_dot(name: str) -> None:
    """RFC 6066 3, Go's `x509.VerifyHostname`. `tests/client/test_proxies.py` has the host of the URL."""
    with peer.http_peer(pair=CA.server("api.test")) as server:
        assert fetched(HttpRequest(Trust(CA.certificate_pem, tls_server_name=name), url=server.url)).status == 200
        other = failed(HttpRequest(Trust(CA.certificate_pem, tls_server_name="other.test."), url=server.url))
        assert other.message == "hostname mismatch, certificate is not valid for 'other.test'"


@pytest.mark.parametrize("name", [".api.test", ".", "...", "api\0.test", "\u00e9" * 70, "\u2024.test", "\udc80"])
def test_a_name_that_tls_cannot_send_fails_the_request(name: str) -> None:
    with peer.http_peer(pair=CA.server("api.test")) as server:
        failure = failed(HttpRequest(Trust(CA.certificate_pem, tls_server_name=name), url=server.url))
    assert failure.kind in (CERTIFICATE, UNREACHABLE)


@pytest.mark.parametrize("host", ["xn--zz..", ".api.test", "\u00e9" * 70])
def test_a_host_that_is_no_name_fails_the_request(host: str) -> None:
    assert failed(HttpRequest(Trust(CA.certificate_pem), url=f"https://{host}:6443")).kind in (CERTIFICATE, UNREACHABLE)


@pytest.mark.parametrize("zone", ["%251", "%1"])
def test_an_interface_is_dialled_and_neither_verified_nor_sent(zone: str) -> None:
    """RFC 4007 6, RFC 6874. The loopback address with the index of an interface stands for a link-local one."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def ask() -> HttpResponse | HttpFailure:
        context = peer.server_context(CA.server("::1"))
        async with await asyncio.start_server(answer, "::1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            url = f"https://[::1{zone}]:{port}/a?b=%2f"
            heads.append(f"Host: [::1]:{port}".encode())
            return await fetch(HttpRequest(Trust(CA.certificate_pem), url=url), SystemClock())

    assert isinstance(asyncio.run(ask()), HttpResponse)
    host, head = heads
    assert head.splitlines()[0] == b"GET /a?b=%2f HTTP/1.1"
    assert host in head.splitlines()


@pytest.mark.parametrize("text", ["https://[::1", "https://api.test:x", "https://[fe80::1%25eth0]:99999"])
def test_a_text_that_is_no_url_is_a_failure(text: str) -> None:
    assert failed(HttpRequest(UNVERIFIED, url=text)).message.startswith("the url cannot be read: ")


@pytest.mark.parametrize(
    ("begins", "ends", "message"),
    [
        pytest.param(-3600, -60, "certificate has expired", id="an expired certificate"),
        pytest.param(60, 3600, "certificate is not yet valid", id="a certificate of the future"),
    ],
)
def test_a_certificate_outside_its_time_is_told_with_our_clock(begins: int, ends: int, message: str) -> None:
    now = SystemClock().now()
    pair = CA.custom(
        "kube-apiserver",
        extensions=[(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)],
        not_before=now + timedelta(seconds=begins),
        not_after=now + timedelta(seconds=ends),
    )
    with peer.http_peer(pair=pair) as server:
        answer = asyncio.run(fetch(HttpRequest(Trust(CA.certificate_pem), url=server.url), ManualClock()))
        assert isinstance(answer, HttpFailure)
        assert (answer.kind, answer.message) == (CERTIFICATE_TIME, message)
        assert answer.hint == "this machine's clock says 2026-01-02T03:04:05Z"


def test_a_server_without_tls_is_told_apart() -> None:
    with peer.http_peer() as server:
        answer = failed(HttpRequest(UNVERIFIED, url=server.url))
        assert (answer.kind, answer.message) == (NOT_TLS, "what it answers is not TLS")


def test_a_banner_is_not_tls() -> None:
    with peer.byte_peer(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 20)) as server:
        assert failed(HttpRequest(UNVERIFIED, url=server.url)).kind == NOT_TLS


def test_nobody_listening_is_unreachable() -> None:
    answer = failed(HttpRequest(UNVERIFIED, url=f"https://127.0.0.1:{free_port()}"))
    assert (answer.kind, answer.message) == (UNREACHABLE, "connection refused")


def test_a_failure_at_a_name_says_which_of_its_addresses_was_tried() -> None:
    port = free_port()
    found = dict.fromkeys(str(one[4][0]) for one in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM))
    refused = failed(HttpRequest(UNVERIFIED, url=f"https://localhost:{port}"))
    assert (refused.kind, refused.message) == (UNREACHABLE, f"connection refused, at {', '.join(found)}")
    with peer.http_peer(pair=CA.server("api.test")) as server:
        wrong = failed(HttpRequest(Trust(CA.certificate_pem), url=f"https://localhost:{server.port}"))
    assert (wrong.kind, wrong.message) == (
        CERTIFICATE,
        "hostname mismatch, certificate is not valid for 'localhost', at 127.0.0.1",
    )


def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    answer = failed(HttpRequest(UNVERIFIED, url="https://nowhere.invalid:6443"))
    assert answer.kind == UNREACHABLE
    with pytest.raises(socket.gaierror) as told:
        socket.getaddrinfo("nowhere.invalid", 6443)
    assert answer.message == f"the name cannot be resolved: {str(told.value.strerror).lower()}"


def test_a_connection_closed_in_the_handshake_is_unreachable() -> None:
    def close(connection: socket.socket) -> None:
        connection.recv(4096)

    with peer.byte_peer(close) as server:
        answer = failed(HttpRequest(UNVERIFIED, url=server.url))
        assert answer.kind == UNREACHABLE
        assert answer.message in ("the connection was closed during the TLS handshake", "connection reset by peer")


def test_a_server_that_says_nothing_is_a_timeout() -> None:
    release = threading.Event()

    def silent(connection: socket.socket) -> None:
        release.wait(5)

    with peer.byte_peer(silent) as server:
        answer = failed(HttpRequest(UNVERIFIED, url=server.url, timeout=0.2))
        release.set()
    assert (answer.kind, answer.message) == (TIMEOUT, "no answer within 0.2 s")


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"], ids=["at once", "in the body"]
)
def test_a_request_ends_with_the_time_that_is_left_for_all_of_it(greeting: bytes) -> None:
    release = threading.Event()

    def silent(connection: socket.socket) -> None:
        if greeting:
            connection.recv(4096)
            connection.sendall(greeting)
        release.wait(30)

    with peer.byte_peer(silent, SERVING if greeting else None) as server:
        answer = failed(HttpRequest(UNVERIFIED, url=server.url, timeout=30, within=0.2))
        release.set()
    assert (answer.kind, answer.message) == (TIMEOUT, "no answer within 0.2 s")


@pytest.mark.parametrize(
    ("pieces", "ends"),
    [
        pytest.param([(9.0, PROGRESS)] * 6, True, id="a KiB within each silence"),
        pytest.param([(9.0, 1), (0.9, PROGRESS), (9.0, PROGRESS)], True, id="a KiB in pieces"),
        pytest.param([(0.5, 1)] * 100, False, id="drops"),
        pytest.param([(9.0, PROGRESS), (9.0, 1), (9.0, PROGRESS)], False, id="a KiB, then drops"),
        pytest.param([(9.0, 1)], True, id="a short one"),
    ],
)
def test_a_large_body_has_the_time_of_a_silence_for_each_kib(pieces: list[tuple[float, int]], ends: bool) -> None:
    class Slow:
        async def chunks(self) -> AsyncGenerator[bytes]:
            for seconds, size in pieces:
                loop.now += seconds
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                yield b"x" * size

    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        loop = cast(ManualLoop, runner.get_loop())
        reading = read_steadily(cast(ResponseStream, Slow()), 1 << 20, 10.0)
        if ends:
            assert len(runner.run(reading)) == sum(size for _, size in pieces)
        else:
            with pytest.raises(TimeoutError):
                runner.run(reading)


def test_a_body_that_drips_for_ever_is_a_timeout() -> None:
    release = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not release.wait(0.02):
            connection.sendall(b"x")

    with peer.byte_peer(drip, SERVING) as server:
        answer = failed(HttpRequest(UNVERIFIED, url=server.url, timeout=0.3))
        release.set()
    assert answer.kind == TIMEOUT


def test_something_over_tls_that_is_not_http_is_told() -> None:
    def greet(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"220 mail.test ESMTP\r\n\r\n")

    with peer.byte_peer(greet, SERVING) as server:
        answer = failed(HttpRequest(UNVERIFIED, url=server.url))
        assert (answer.kind, answer.message) == ("not-http", "the answer is not HTTP")


def test_redirects_are_not_followed() -> None:
    with peer.http_peer(lambda asked: peer.Reply(302, b"", {"Location": "/elsewhere"}), SERVING) as server:
        assert fetched(HttpRequest(Trust(CA.certificate_pem), url=server.url)).status == 302
        assert len(server.requests) == 1


def test_a_body_of_more_than_the_limit_is_a_failure() -> None:
    with peer.http_peer(lambda asked: peer.Reply(body=b"x" * 1000), SERVING) as server:
        assert len(fetched(HttpRequest(UNVERIFIED, url=server.url, max_bytes=1000)).body) == 1000
        longer = failed(HttpRequest(UNVERIFIED, url=server.url, max_bytes=999))
        assert (longer.kind, longer.message) == (TOO_LONG, "the answer is longer than 999 bytes")


def test_proxies_of_the_environment_are_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with peer.http_peer(pair=SERVING) as server:
        assert fetched(HttpRequest(UNVERIFIED, url=server.url)).status == 200


def test_credentials_go_out_only_where_the_server_is_verified() -> None:
    user = KubeconfigUser("u", token=Secret("tok"))
    with peer.http_peer(pair=SERVING) as server:
        fetched(HttpRequest(Trust(CA.certificate_pem), url=server.url, credentials=user))
        assert server.requests[-1].headers["Authorization"] == "Bearer tok"
        assert failed(HttpRequest(Trust(OTHER.certificate_pem), url=server.url, credentials=user)).kind == CERTIFICATE
        fetched(HttpRequest(UNVERIFIED, url=server.url))
        assert "Authorization" not in server.requests[-1].headers
        assert len(server.requests) == 2
        with pytest.raises(ValueError, match="credentials are never sent"):
            HttpRequest(UNVERIFIED, url=server.url, credentials=user)


def test_a_ca_that_cannot_be_read_is_the_callers_fault() -> None:
    with pytest.raises(ConfigError, match="the CA to verify the server with cannot be used"):
        got(HttpRequest(Trust(b"junk"), url="https://127.0.0.1:1"))


def test_a_generator_is_driven_to_its_result() -> None:
    def steps() -> DiscoveryExchange[str]:
        yield Notice("hello")
        yield Wait(3.0)
        answer = yield HttpRequest(UNVERIFIED, url=f"https://127.0.0.1:{port}")
        assert isinstance(answer, HttpFailure)
        return answer.kind

    port, told = free_port(), list[Notice]()

    async def run() -> str:
        clock = ManualClock()
        driving = asyncio.create_task(drive_fetching(steps(), clock, told.append))
        await clock.advance(2.9)
        assert not driving.done()
        await clock.advance(0.1)
        return await driving

    assert asyncio.run(run()) == UNREACHABLE
    assert told == [Notice("hello")]


def test_an_error_of_the_generator_is_the_drivers() -> None:
    def broken() -> DiscoveryExchange[str]:
        yield Notice("on the way")
        raise ConfigError("no")

    with pytest.raises(ConfigError, match=r"^no$"):
        asyncio.run(drive_fetching(broken(), SystemClock()))
