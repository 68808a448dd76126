"""Test HTTP/2 by ALPN: requests and replies, ends of streams, slow readers, ends of connections (docs/adr/0022)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.events import PingAckReceived, RemoteSettingsChanged
from h2.settings import SettingCodes
from hpack import Decoder, HeaderTuple, NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec.json import MAX_BODY
from mooring.errors import RequestEntityTooLargeError
from mooring.server.transport import http2, http2floodguard, http2stream, listener, responsewriter, tlsconnection
from mooring.server.transport.http import KEPT_SHARE, Handler, Pieces, Request, Response
from mooring.server.transport.responsewriter import ResponseWriter
from mooring.settings.serving import TlsProfile
from tests.support.http2peer import Peer, Reply, peer
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import PATIENCE, Served, serving

LARGE = 4 << 20


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA()


class House:
    """Handler that does what the path names, and records what tests check."""

    def __init__(self) -> None:
        self.ended = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.open: list[ResponseWriter] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self, request: Request) -> Response:
        answer: Handler = getattr(self, request.path.split("/")[1] or "tell")
        return await answer(request)

    async def tell(self, request: Request) -> Response:
        body = await request.body()
        seen = {
            "method": request.method,
            "path": request.path,
            "query": request.query_string.decode(),
            "headers": [[name.decode(), value.decode("latin-1")] for name, value in request.headers],
            "size": len(body),
            "digest": hashlib.sha256(body).hexdigest(),
        }
        return Response(200, json.dumps(seen).encode())

    async def limited(self, request: Request) -> Response:
        try:
            await request.body()
        except RequestEntityTooLargeError as error:
            return Response(413, str(error).encode())
        return Response(200)

    async def unread(self, request: Request) -> Response:
        return Response(401, b"no")

    async def headers(self, request: Request) -> Response:
        sent = (
            (b"Connection", b"close"),
            (b"transfer-encoding", b"chunked"),
            (b"keep-alive", b"5"),
            (b"X-Mine", b"yes"),
        )
        lower = tuple((name.lower(), value) for name, value in sent)
        return Response(200, b"x", (*lower, (b"audit-id", b"1")))

    async def nothing(self, request: Request) -> Response:
        return Response(int(request.path.rpartition("/")[2]))

    async def large(self, request: Request) -> Response:
        return Response(200, b"x" * LARGE_REPLY)

    async def pieces(self, request: Request) -> Response:
        return Response(200, Pieces([b"x" * 100_000] * 40 + [b""]))

    async def closes_http2(self, request: Request) -> Response:
        return Response(200, b"bye", closes_http2=True)

    async def farewatch(self, request: Request) -> Response:
        response = await self.watch(request)
        response.closes_http2 = True
        return response

    async def broken(self, request: Request) -> Response:
        raise RuntimeError("a bug")

    async def late(self, request: Request) -> Response:
        if self.gate is None:
            self.gate = asyncio.Event()
        self.began.release()
        await self.gate.wait()
        self.ended.release()
        return Response(200, b"late", at_once=True)

    async def watch(self, request: Request) -> Response:
        async def stream(frames: ResponseWriter) -> None:
            self.open.append(frames)
            frames.write(b"first\n")
            self.began.release()
            await frames.ended
            self.ended.release()

        return Response(200, stream=stream)


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def served(ca: ThrowawayCA, house: House) -> Iterator[Served]:
    with serving(ca, house) as running:
        yield running


@pytest.fixture
def client(served: Served, tmp_path: Path) -> Iterator[Peer]:
    with peer(served, tmp_path) as connected:
        yield connected


def link(served: Served) -> Any:
    """Return the server's side of the only connection."""
    (only,) = served.listener.connections
    return only.inner


def write(served: Served, house: House, data: bytes, number: int = 0) -> None:
    served.ask(lambda: house.open[number].write(data))


# -- requests and replies ----------------------------------------------------------------------------------------


def test_the_settings_say_what_is_allowed(client: Peer) -> None:
    client.until(lambda: any(isinstance(event, RemoteSettingsChanged) for event in client.events))
    settings = client.h2.remote_settings
    assert settings[SettingCodes.MAX_CONCURRENT_STREAMS] == http2stream.MAX_STREAMS == 250
    assert settings[SettingCodes.INITIAL_WINDOW_SIZE] == 256 << 10
    assert settings[SettingCodes.MAX_HEADER_LIST_SIZE] == (64 << 10) + 32 * 1000
    assert settings[SettingCodes.MAX_FRAME_SIZE] == 16_384
    client.until(lambda: client.h2.outbound_flow_control_window == 1 << 20)


def test_a_request_is_seen_as_over_http_1_1(client: Peer) -> None:
    reply = client.get("/tell/a%20b?x=1&y=%20", headers=[("accept", "*/*"), ("x-empty", "")])
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert int(reply.headers["content-length"]) == len(reply.body)
    seen = json.loads(reply.body)
    assert (seen["method"], seen["path"], seen["query"]) == ("GET", "/tell/a b", "x=1&y=%20")
    assert seen["headers"] == [["host", "localhost"], ["accept", "*/*"], ["x-empty", ""]]


def test_a_host_that_is_said_is_kept(client: Peer) -> None:
    assert json.loads(client.get(headers=[("host", "localhost")]).body)["headers"] == [["host", "localhost"]]


@pytest.mark.parametrize(
    "agent", ["e2e.test -- a title ", "\tkubelet", " \t both\t "], ids=["behind it", "before it", "around it"]
)
def test_white_space_around_a_value_is_dropped_as_in_http_1_1(client: Peer, agent: str) -> None:
    client.h2.config.normalize_outbound_headers = False  # h2 would drop it already; Go's client does not
    watch = client.ask("/watch")
    seen = json.loads(client.get(headers=[("user-agent", agent), ("x-only", " ")]).body)["headers"]
    assert seen == [["host", "localhost"], ["user-agent", agent.strip()], ["x-only", ""]]
    assert client.replies[watch].reset is None
    assert client.goaway is None


def test_white_space_around_a_path_ends_the_connection(client: Peer) -> None:
    client.h2.config.normalize_outbound_headers = False
    client.ask("/tell ")
    assert client.end() is not None


def test_headers_about_the_connection_are_not_sent(client: Peer) -> None:
    assert client.get("/headers").headers == {":status": "200", "x-mine": "yes", "audit-id": "1", "content-length": "1"}


@pytest.mark.parametrize(
    ("path", "method", "length"),
    [("/tell", "HEAD", True), ("/nothing/304", "GET", False), ("/nothing/200", "GET", True), ("/watch", "HEAD", False)],
)
def test_a_reply_without_a_body_ends_with_its_headers(client: Peer, path: str, method: str, length: bool) -> None:
    reply = client.get(path, method)
    assert (reply.body, reply.ended, reply.reset) == (b"", True, None)
    assert ("content-length" in reply.headers) == length
    assert client.get().status == 200


@pytest.mark.parametrize("size", [0, 1, 65_535, 300_000, MAX_BODY], ids=str)
def test_a_body_arrives_whole(client: Peer, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    seen = json.loads(client.reply(client.ask("/tell", "POST", [("expect", "100-continue")], body=body)).body)
    assert (seen["size"], seen["digest"]) == (size, hashlib.sha256(body).hexdigest())


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "not declared"])
def test_a_body_that_is_too_large_is_refused_and_the_connection_goes_on(client: Peer, declared: bool) -> None:
    body = b"x" * (MAX_BODY + 1)
    headers = [("content-length", str(len(body)))] if declared else []
    reply = client.reply(client.ask("/limited", "POST", headers, body=body))
    assert (reply.status, reply.body) == (413, b"Request entity too large: limit is 3145728")
    assert client.get().status == 200


def test_bodies_that_nobody_reads_are_refused_and_hold_no_window(client: Peer) -> None:
    for _ in range(8):
        stream = client.ask("/unread", "POST", body=b"x" * 500_000)
        client.until(lambda: client.replies[stream].reset is not None or client.replies[stream].ended)  # noqa: B023 - now
        assert (client.replies[stream].status, client.replies[stream].body) == (401, b"no")
    client.until(lambda: client.h2.outbound_flow_control_window > 1 << 18)
    assert client.replies[1].reset == ErrorCodes.NO_ERROR


def test_a_body_that_ends_after_its_reply_frees_the_stream_without_a_reset(client: Peer) -> None:
    stream = client.begin("/unread", "POST")
    client.until(lambda: client.replies[stream].ended)
    client.send(stream, b"x" * 1000)
    assert client.get().status == 200
    assert client.replies[stream].reset is None


def test_a_client_that_resets_its_request_ends_the_wait_for_its_body(client: Peer) -> None:
    stream = client.ask("/limited", "POST", body=b"")
    stream = client.h2.get_next_available_stream_id()
    client.h2.send_headers(
        stream, [(":method", "POST"), (":scheme", "https"), (":authority", "l"), (":path", "/limited")]
    )
    client.h2.send_data(stream, b"some")
    client.h2.reset_stream(stream, ErrorCodes.CANCEL)
    client.flush()
    assert client.get().status == 200


@pytest.mark.parametrize("data", [None, b"", b"body"], ids=["no data", "empty data", "less data"])
def test_a_body_that_ends_with_trailers_has_its_length(client: Peer, data: bytes | None) -> None:
    """RFC 9113 8.1.1. Otherwise half of a body could be taken for the whole."""
    stream = client.h2.get_next_available_stream_id()
    head = [(":method", "POST"), (":scheme", "https"), (":authority", "l"), (":path", "/tell"), ("content-length", "5")]
    client.replies[stream] = Reply()
    client.h2.send_headers(stream, head)
    if data is not None:
        client.h2.send_data(stream, data)
    client.h2.send_headers(stream, [("x-trailer", "1")], end_stream=True)
    client.flush()
    assert client.reply(stream).reset == ErrorCodes.PROTOCOL_ERROR
    assert client.get().status == 200


def test_trailers_are_forgotten(client: Peer) -> None:
    stream = client.h2.get_next_available_stream_id()
    client.h2.send_headers(stream, [(":method", "POST"), (":scheme", "https"), (":authority", "l"), (":path", "/tell")])
    client.h2.send_data(stream, b"body")
    client.h2.send_headers(stream, [("x-trailer", "1")], end_stream=True)
    client.replies[stream] = Reply()
    client.flush()
    seen = json.loads(client.reply(stream).body)
    assert (seen["size"], "x-trailer" in str(seen["headers"])) == (4, False)


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("tell", "GET", 0, 400),
        ("/\xe9", "GET", 0, 400),
        ("https://l/tell", "GET", 0, 400),
        ("/tell#a", "GET", 0, 400),
        ("/", "BREW", 0, 400),
        ("/", "GET", 1001, 431),
    ],
    ids=[
        "a path that is none",
        "a path that is not ASCII",
        "a URL",
        "a fragment",
        "a method that nobody knows",
        "too many headers",
    ],
)
def test_what_http_1_1_refuses_is_refused(client: Peer, path: str, method: str, headers: int, status: int) -> None:
    assert client.get(path, method, [("x", "y")] * headers).status == status
    assert client.get().status == 200


@pytest.mark.parametrize("value", ["jane\x01", "a\x0bb", "a\x1bb", "a\x7f"])
def test_a_control_character_in_a_header_is_refused_as_over_http_1_1(client: Peer, value: str) -> None:
    assert client.get(headers=[("x-remote-user", value)]).status == 400
    assert client.get(headers=[("x-remote-user", "a\tb")]).status == 200


@pytest.mark.parametrize(
    ("number", "size", "status"),
    [
        pytest.param(900, 40, 200, id="many groups of a user"),
        pytest.param(900, 56, 431, id="more than 64 KiB"),
        pytest.param(1100, 20, 431, id="more than 1000"),
    ],
)
def test_the_limits_of_headers_are_those_of_http_1_1_and_end_no_connection(
    client: Peer, number: int, size: int, status: int
) -> None:
    groups = [("impersonate-group", f"{one:0{size}}") for one in range(number)]
    assert client.get(headers=groups).status == status
    assert client.get().status == 200


def test_a_bug_of_ours_resets_one_stream(client: Peer, caplog: pytest.LogCaptureFixture) -> None:
    assert client.get("/broken").reset == ErrorCodes.INTERNAL_ERROR
    assert client.get().status == 200
    assert "a bug" in caplog.text


def test_a_ping_is_answered(client: Peer) -> None:
    client.h2.ping(b"12345678")
    client.flush()
    client.until(lambda: any(isinstance(event, PingAckReceived) for event in client.events))


def test_many_frames_at_once_are_taken_in_turns(client: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "FRAMES_PER_TURN", 3)
    streams = []
    for _ in range(100):
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(
            stream, [(":method", "GET"), (":scheme", "https"), (":authority", "l"), (":path", "/tell")], end_stream=True
        )
        client.replies[stream] = Reply()
        streams.append(stream)
    client.flush()
    assert {client.reply(stream).status for stream in streams} == {200}


def test_many_headers_at_once_are_taken_in_turns(client: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 9113 10.5: a peer can cause work with few octets. Here each request of 1 KiB has 900 headers, all from HPACK's table."""
    turn, taken = http2.Http2Connection._turn, []

    def counted(self: http2.Http2Connection) -> None:
        before = self.h2.decoded
        turn(self)
        taken.append(self.h2.decoded - before)

    monkeypatch.setattr(http2.Http2Connection, "_turn", counted)
    pseudo = [(":method", "GET"), (":scheme", "https"), (":authority", "l"), (":path", "/nothing/200")]
    streams = []
    for _ in range(20):
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream, [*pseudo, *[("impersonate-group", "g")] * 900], end_stream=True)
        client.replies[stream] = Reply()
        streams.append(stream)
    client.flush()
    assert {client.reply(stream).status for stream in streams} == {200}
    assert max(taken) < http2.HEADERS_PER_TURN + len(pseudo) + 900


def test_streams_that_ended_are_forgotten(client: Peer, served: Served) -> None:
    for _ in range(1200):
        client.get("/nothing/200")
    kept = link(served)
    assert served.ask(lambda: len(kept.h2._closed_streams)) <= http2stream.H2.MAX_CLOSED_STREAMS
    assert served.ask(lambda: len(kept.h2.streams)) <= http2stream.SWEEP
    assert served.ask(lambda: (kept.open_streams, served.http2.open_streams)) == (0, {})


def test_a_client_that_would_remember_more_headers_does_not_make_the_server_do_so(served: Served, client: Peer) -> None:
    client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 1 << 24})
    client.flush()
    for _ in range(3):
        assert client.get("/headers").headers["x-mine"] == "yes"
    kept = link(served)
    assert served.ask(lambda: kept.h2.encoder.header_table_size) == 4096


def test_what_differs_in_each_reply_is_not_remembered(served: Served, client: Peer) -> None:
    client.get("/headers")
    client.get("/tell")
    kept = link(served)
    assert served.ask(lambda: list(kept.h2.encoder.header_table.dynamic_entries)) == [
        (b"content-type", b"application/json")
    ]


# -- replies that go on ------------------------------------------------------------------------------------------


def test_a_watch_is_data_without_a_coding_and_each_write_leaves_at_once(
    client: Peer, served: Served, house: House
) -> None:
    stream = client.ask("/watch")
    client.until(lambda: client.replies[stream].pieces == [b"first\n"])
    for data in (b"one\n", b"two\n"):
        write(served, house, data)
        client.until(lambda: client.replies[stream].pieces[-1:] == [data])  # noqa: B023 - now
    served.ask(lambda: house.open[0].write_all([b"a", b"b"]))
    served.ask(lambda: house.open[0].end())
    reply = client.reply(stream)
    assert (reply.pieces[3:], reply.ended, "content-length" in reply.headers) == ([b"ab", b""], True, False)


def test_a_client_that_resets_a_watch_ends_it_and_no_other(client: Peer, served: Served, house: House) -> None:
    streams = [client.ask("/watch") for _ in range(2)]
    client.until(lambda: all(client.replies[stream].pieces for stream in streams))
    client.h2.reset_stream(streams[0], ErrorCodes.CANCEL)
    client.flush()
    assert house.ended.acquire(timeout=PATIENCE)
    assert [frames.ended.done() for frames in house.open] == [True, False]
    write(served, house, b"to nobody", 0)
    write(served, house, b"still", 1)
    client.until(lambda: client.replies[streams[1]].pieces[-1] == b"still")


def test_a_client_that_goes_ends_all_its_watches(served: Served, house: House, tmp_path: Path) -> None:
    with peer(served, tmp_path) as client:
        streams = [client.ask("/watch") for _ in range(3)]
        client.until(lambda: all(client.replies[stream].pieces for stream in streams))
    assert all(house.ended.acquire(timeout=PATIENCE) for _ in range(3))


def test_a_goaway_of_the_client_lets_its_streams_finish(client: Peer, served: Served, house: House) -> None:
    stream = client.ask("/watch")
    client.until(lambda: bool(client.replies[stream].pieces))
    client.raw(b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8))
    client.until(lambda: client.goaway is not None)
    # h2 takes nothing more after a GOAWAY, so the rest is looked at on the server's side
    write(served, house, b"still")
    served.ask(lambda: house.open[0].end())
    while data := client.socket.recv(4096):
        if b"still" in data:
            break
    assert b"still" in data


# -- who waits ---------------------------------------------------------------------------------------------------


def test_a_reply_waits_for_the_windows_and_others_do_not_wait_for_it(served: Served, tmp_path: Path) -> None:
    with peer(served, tmp_path, windows=False) as client:
        client.h2.increment_flow_control_window(1 << 20)
        client.flush()
        slow = client.ask("/large")
        client.until(lambda: len(client.replies[slow].body) == 65_535)
        assert client.get("/unread").body == b"no"
        assert served.ask(lambda: served.listener.held_bytes.size) == LARGE_REPLY - 65_535
        client.windows = True
        client.h2.increment_flow_control_window(LARGE)
        client.h2.increment_flow_control_window(LARGE, slow)
        client.flush()
        assert len(client.reply(slow).body) == LARGE_REPLY
        # What is held is counted at each write, so that of a client that was slower is counted again by the next one.
        assert client.get("/unread").body == b"no"
        assert served.ask(lambda: served.listener.held_bytes.size) == 0


LARGE_REPLY = 4_000_000


def test_of_a_reply_in_pieces_one_piece_waits_for_a_slow_reader(served: Served, tmp_path: Path) -> None:
    with peer(served, tmp_path, windows=False) as client:
        client.h2.increment_flow_control_window(1 << 20)
        client.flush()
        slow = client.ask("/pieces")
        client.until(lambda: len(client.replies[slow].body) == 65_535)
        assert client.get("/unread").status == 401
        assert served.ask(lambda: served.listener.held_bytes.size) == 100_000 - 65_535 + LARGE_REPLY // KEPT_SHARE
        client.windows = True
        client.h2.increment_flow_control_window(LARGE)
        client.h2.increment_flow_control_window(LARGE, slow)
        client.flush()
        assert len(client.reply(slow).body) == LARGE_REPLY
        assert served.ask(lambda: served.listener.held_bytes.size) == 0


def test_a_reply_in_pieces_ends_with_its_reader(served: Served, tmp_path: Path) -> None:
    with peer(served, tmp_path, windows=False) as client:
        client.h2.increment_flow_control_window(1 << 20)
        client.flush()
        slow = client.ask("/pieces")
        client.until(lambda: len(client.replies[slow].body) == 65_535)
        client.h2.reset_stream(slow)
        client.flush()
        assert client.get("/unread").status == 401

        async def handlers_end() -> None:
            while served.application.tasks:
                await asyncio.wait(tuple(served.application.tasks), timeout=PATIENCE)

        served.run(handlers_end)
        assert served.ask(lambda: served.listener.held_bytes.size) == 0


def test_a_window_that_opens_by_settings_is_used(served: Served, tmp_path: Path) -> None:
    with peer(served, tmp_path, window=0) as client:
        stream = client.ask("/unread")
        client.until(lambda: client.replies[stream].status == 401)
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
        client.flush()
        assert client.reply(stream).body == b"no"


def test_all_streams_wait_for_the_window_of_the_connection(served: Served, tmp_path: Path) -> None:
    with peer(served, tmp_path, window=1 << 24, windows=False) as client:
        streams = [client.ask("/large") for _ in range(3)]
        client.until(lambda: sum(len(client.replies[stream].body) for stream in streams) == 65_535)
        client.windows = True
        client.h2.increment_flow_control_window(1 << 24)
        client.flush()
        assert [len(client.reply(stream).body) for stream in streams] == [LARGE_REPLY] * 3


def test_large_replies_take_turns(served: Served, tmp_path: Path) -> None:
    with peer(served, tmp_path, window=1 << 24) as client:
        client.h2.increment_flow_control_window(1 << 24)
        client.flush()
        streams = [client.ask("/large") for _ in range(3)]
        assert [len(client.reply(stream).body) for stream in streams] == [LARGE_REPLY] * 3


def test_a_watch_too_far_behind_is_reset_alone(
    served: Served, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responsewriter, "MAX_BACKLOG", 100_000)
    with peer(served, tmp_path, windows=False) as client:
        client.h2.increment_flow_control_window(1 << 20)
        client.flush()
        streams = [client.ask("/watch") for _ in range(2)]
        client.until(lambda: all(client.replies[stream].pieces for stream in streams))

        def behind() -> None:
            for _ in range(4):
                house.open[0].write(b"x" * 60_000)

        served.ask(behind)
        assert client.reply(streams[0]).reset == ErrorCodes.ENHANCE_YOUR_CALM
        assert house.ended.acquire(timeout=PATIENCE)
        write(served, house, b"still", 1)
        client.until(lambda: client.replies[streams[1]].pieces[-1] == b"still")
        assert served.ask(lambda: served.listener.held_bytes.size) == 0


def test_a_client_for_which_too_much_waits_is_cut_off(
    served: Served, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlsconnection, "MAX_UNSENT", 3 << 20)
    with peer(served, tmp_path, windows=False) as client:
        for _ in range(2):
            client.ask("/large")
        client.end()
    assert (served.listener.held_bytes.cut_off, served.ask(lambda: served.listener.held_bytes.size)) == (1, 0)


def test_a_reader_that_takes_nothing_is_gone(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(tlsconnection, "STALLED_SECONDS", 0.05)
    with peer(served, tmp_path, windows=False) as client:
        client.ask("/large")
        client.end()


# -- how many ----------------------------------------------------------------------------------------------------


def test_a_stream_beyond_the_limit_is_refused_and_no_other(
    served: Served, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MAX_STREAMS", 2)
    monkeypatch.setattr(http2stream, "MAX_STREAMS", 2)
    with peer(served, tmp_path) as client:
        streams = [client.ask("/watch") for _ in range(3)]
        assert client.reply(streams[2]).reset == ErrorCodes.REFUSED_STREAM
        client.until(lambda: all(client.replies[stream].pieces for stream in streams[:2]))
        served.ask(lambda: house.open[0].end())
        client.reply(streams[0])
        assert client.get().status == 200


def test_resetting_a_stream_does_not_give_its_place_to_another_while_the_handler_runs(
    served: Served, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MAX_STREAMS", 1)
    monkeypatch.setattr(http2stream, "MAX_STREAMS", 1)
    with peer(served, tmp_path) as client:
        stream = client.ask("/late")
        assert house.began.acquire(timeout=PATIENCE)
        client.h2.reset_stream(stream, ErrorCodes.CANCEL)
        client.flush()
        assert client.get().reset == ErrorCodes.REFUSED_STREAM
        served.ask(lambda: house.gate.set())  # type: ignore[union-attr]  # it has begun
        assert house.ended.acquire(timeout=PATIENCE)
        assert client.get().status == 200


def test_all_clients_together_and_each_source_have_a_limit(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MAX_TOTAL_STREAMS", 4)
    with peer(served, tmp_path) as client, peer(served, tmp_path) as second:
        for each in (client, second):
            stream = each.ask("/watch")
            each.until(lambda: bool(each.replies[stream].pieces))  # noqa: B023 - now
        assert second.get().reset == ErrorCodes.REFUSED_STREAM
    shared = http2.Http2Server(served.application)
    assert [shared.admit(source) for source in "aaabbbc"] == [True, True, False, True, True, False, False]
    shared.dismiss("a")
    assert shared.admit("c")


# -- how it ends -------------------------------------------------------------------------------------------------


def test_after_a_reply_to_nobody_in_particular_the_connection_ends(client: Peer, house: House, served: Served) -> None:
    kept = client.ask("/late")
    assert house.began.acquire(timeout=PATIENCE)
    stream = client.ask("/closes_http2")
    client.until(lambda: client.goaway is not None)
    assert client.goaway is not None
    assert client.replies[stream].body == b"bye"
    assert (client.goaway.error_code, client.goaway.last_stream_id) == (ErrorCodes.NO_ERROR, stream)
    served.ask(lambda: house.gate.set())  # type: ignore[union-attr]  # it has begun
    assert (0, kept, b"late") in client.rest()


def test_a_watch_of_nobody_in_particular_goes_on_and_the_connection_takes_no_more(
    client: Peer, house: House, served: Served
) -> None:
    stream = client.ask("/farewatch")
    client.until(lambda: client.goaway is not None)
    assert house.began.acquire(timeout=PATIENCE)
    write(served, house, b"still")
    served.ask(lambda: house.open[0].end())
    assert [payload for kind, number, payload in client.rest() if (kind, number) == (0, stream)][-2:] == [b"still", b""]


def test_when_the_server_stops_requests_are_finished_and_no_new_ones_taken(
    client: Peer, house: House, served: Served
) -> None:
    client.ask("/late")
    assert house.began.acquire(timeout=PATIENCE)
    draining = asyncio.run_coroutine_threadsafe(served.application.drain(PATIENCE), served.loop)
    client.until(lambda: client.goaway is not None)
    frame = client.h2.encoder.encode([(":method", "GET"), (":scheme", "https"), (":authority", "l"), (":path", "/")])
    client.raw(len(frame).to_bytes(3) + b"\x01\x05" + (99).to_bytes(4) + frame)
    served.ask(lambda: house.gate.set())  # type: ignore[union-attr]  # it has begun
    draining.result(PATIENCE)
    frames = client.rest()
    assert (0, 1, b"late") in frames
    assert (3, 99, int(ErrorCodes.REFUSED_STREAM).to_bytes(4)) in frames


def test_an_idle_connection_is_told_and_closed(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(http2, "IDLE_SECONDS", 0.05)
    with peer(served, tmp_path) as client:
        assert client.get().status == 200
        assert client.end() == ErrorCodes.NO_ERROR


def test_a_watch_is_not_idle(served: Served, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(http2, "IDLE_SECONDS", 0)
    monkeypatch.setattr(http2, "HEADER_SECONDS", 20)
    with peer(served, tmp_path) as client:
        stream = client.ask("/watch")
        client.until(lambda: bool(client.replies[stream].pieces))
        for number in range(5):
            served.run(lambda: asyncio.sleep(0.002))
            write(served, house, b"%d" % number)
            client.until(lambda: client.replies[stream].pieces[-1] == b"%d" % number)  # noqa: B023 - now


def test_who_says_nothing_at_all_is_closed_sooner(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(http2, "HEADER_SECONDS", 0.02)
    with peer(served, tmp_path) as client:
        assert client.end() == ErrorCodes.NO_ERROR


def test_headers_that_do_not_end_end_the_connection(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "CHECK_SECONDS", 0.01)
    with peer(served, tmp_path) as client:
        assert client.get().status == 200
        monkeypatch.setattr(http2, "HEADER_SECONDS", 0.02)  # before the request it would be the request's time
        client.raw(b"\x00\x00\x01\x01\x00\x00\x00\x00\x03\x82")
        assert client.end() is None


def test_what_h2_does_not_expect_ends_one_connection(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("of h2")

    with peer(served, tmp_path) as client:
        assert client.get().status == 200
        with monkeypatch.context() as patched:
            patched.setattr(http2stream.H2, "receive_data", fails)
            client.raw(bytes(9))
            client.end()
    assert "failed unexpectedly" in caplog.text
    with peer(served, tmp_path) as client:
        assert client.get().status == 200


def test_a_reply_that_the_kernel_still_holds_is_waited_for_before_the_end(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "LINGER_SECONDS", 0.01)
    with peer(served, tmp_path, window=1 << 30) as client:
        client.h2.increment_flow_control_window(1 << 30)
        client.flush()
        streams = [client.ask("/large") for _ in range(5)]  # more than the kernel's buffers take
        client.until(lambda: all(client.replies[stream].status for stream in streams))
        draining = asyncio.run_coroutine_threadsafe(served.application.drain(PATIENCE), served.loop)
        draining.result(PATIENCE)
        served.run(lambda: asyncio.sleep(0.05))
        assert served.listener.connections
        octets = sum(len(reply.body) for reply in client.replies.values())
        while piece := client.socket.recv(1 << 16):
            octets += len(piece)
        assert octets > 5 * LARGE_REPLY - http2floodguard.MAX_FRAME  # what h2 holds of a frame


def test_a_client_that_does_not_read_its_last_reply_is_not_waited_for(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "LINGER_SECONDS", 0.001)
    monkeypatch.setattr(http2, "CLOSE_SECONDS", 0.001)
    with peer(served, tmp_path) as client:
        assert client.get("/unread").status == 401
        kept = link(served)
        monkeypatch.setattr(tlsconnection.TlsTransport, "waiting", 1)
        served.ask(kept.shutdown)
        [connection] = served.listener.connections
        served.ask(connection.cut)  # as the listener's check does
        assert client.end() == ErrorCodes.NO_ERROR


def test_http2guard_and_http2_agree_on_what_may_be_sent() -> None:
    assert http2floodguard.MAX_FRAME == tlsconnection.RECORD


_names = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=200).map(str.encode)
_fields = st.builds(
    lambda name, value, kind: kind(name, value),
    _names,
    st.binary(max_size=300),
    st.sampled_from([HeaderTuple, NeverIndexedHeaderTuple]),
)


@given(blocks=st.lists(st.lists(_fields, max_size=8), max_size=4), sizes=st.lists(st.integers(0, 8192), max_size=4))
def test_whatever_is_encoded_is_decoded_by_another_and_only_what_may_be_is_remembered(
    blocks: list[list[HeaderTuple]], sizes: list[int]
) -> None:
    h2, decoder = http2stream.H2(), Decoder()
    decoder.max_allowed_table_size = 8192
    for number, block in enumerate(blocks):
        if number < len(sizes):
            h2.encoder.header_table_size = sizes[number]
        found = list(decoder.decode(h2.encoder.encode(block), raw=True))
        assert found == block
        assert [one.indexable for one in found] == [one.indexable for one in block]
        assert list(decoder.header_table.dynamic_entries) == list(h2.encoder.header_table.dynamic_entries)


def test_what_is_never_remembered_is_not_looked_for_and_not_compressed() -> None:
    block = http2stream.H2().encoder.encode([NeverIndexedHeaderTuple(b"audit-id", b"0" * 200)])
    assert block == b"\x10\x08audit-id\x7f\x49" + b"0" * 200


@pytest.mark.parametrize(
    ("suite", "ends"), [("ECDHE-ECDSA-AES128-GCM-SHA256", False), ("ECDHE-ECDSA-AES128-SHA", True)]
)
def test_a_suite_that_http2_prohibits_ends_the_connection(
    ca: ThrowawayCA, tmp_path: Path, suite: str, ends: bool
) -> None:
    """RFC 9113 9.2.2 and appendix A."""

    async def hello(request: Request) -> Response:
        return Response(200, b"hello")

    profile = TlsProfile(("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA"))
    with serving(ca, hello, profile=profile) as served:
        context = served.context(tmp_path, version=ssl.TLSVersion.TLSv1_2)
        context.set_ciphers(suite)
        context.set_alpn_protocols(["h2"])
        with served.client(tmp_path, context=context) as plain:
            client = Peer(plain)
            stream = client.ask()
            if ends:
                client.until(lambda: client.goaway is not None)
                assert client.goaway is not None
                assert client.goaway.error_code == ErrorCodes.INADEQUATE_SECURITY
            else:
                assert client.reply(stream).status == 200
