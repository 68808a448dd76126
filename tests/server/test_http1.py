"""Test HTTP/1.1 over a simulated connection: bytes and their order (RFC 9112, RFC 9110)."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from mooring.errors import BadRequestError, RequestTimeoutError
from mooring.server.transport import http1
from mooring.server.transport.http import (
    FEW_HEADERS,
    HEADER_SECONDS,
    IDLE_SECONDS,
    KEPT_SHARE,
    MAX_HEADER_BYTES,
    Application,
    Pieces,
    Request,
    Response,
)
from mooring.server.transport.http1 import BYTES_PER_TURN, Exchange, Http1Connection, reply_head
from mooring.server.transport.httpgrammar import Header
from mooring.server.transport.responsewriter import ResponseWriter
from mooring.server.transport.tlsconnection import TlsConnection
from tests.support.manualclock import settle

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"


class Plain:
    """Simulated plain side of a TLS connection."""

    connection = TlsConnection("192.0.2.1")
    waiting = 0

    def __init__(self) -> None:
        self.sent = b""
        self.ended = ""
        self.reading = True
        self.held = 0
        self.choke: Callable[[], None] = lambda: None

    def is_reading(self) -> bool:
        return self.reading

    def hold(self, octets: int) -> bool:
        self.held += octets
        return True

    def write(self, data: bytes) -> None:
        self.sent += data
        self.choke()

    def flush(self) -> None:
        pass

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self, *, linger: bool = False) -> None:
        self.ended = self.ended or ("lingers" if linger else "closed")

    def abort(self) -> None:
        self.ended = self.ended or "aborted"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Talk:
    """Http1Connection over a simulated transport."""

    def __init__(self, handler: Callable[[Request], Awaitable[Response]]) -> None:
        self.application = Application(handler)
        self.plain = Plain()
        self.protocol = Http1Connection(self.application)
        self.protocol.connection_made(cast(Any, self.plain))

    async def say(self, data: bytes) -> bytes:
        """Receive `data`, and return the bytes of the reply."""
        self.plain.sent = b""
        self.protocol.data_received(data)
        await settle()
        return self.plain.sent


def runs(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


async def echo(request: Request) -> Response:
    return Response(200, b"%d" % len(await request.body()), ())


async def unread(request: Request) -> Response:
    return Response(401, b"no", ())


OK = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b"


def ok(body: bytes) -> bytes:
    return OK % (len(body), body)


@runs
async def test_a_body_is_asked_for_once_when_the_client_waits_to_be_asked() -> None:
    talk = Talk(echo)
    go_on = await talk.say(POST + b"Content-Length: 4\r\nExpect: 100-Continue\r\n\r\n")
    assert go_on == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert await talk.say(b"ab") == b""
    assert await talk.say(b"cd") == ok(b"4")
    assert not talk.plain.ended


@runs
async def test_a_body_that_is_here_is_not_asked_for() -> None:
    assert await Talk(echo).say(POST + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\nx") == ok(b"1")


@runs
async def test_a_body_that_nobody_asked_for_ends_the_connection_because_it_may_come_or_not() -> None:
    talk = Talk(unread)
    answer = await talk.say(POST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    assert answer == b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno"
    assert talk.plain.ended == "lingers"


@pytest.mark.parametrize(
    ("head", "ends"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", False, id="1.1 goes on"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", True, id="1.1 ends when that is said"),
        pytest.param(b"GET / HTTP/1.0\r\n\r\n", True, id="1.0 ends"),
        pytest.param(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True, id="1.0 ends whatever is said"),
    ],
)
def test_who_goes_on_after_a_reply(head: bytes, ends: bool) -> None:
    async def story() -> None:
        talk = Talk(echo)
        answer = await talk.say(head)
        assert (b"connection: close" in answer, talk.plain.ended) == (ends, "lingers" if ends else "")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("status", "head"),
    [
        pytest.param(204, b"HTTP/1.1 204 No Content\r\n\r\n", id="no content has no length"),
        pytest.param(304, b"HTTP/1.1 304 Not Modified\r\n\r\n", id="nor has what is not sent"),
        pytest.param(200, ok(b""), id="nothing has one"),
    ],
)
def test_lengths(status: int, head: bytes) -> None:
    async def empty(request: Request) -> Response:
        return Response(status, b"", ())

    async def story() -> None:
        assert await Talk(empty).say(GET) == head

    asyncio.run(story())


@pytest.mark.parametrize(
    "header",
    [
        (b"warning", b"a\r\nset-cookie: b"),
        (b"warning", b"a\nb"),
        (b"warning", b"a\rb"),
        (b"a\r\nb", b""),
        (b"a", b"\0"),
    ],
    ids=["a line more", "a bare line feed", "a bare carriage return", "in the name", "the end of a string"],
)
def test_a_header_that_is_more_than_one_line_is_never_sent(header: Header) -> None:
    with pytest.raises(ValueError, match="line break or NUL"):
        reply_head(200, (header,))

    async def split(request: Request) -> Response:
        return Response(200, b"x", (header,))

    async def story() -> None:
        talk = Talk(split)
        answer = await talk.say(GET)
        assert answer == b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        assert talk.plain.ended == "lingers"

    asyncio.run(story())


@runs
async def test_a_bug_in_the_middle_of_a_reply_ends_the_connection() -> None:
    async def breaks(request: Request) -> Response:
        async def stream(frames: ResponseWriter) -> None:
            frames.write(b"x")
            raise ZeroDivisionError

        return Response(200, stream=stream, headers=())

    talk = Talk(breaks)
    answer = await talk.say(GET)
    assert answer == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"
    assert talk.plain.ended == "closed"
    assert not talk.application.tasks


@runs
async def test_a_stream_to_a_client_of_http_1_0_is_bare_and_ends_with_the_connection() -> None:
    """RFC 9112 6.1: no transfer coding unless the request is of HTTP/1.1. Go does so, and nginx asks so by default."""

    async def streams(request: Request) -> Response:
        async def stream(frames: ResponseWriter) -> None:
            frames.write(b"one")
            frames.write_all([b"two", b"three"])

        return Response(200, stream=stream, headers=())

    for head in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"):
        talk = Talk(streams)
        assert await talk.say(head) == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nonetwothree"
        assert talk.plain.ended == "lingers"


@runs
async def test_expectations_and_upgrades_of_http_1_0_are_ignored() -> None:
    """RFC 9110 10.1.1 and 7.8: a client of HTTP/1.0 does not read an interim reply."""
    seen: list[str] = []

    async def noted(request: Request) -> Response:
        seen.extend(request.header(name) for name in (b"expect", b"upgrade"))
        return Response(200, await request.body(), ())

    talk = Talk(noted)
    assert await talk.say(b"POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n") == b""
    assert await talk.say(b"x") == b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx"
    answer = await Talk(noted).say(b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    assert seen == [""] * 4


@runs
async def test_nothing_is_read_while_a_request_waits_for_another_and_all_are_answered_in_order() -> None:
    go_on = asyncio.Event()

    async def slow(request: Request) -> Response:
        await go_on.wait()
        return Response(200, request.path.encode(), ())

    talk = Talk(slow)
    assert await talk.say(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(3))) == b""
    assert not talk.plain.is_reading()
    go_on.set()
    await settle()
    assert talk.plain.sent == ok(b"/0") + ok(b"/1") + ok(b"/2")
    assert talk.plain.is_reading()


@runs
async def test_nothing_is_read_while_more_of_a_body_waits_than_is_held() -> None:
    go_on = asyncio.Event()

    async def late(request: Request) -> Response:
        await go_on.wait()
        return await echo(request)

    talk = Talk(late)
    size = 2 * http1.MAX_UNREAD
    await talk.say(POST + b"Content-Length: %d\r\n\r\n" % size + bytes(http1.MAX_UNREAD))
    assert talk.plain.is_reading()
    await talk.say(b"x")
    assert not talk.plain.is_reading()
    go_on.set()
    await settle()
    assert talk.plain.is_reading()
    assert await talk.say(bytes(size - http1.MAX_UNREAD - 1)) == ok(b"%d" % size)


@runs
async def test_what_nobody_read_of_a_body_stops_no_reading_after_the_reply() -> None:
    talk = Talk(unread)
    await talk.say(POST + b"Content-Length: %d\r\n\r\n" % (3 * http1.MAX_UNREAD) + bytes(2 * http1.MAX_UNREAD))
    assert talk.plain.is_reading()
    assert b" 401 " in await talk.say(bytes(http1.MAX_UNREAD) + GET)


@runs
async def test_when_the_client_goes_every_request_that_waits_for_it_learns_it() -> None:
    seen: list[str] = []

    async def reads(request: Request) -> Response:
        try:
            await request.body()
        except BadRequestError as error:
            seen.append(error.message)
        return Response(200, b"", ())

    talk = Talk(reads)
    await talk.say(POST + b"Content-Length: 4\r\n\r\n")
    talk.plain.ended = "gone"
    talk.protocol.connection_lost(None)
    await settle()
    assert seen == ["the connection was closed before the whole body arrived"]


@runs
async def test_a_body_that_does_not_come_is_a_timeout_which_clients_repeat() -> None:
    """kube-apiserver answers 504 with the reason Timeout."""

    async def receive() -> tuple[bytes, bool] | None:
        await asyncio.Event().wait()
        return None

    request = Request("POST", "/", b"", (), TlsConnection("192.0.2.1"), receive)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mooring.server.transport.http.BODY_SECONDS", 0.0)
        with pytest.raises(RequestTimeoutError, match="the request body did not arrive within 0 seconds"):
            await request.body()


@runs
async def test_a_reply_waits_until_the_client_has_taken_what_was_sent_before() -> None:
    talk = Talk(echo)
    talk.protocol.pause_writing()
    assert await talk.say(GET) == b""
    talk.protocol.resume_writing()
    await settle()
    assert talk.plain.sent == ok(b"0")


@runs
async def test_a_reply_in_pieces_waits_between_turns_and_ends_when_the_client_goes() -> None:
    first, second, third = (letter * BYTES_PER_TURN for letter in (b"a", b"b", b"c"))

    async def pieces(request: Request) -> Response:
        return Response(200, Pieces([first, second, third]), ())

    talk = Talk(pieces)
    talk.plain.choke = talk.protocol.pause_writing
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (3 * BYTES_PER_TURN)
    assert await talk.say(GET) == head + first
    assert talk.plain.held == 3 * BYTES_PER_TURN // KEPT_SHARE, "counted until the reply is sent"
    talk.protocol.resume_writing()
    await settle()
    assert talk.plain.sent == head + first + second
    talk.protocol.connection_lost(None)
    await settle()
    assert not talk.application.tasks
    assert talk.plain.sent == head + first + second
    assert talk.plain.held == 0


@pytest.mark.parametrize("as_pieces", [False, True], ids=["one body", "pieces"])
def test_a_large_reply_leaves_in_turns_of_the_loop(as_pieces: bool) -> None:
    size = 3 * BYTES_PER_TURN + 5

    async def large(request: Request) -> Response:
        return Response(
            200, Pieces([b"x" * 99] * (size // 99) + [b"x" * (size % 99)]) if as_pieces else b"x" * size, ()
        )

    async def story() -> None:
        talk = Talk(large)
        talk.protocol.data_received(GET)
        seen: list[int] = []
        for _ in range(20):
            await asyncio.sleep(0)
            seen.append(len(talk.plain.sent))
        steps = [after - before for before, after in itertools.pairwise([0, *seen]) if after != before]
        assert talk.plain.sent.endswith(b"x" * size)
        assert (len(steps), max(steps) < BYTES_PER_TURN + 100) == (4, True)
        assert talk.plain.held == 0

    asyncio.run(story())


@runs
async def test_a_reply_behind_an_unread_one_is_counted_before_its_headers_can_leave() -> None:
    async def answer(request: Request) -> Response:
        talk.protocol.pause_writing()
        return Response(200, b"x" * 1000, ())

    talk = Talk(answer)
    assert await talk.say(GET) == b""
    assert talk.plain.held == 1000
    talk.protocol.resume_writing()
    await settle()
    assert talk.plain.sent.endswith(b"x" * 1000)
    assert talk.plain.held == 0


@runs
async def test_requests_that_wait_for_another_are_counted_while_they_do() -> None:
    gate = asyncio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return Response(200)

    talk = Talk(slow)
    await talk.say(GET * 5)
    assert talk.plain.held == 4 * (http1.PIPELINED_REQUEST + len("hostx"))
    assert not talk.plain.reading
    gate.set()
    await settle(100)
    assert talk.plain.held == 0


@runs
async def test_a_body_is_counted_until_its_request_has_ended() -> None:
    held: list[int] = []

    async def take(request: Request) -> Response:
        await request.body()
        held.append(talk.plain.held)
        return Response(200)

    talk = Talk(take)
    await talk.say(POST + b"Content-Length: 5000\r\n\r\n" + b"x" * 5000)
    assert (held, talk.plain.held) == ([5000], 0)


@runs
async def test_headers_that_are_not_whole_are_counted() -> None:
    talk = Talk(echo)
    await talk.say(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 6000)
    assert talk.plain.held > 6000
    await talk.say(b"\r\n\r\n")
    assert talk.plain.held == 0


@runs
async def test_junk_in_the_middle_of_a_reply_ends_the_connection_and_adds_nothing_to_it() -> None:
    async def goes_on(request: Request) -> Response:
        async def stream(frames: ResponseWriter) -> None:
            await frames.ended

        return Response(200, stream=stream, headers=())

    talk = Talk(goes_on)
    await talk.say(GET)
    assert await talk.say(b"\0\0\0") == b""
    assert talk.plain.ended == "aborted"
    talk.protocol.connection_lost(None)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n", b"200 OK", id="one host"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"400 Bad Request", id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a/b@c\r\n", b"400 Bad Request", id="a host with a path and a user"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: [2001:db8::1]:6443\r\n", b"200 OK", id="an address"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n",
            b"501 Not Implemented",
            id="a transfer coding that is not decoded",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
            b"501 Not Implemented",
            id="one in a header before",
        ),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (MAX_HEADER_BYTES + 1) + b"\r\n",
            b"431 Request Header Fields Too Large",
            id="too much that arrives at once",
        ),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n", b"400 Bad Request", id="two hosts"),
        pytest.param(
            b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n",
            b"400 Bad Request",
            id="a transfer coding of HTTP/1.1 before it",
        ),
        pytest.param(b"GET https://X:1/a HTTP/1.1\r\nHost: x:1\r\n", b"200 OK", id="a URL of its host"),
        pytest.param(b"GET https://x?a HTTP/1.1\r\nHost: x\r\n", b"400 Bad Request", id="a URL without a path"),
        pytest.param(b"GET https://y/ HTTP/1.1\r\nHost: x\r\n", b"400 Bad Request", id="a URL of another host"),
        pytest.param(b"GET https://x:2/ HTTP/1.1\r\nHost: x\r\n", b"400 Bad Request", id="a URL of another port"),
        pytest.param(b"GET https://x@y/ HTTP/1.1\r\nHost: x\r\n", b"400 Bad Request", id="a URL with a user"),
        pytest.param(b"GET /a#b HTTP/1.1\r\nHost: x\r\n", b"400 Bad Request", id="a fragment"),
        pytest.param(b"GET / HTTP/1.0\r\n", b"200 OK", id="no host before there were any"),
        pytest.param(b"GET / HTTP/1.0\r\nhost: x\r\nHOST: y\r\n", b"400 Bad Request", id="two even then"),
        pytest.param(
            b"GET / HTTP/2.0\r\nHost: x\r\n", b"505 HTTP Version Not Supported", id="a version in the wrong clothes"
        ),
    ],
)
def test_a_request_names_one_host_in_a_version_that_is_spoken(head: bytes, status: bytes) -> None:
    async def talk() -> None:
        assert (await Talk(echo).say(head + b"\r\n")).startswith(b"HTTP/1.1 " + status)

    asyncio.run(talk())


@runs
async def test_an_answered_request_leaves_nothing_to_the_garbage_collector() -> None:
    talk = Talk(echo)
    gc.collect()
    gc.disable()
    try:
        assert await talk.say(POST + b"Content-Length: 1\r\n\r\nx" + GET) == ok(b"1") + ok(b"0")
        assert not [one for one in gc.get_objects() if isinstance(one, Exchange)]
    finally:
        gc.enable()


@runs
async def test_the_first_of_several_headers_counts_and_all_are_told_in_order() -> None:
    seen: list[object] = []

    async def look(request: Request) -> Response:
        seen.extend(
            (request.header(b"a"), request.header_values(b"a"), request.header(b"b"), request.header_values(b"b"))
        )
        request.headers = [one for one in request.headers if one[1] != b"1"]
        seen.extend((request.header(b"a"), request.header_values(b"a")))
        return Response(200, b"", ())

    await Talk(look).say(b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\nA:\r\na: 2\r\n\r\n")
    assert seen == ["1", ["1", "", "2"], "", [], "", ["", "2"]]


@pytest.mark.parametrize("target", [b"x", b"/\xff", b"http://[/"], ids=["a word", "no ASCII", "no URL"])
def test_a_target_that_is_no_path_is_400(target: bytes) -> None:
    async def story() -> None:
        talk = Talk(echo)
        assert (await talk.say(b"OPTIONS %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)).startswith(b"HTTP/1.1 400 ")
        assert talk.plain.ended == "lingers"

    asyncio.run(story())


class TestIdle:
    """Test that an idle connection is closed, and that one timer suffices."""

    @staticmethod
    def talk(monkeypatch: pytest.MonkeyPatch, handler: Any = echo) -> tuple[Talk, list[tuple[float, Any]], list[float]]:
        """Return a talk, the timers that were set, and the time."""
        talk = Talk(handler)
        timers: list[tuple[float, Any]] = []
        now = [1000.0]

        class Loop:
            create_task = staticmethod(asyncio.get_running_loop().create_task)

            def time(self) -> float:
                return now[0]

            def call_later(self, seconds: float, what: Any) -> Any:
                timers.append((seconds, what))
                return asyncio.get_running_loop().call_later(1000, what)

        talk.protocol.loop = cast(Any, Loop())
        return talk, timers, now

    def test_requests_that_come_in_one_piece_set_one_timer_in_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def story() -> None:
            talk, timers, _ = self.talk(monkeypatch)
            for _ in range(3):
                assert await talk.say(GET) == ok(b"0")
            assert [seconds for seconds, _ in timers] == [IDLE_SECONDS]
            talk.protocol.connection_lost(None)

        asyncio.run(story())

    def test_it_is_set_again_for_the_rest_while_something_was_asked_and_ends_what_is_idle(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def story() -> None:
            talk, timers, now = self.talk(monkeypatch)
            await talk.say(GET)
            now[0] += 100
            await talk.say(GET)
            now[0] += IDLE_SECONDS - 100
            timers.pop()[1]()
            assert [seconds for seconds, _ in timers] == [100]
            assert not talk.plain.ended
            now[0] += 100
            timers.pop()[1]()
            assert (timers, talk.plain.ended) == ([], "closed")

        asyncio.run(story())

    def test_it_does_not_end_what_is_being_answered_and_is_set_again_after_that(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go_on = asyncio.Event()

        async def slow(request: Request) -> Response:
            if request.path == "/slow":
                await go_on.wait()
            return await echo(request)

        async def story() -> None:
            talk, timers, now = self.talk(monkeypatch, slow)
            await talk.say(GET)
            await talk.say(GET.replace(b"/ ", b"/slow "))
            now[0] += 2 * IDLE_SECONDS
            timers.pop()[1]()
            assert (timers, talk.plain.ended) == ([], "")
            go_on.set()
            await settle()
            assert [seconds for seconds, _ in timers] == [IDLE_SECONDS]
            talk.protocol.connection_lost(None)

        asyncio.run(story())

    def test_headers_that_did_not_come_in_one_piece_have_a_timer_of_their_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def story() -> None:
            talk, timers, now = self.talk(monkeypatch)
            await talk.say(GET)
            idle = timers.pop()[1]
            await talk.say(GET[:20])
            await talk.say(GET[20:22])
            [(seconds, cut)] = timers
            assert (seconds, cut) == (HEADER_SECONDS, talk.plain.abort)
            now[0] += 2 * IDLE_SECONDS
            idle()
            assert not talk.plain.ended
            assert await talk.say(GET[22:]) == ok(b"0")
            talk.protocol.connection_lost(None)

        asyncio.run(story())


@pytest.mark.parametrize(
    ("line", "value"),
    [
        pytest.param(b"X-Remote-User: max  ", b"max", id="trailing spaces"),
        pytest.param(b"Impersonate-User:\tmax\t \t", b"max", id="tabs on both sides"),
        pytest.param(b"X-Remote-Group:max mustermann ", b"max mustermann", id="a space within the value is kept"),
        pytest.param(b"X-Remote-User: \t ", b"", id="nothing but white space"),
        pytest.param(b"X-Remote-User: max\xa0", b"max\xa0", id="a no-break space is no white space of HTTP"),
    ],
)
def test_white_space_around_a_field_value_is_no_part_of_it(line: bytes, value: bytes) -> None:
    seen: list[bytes] = []

    async def look(request: Request) -> Response:
        seen.extend(text for name, text in request.headers if name != b"host")
        return Response(200)

    async def story() -> None:
        await Talk(look).say(b"GET / HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n")
        assert seen == [value]

    asyncio.run(story())


REFUSED = {
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "junk": b"\0\0\0\r\n\r\n",
    "no path": b"GET x HTTP/1.1\r\nHost: x\r\n\r\n",
    "too many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: x\r\n" * 1001 + b"\r\n",
    "a body that is no chunk": POST + b"Transfer-Encoding: chunked\r\n\r\njunk\r\n",
}


@pytest.mark.parametrize("refused", REFUSED)
@pytest.mark.parametrize("pieces", [1, 2], ids=["at once", "later"])
def test_a_refusal_waits_for_the_replies_before_it_and_nothing_is_served_after_it(refused: str, pieces: int) -> None:
    """RFC 9112 9.3.2: the effect of the request before would otherwise come under the wrong answer."""

    async def talk() -> None:
        go_on, seen = asyncio.Event(), []

        async def slow(request: Request) -> Response:
            seen.append(request.path)
            await go_on.wait()
            return Response(201, b"made", ())

        conversation = Talk(slow)
        first, rest = POST.replace(b"/ ", b"/1 ") + b"Content-Length: 0\r\n\r\n", REFUSED[refused] + GET
        if pieces == 1:
            assert await conversation.say(first + rest) == b""
        else:
            assert await conversation.say(first) == b""
            assert await conversation.say(rest) == b""
        go_on.set()
        await settle()
        replies = conversation.plain.sent
        assert replies.startswith(b"HTTP/1.1 201 ")
        assert replies.count(b"HTTP/1.1 ") == 2
        assert b"HTTP/1.1 4" in replies
        assert seen == ["/1"]
        assert (conversation.plain.ended, conversation.plain.held) == ("lingers", 0)

    asyncio.run(talk())


class Walked(list[Header]):
    """Headers that count how often they are walked."""

    walks = 0

    def __iter__(self) -> Iterator[Header]:
        self.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("number", [3, 990])
def test_each_header_has_its_values_in_the_order_received_however_many_there_are(number: int) -> None:
    async def receive() -> None:
        return None

    sent = Walked((b"x-remote-extra-%d" % (one % (number - 1)), b"%d" % one) for one in range(number))
    request = Request("GET", "/", b"", sent, TlsConnection("192.0.2.1"), receive)
    read = request.header_reader()
    assert read("x-remote-extra-0") == ["0", str(number - 1)]
    assert all(read(f"x-remote-extra-{one}") == [str(one)] for one in range(1, number - 1))
    assert list(read("x-remote-user")) == []
    assert sent.walks <= FEW_HEADERS
