"""Test the frames that an HTTP/2 client may send, and the end of a connection that breaks the limits (RFC 9113 10.5)."""

from __future__ import annotations

import asyncio
import contextlib
import logging.handlers
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from h2.errors import ErrorCodes
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from mooring.server.transport import http2floodguard
from mooring.server.transport.http import MAX_HEADER_BYTES, Application, Request, Response
from mooring.server.transport.http2 import Http2Server
from mooring.server.transport.http2floodguard import (
    CONTINUATION,
    DATA,
    FREE_FRAMES,
    FREE_RESETS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    SETTINGS_COST,
    WINDOW_UPDATE,
    ClientProtocolError,
    FloodGuard,
)
from mooring.server.transport.tlsconnection import TlsConnection
from tests.support.http2peer import Peer, peer
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import Served, serving

CALM, PROTOCOL = ErrorCodes.ENHANCE_YOUR_CALM, ErrorCodes.PROTOCOL_ERROR
REQUEST = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/")]


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def opened() -> FloodGuard:
    """Return a guard after the start of a connection."""
    guard = FloodGuard(0.0)
    guard.take(PREFACE + frame(SETTINGS))
    assert guard.frame(0.0) == PREFACE + frame(SETTINGS)
    return guard


def passed(guard: FloodGuard, data: bytes, now: float = 0.0) -> int:
    """Return how many frames of `data` the guard lets pass."""
    guard.take(data)
    count = 0
    while guard.frame(now) is not None:
        count += 1
    return count


# -- the guard alone ---------------------------------------------------------------------------------------------

LEGAL = [
    frame(HEADERS, b"abc", flags=4, stream=1),
    frame(DATA, b"x" * 2000, stream=1),
    frame(HEADERS, b"abc", stream=3),
    frame(CONTINUATION, b"abc", stream=3),
    frame(CONTINUATION, b"", flags=4, stream=3),
    frame(PING, b"12345678"),
    frame(0xFA, b"unknown"),
]


@given(st.lists(st.integers(1, 60), max_size=60))
def test_frames_come_out_whole_however_they_come_in(sizes: list[int]) -> None:
    data = PREFACE + frame(SETTINGS) + b"".join(LEGAL)
    guard, found = FloodGuard(0.0), []
    for size in [*sizes, len(data)]:
        guard.take(data[:size])
        data = data[size:]
        while (piece := guard.frame(0.0)) is not None:
            found.append(piece)
    assert found == [PREFACE + frame(SETTINGS), *LEGAL]


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_make_it_fail_otherwise(data: bytes, is_open: bool) -> None:
    guard = opened() if is_open else FloodGuard(0.0)
    with contextlib.suppress(ClientProtocolError):
        passed(guard, data)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n", PROTOCOL),
        (b"PRI * HTTP/1", PROTOCOL),
        (PREFACE + frame(PING, bytes(8)), PROTOCOL),
        (PREFACE + b"\x00\x40\x01\x04\x00\x00\x00\x00\x00", ErrorCodes.FRAME_SIZE_ERROR),
    ],
    ids=["HTTP/1.1", "another version", "PING first", "a frame above 16 KiB"],
)
def test_what_is_no_start_is_refused_as_soon_as_that_is_known(data: bytes, code: ErrorCodes) -> None:
    with pytest.raises(ClientProtocolError) as caught:
        passed(FloodGuard(0.0), data)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "data",
    [
        frame(HEADERS, stream=1) + frame(HEADERS, stream=3),
        frame(HEADERS, stream=1) + frame(PING, bytes(8)),
        frame(HEADERS, stream=1) + frame(DATA, stream=1),
    ],
    ids=["HEADERS", "PING", "DATA"],
)
def test_nothing_interrupts_a_header_block(data: bytes) -> None:
    with pytest.raises(ClientProtocolError, match="interrupted"):
        passed(opened(), data)


@pytest.mark.parametrize("piece", [16_384, 1000], ids=["large pieces", "small pieces"])
def test_a_header_block_is_bounded_whatever_carries_it(piece: int) -> None:
    guard = opened()
    passed(guard, frame(HEADERS, stream=1))
    with pytest.raises(ClientProtocolError) as caught:
        passed(guard, frame(CONTINUATION, b"x" * piece, stream=1) * (http2floodguard.MAX_BLOCK // piece + 1))
    assert (caught.value.code, http2floodguard.MAX_BLOCK) == (CALM, MAX_HEADER_BYTES)


@pytest.mark.parametrize(
    ("flood", "free"),
    [
        (frame(PING, bytes(8)), FREE_FRAMES),
        (frame(SETTINGS), FREE_FRAMES // SETTINGS_COST - 1),
        (frame(PRIORITY, bytes(5), stream=1), FREE_FRAMES),
        (frame(WINDOW_UPDATE, b"\0\0\0\1"), FREE_FRAMES),
        (frame(0xFA), FREE_FRAMES),
        (frame(DATA, stream=1), FREE_FRAMES),
        (frame(DATA, b"x" * 1023, stream=1), FREE_FRAMES),
        (frame(RST_STREAM, bytes(4), stream=1), FREE_RESETS),
        (frame(HEADERS, stream=1) + frame(CONTINUATION, flags=4, stream=1), FREE_FRAMES),
    ],
    ids=[
        "PING",
        "SETTINGS",
        "PRIORITY",
        "WINDOW_UPDATE",
        "unknown",
        "empty DATA",
        "small DATA",
        "RST_STREAM",
        "CONTINUATION",
    ],
)
def test_frames_that_bring_nothing_have_a_budget_that_comes_back_with_time(flood: bytes, free: int) -> None:
    guard = opened()
    now = 0.0 if flood[3] == SETTINGS else 1000.0  # the SETTINGS at the start was one of them
    passed(guard, flood * free, now)
    with pytest.raises(ClientProtocolError) as caught:
        passed(guard, flood, now)
    assert caught.value.code == CALM
    fresh = opened()
    for second in range(50):
        passed(fresh, flood * (free // 50), float(second * 10))


@pytest.mark.parametrize(
    "data",
    [frame(DATA, b"x" * 1024, stream=1), frame(DATA, flags=1, stream=1), frame(HEADERS, b"x", flags=4, stream=1)],
    ids=["large DATA", "DATA that ends a stream", "HEADERS"],
)
def test_what_requests_are_made_of_is_free(data: bytes) -> None:
    assert passed(opened(), data * (3 * FREE_FRAMES)) == 3 * FREE_FRAMES


def test_who_is_sent_much_may_open_windows_often() -> None:
    guard = opened()
    guard.sent(5_000 << 10)
    assert passed(guard, frame(WINDOW_UPDATE, b"\0\0\0\1") * 5_500) == 5_500
    guard.sent(1 << 40)
    with pytest.raises(ClientProtocolError):
        passed(guard, frame(WINDOW_UPDATE, b"\0\0\0\1") * (http2floodguard.MAX_UPDATES + FREE_FRAMES + 1))


def test_a_goaway_is_noted_and_not_passed_on() -> None:
    guard = opened()
    assert passed(guard, frame(GOAWAY, bytes(8)) + frame(PING, bytes(8))) == 1
    assert guard.leaving


def test_the_time_of_an_open_header_block_is_known() -> None:
    guard = opened()
    passed(guard, frame(HEADERS, stream=1), 7.0)
    assert guard.block_since == 7.0
    passed(guard, frame(CONTINUATION, flags=4, stream=1), 8.0)
    assert guard.block_since == 0.0


# -- a whole listener --------------------------------------------------------------------------------------------


async def answer(request: Request) -> Response:
    if request.path == "/wait":  # and read nothing
        stream = request._receive.__self__  # type: ignore[attr-defined]  # a method of the stream
        while not stream.is_mute:
            await asyncio.sleep(0.001)
    return Response(200, b"ok")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(ThrowawayCA(), answer) as running:
        yield running


@pytest.fixture
def client(served: Served, tmp_path: Path) -> Iterator[Peer]:
    with peer(served, tmp_path) as connected:
        assert connected.get().body == b"ok"
        yield connected
        with peer(served, tmp_path) as another:  # the server serves on
            assert another.get().body == b"ok"


def headers(fields: list[tuple[str, str]], *, stream: int = 3, end: bool = True) -> bytes:
    return frame(HEADERS, Encoder().encode(fields, huffman=False), flags=4 | end, stream=stream)


def rapid_resets(count: int) -> bytes:
    """CVE-2023-44487: open a stream and reset it at once, over and over."""
    return b"".join(
        headers(REQUEST, stream=stream, end=False) + frame(RST_STREAM, bytes(4), stream=stream)
        for stream in range(3, 3 + 2 * count, 2)
    )


def bomb() -> bytes:
    """Return a header block that grows when decoded: one large field in the table, and a thousand references to it."""
    return frame(
        HEADERS, Encoder().encode([*REQUEST, ("x", "y" * 3000)], huffman=False) + b"\xbe" * 1000, flags=5, stream=3
    )


ATTACKS = {
    "rapid reset": (rapid_resets(3000), CALM),
    "PING": (frame(PING, bytes(8)) * 3000, CALM),
    "SETTINGS": (frame(SETTINGS) * 3000, CALM),
    "PRIORITY": (frame(PRIORITY, b"\0\0\0\5\0", stream=3) * 3000, CALM),
    "empty DATA": (headers(REQUEST, end=False) + frame(DATA, stream=3) * 3000, CALM),
    "padded empty DATA": (
        headers(REQUEST, end=False) + frame(DATA, b"\xff" + bytes(255), flags=8, stream=3) * 3000,
        CALM,
    ),
    "DATA after the end of its stream": (
        headers(REQUEST, end=False) + frame(RST_STREAM, bytes(4), stream=3) + frame(DATA, bytes(2000), stream=3) * 1500,
        CALM,
    ),
    "window updates of one octet": (frame(WINDOW_UPDATE, b"\0\0\0\1") * 3000, CALM),
    "CONTINUATION": (frame(HEADERS, stream=3) + frame(CONTINUATION, stream=3) * 3000, PROTOCOL),
    "a header block above 64 KiB": (frame(HEADERS, stream=3) + frame(CONTINUATION, bytes(16_384), stream=3) * 5, CALM),
    "a header block that grows when decoded": (bomb(), CALM),
    "a frame above 16 KiB": (b"\x00\x40\x01\x00\x00\x00\x00\x00\x03", ErrorCodes.FRAME_SIZE_ERROR),
    "a connection header": (headers([*REQUEST, ("connection", "close")]), PROTOCOL),
    "an upper-case name": (headers([*REQUEST, ("X-Upper", "1")]), PROTOCOL),
    "no method": (headers(REQUEST[1:]), PROTOCOL),
    "a pseudo-header twice": (headers([*REQUEST, (":path", "/other")]), PROTOCOL),
    "a pseudo-header after a header": (headers([REQUEST[0], ("x", "y"), *REQUEST[1:]]), PROTOCOL),
    "a line break in a value": (headers([*REQUEST, ("x", "y\r\nz: 1")]), PROTOCOL),
    "two hosts": (headers([*REQUEST, ("host", "other")]), PROTOCOL),
    "a length that is not the body's": (
        headers([*REQUEST, ("content-length", "5")], end=False) + frame(DATA, b"x", flags=1, stream=3),
        PROTOCOL,
    ),
    "a length that is no number": (headers([*REQUEST, ("content-length", "five")], end=False), PROTOCOL),
    "a stream number of the server": (headers(REQUEST, stream=4), PROTOCOL),
    "DATA on a stream that is not open": (frame(DATA, b"x", stream=5), PROTOCOL),
    "a window above 2^31-1": (frame(WINDOW_UPDATE, b"\x7f\xff\xff\xff"), ErrorCodes.FLOW_CONTROL_ERROR),
    "a window update of nothing": (frame(WINDOW_UPDATE, bytes(4)), PROTOCOL),
    "a PUSH_PROMISE": (frame(5, bytes(8), flags=4, stream=1), PROTOCOL),
    "a header block that is no HPACK": (frame(HEADERS, b"\xff\xff\xff\xff\xff", flags=5, stream=3), PROTOCOL),
    "more than the window of a stream": (
        headers([*REQUEST[:3], (":path", "/wait")], end=False) + frame(DATA, bytes(16_384), stream=3) * 70,
        ErrorCodes.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize(("attack", "code"), ATTACKS.values(), ids=ATTACKS)
def test_an_attack_ends_its_connection_and_nothing_else(client: Peer, attack: bytes, code: ErrorCodes) -> None:
    client.raw(attack)
    said = [payload for kind, _, payload in client.rest() if kind == GOAWAY]
    assert [int.from_bytes(payload[4:8]) for payload in said] in ([code], [])  # nothing when the kernel was faster


class Nowhere:
    """Transport that discards written bytes."""

    connection = TlsConnection("192.0.2.1")
    waiting = 0

    def hold(self, octets: int) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


some_frames = st.lists(
    st.builds(
        lambda kind, flags, stream, payload: frame(kind, payload, flags=flags, stream=stream),
        st.integers(0, 11),
        st.sampled_from([0, 1, 4, 5, 8, 0x20, 0xFF]),
        st.integers(0, 9),
        st.one_of(
            st.binary(max_size=40),
            st.just(Encoder().encode(REQUEST, huffman=False)),
            st.sampled_from(
                [bytes(4), bytes(5), bytes(8), b"\0\0\0\x01", b"\0\x04\0\0\0\0", b"\0\x01\xff\xff\xff\xff"]
            ),
        ),
    ),
    max_size=30,
)


@given(some_frames)
def test_no_frames_make_it_fail_otherwise(frames: list[bytes]) -> None:
    """h2 raises what it promises, and every stream has an end."""

    async def session() -> None:
        shared = Http2Server(Application(answer))
        link = shared.protocol()
        link.connection_made(cast(Any, Nowhere()))
        link.data_received(PREFACE + frame(SETTINGS))
        with no_errors_logged():
            for data in frames:
                link.data_received(data)
                await asyncio.sleep(0)
            link.connection_lost(None)
            while shared.application.tasks:
                await asyncio.sleep(0)
        assert (shared.open_streams, link.open_streams) == ({}, 0)

    asyncio.run(session())


@contextlib.contextmanager
def no_errors_logged() -> Iterator[None]:
    seen = logging.handlers.BufferingHandler(1000)
    logging.getLogger("mooring.server").addHandler(seen)
    try:
        yield
    finally:
        logging.getLogger("mooring.server").removeHandler(seen)
    assert not seen.buffer
