"""The one file that knows the HTTP library: uvicorn's httptools protocol in, `Request` and `Response` out.

Rules kept here:
* Bounded: header bytes, body bytes, the time headers may take, idle time. Each limit is named with its reason.
* A handler gets a `Request` and returns a `Response`; it never sees ASGI. An exception that reaches this file is a bug of
  ours and becomes a 500 Status without detail; the traceback goes to the operator's log under the Audit-Id.
* What follows a request that asks for another protocol is kept until that is decided: after a 101 it belongs to the new
  protocol, after any other answer it is the next request. Such a request has no body: httptools would take the body for what
  follows, and so for a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from mooring.errors import BadRequestError, RequestEntityTooLargeError
from mooring.server.frames import Frames, Streamer, Switched
from mooring.server.listener import Connection, TlsTransport
from mooring.wire.codec import MAX_BODY

log = logging.getLogger("mooring.server")

MAX_HEADER_BYTES = 64 << 10
"""Go's default is 1 MiB; the largest real Kubernetes request (a fat OIDC token and impersonation) stays below 32 kB."""
MAX_HEADERS = 1000
"""Each is looked at several times; a user impersonated with hundreds of groups still passes."""
MAX_DISCARDED = MAX_BODY
"""How much of a body may still come after the answer: what would have been read; then it must end soon."""
HEADER_SECONDS = 32.0
"""kube-apiserver's ReadHeaderTimeout; for the first request it runs from the handshake, so that silence holds no place."""
BODY_SECONDS = 60.0
"""kube-apiserver's default request timeout."""
IDLE_SECONDS = 120
"""Go clients drop idle connections after 90 s; being later than them avoids the race on a reused connection."""
LINGER_SECONDS = 0.5
"""Then the connection is cut: as long as Go's server waits, so that a client that is still sending comes to see the answer."""
END_SECONDS = 5.0
"""A client that is so far behind that it has not come to the end of a stream by then does not read: it is cut off."""


MAX_REMEMBERED_QUERY = 512
"""Longer query strings are parsed each time: strangers must not fill memory through a cache."""


@lru_cache(maxsize=4096)
def _remembered_query(raw: bytes) -> dict[str, list[str]]:
    return parse_query(raw)


def parse_query(raw: bytes) -> dict[str, list[str]]:
    """Values by name, in order of appearance. Raises BadRequestError for an absurd number."""
    try:
        pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=1000)
    except ValueError as error:
        raise BadRequestError("the query string has too many parameters") from error
    parsed: dict[str, list[str]] = {}
    for key, value in pairs:
        parsed.setdefault(key, []).append(value)
    return parsed


def header_text(value: bytes) -> str:
    """A header's value: UTF-8, as Go clients write the names of users; what is not becomes U+FFFD, as in Go's JSON."""
    return value.decode("utf-8", "replace")


class Request:
    """One HTTP request. Header names are lower-case bytes as HTTP carries them."""

    __slots__ = ("_body", "_receive", "connection", "headers", "method", "path", "query_string")

    def __init__(
        self,
        method: str,
        path: str,
        query_string: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        connection: Connection,
        receive: Callable[[], Awaitable[Any]],
    ) -> None:
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = headers
        self.connection = connection
        self._receive = receive
        self._body: bytes | None = None

    @property
    def query(self) -> dict[str, list[str]]:
        """Query parameters in order of appearance. Treat as immutable. Raises BadRequestError for an absurd number."""
        raw = self.query_string
        return _remembered_query(raw) if len(raw) <= MAX_REMEMBERED_QUERY else parse_query(raw)

    @property
    def uri(self) -> str:
        """Path and query as requested, for the audit record."""
        query = self.query_string.decode("latin-1")
        return f"{self.path}?{query}" if query else self.path

    def header(self, name: bytes) -> str:
        """First value of a header, or ""."""
        for key, value in self.headers:
            if key == name:
                return header_text(value)
        return ""

    def header_values(self, name: bytes) -> list[str]:
        return [header_text(value) for key, value in self.headers if key == name]

    async def load(self) -> bool:
        """Receive the whole body now; False for a method that has none. Raises what `body` raises."""
        if self.method in ("GET", "HEAD"):
            return False
        if self._body is None:
            self._body = await self._received(MAX_BODY)
        return True

    async def body(self) -> bytes:
        """The whole body. Raises RequestEntityTooLargeError beyond the limit, BadRequestError when the client went away."""
        await self.load()
        return self._body or b""

    async def _received(self, limit: int) -> bytes:
        declared = self.header(b"content-length")
        if declared and int(declared) > limit:  # httptools has checked that it is a number
            raise RequestEntityTooLargeError(f"the request body is larger than the limit of {limit} bytes")
        pieces: list[bytes] = []
        total = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise BadRequestError("the connection was closed before the whole body arrived")
                    piece: bytes = message["body"]
                    total += len(piece)
                    if total > limit:
                        raise RequestEntityTooLargeError(f"the request body is larger than the limit of {limit} bytes")
                    pieces.append(piece)
                    if not message["more_body"]:
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError as error:
            raise BadRequestError(f"the request body did not arrive within {BODY_SECONDS:.0f} seconds") from error


Header = tuple[bytes, bytes]
JSON = (b"content-type", b"application/json")


@dataclass(slots=True)
class Response:
    """A reply: `body` whole, or in pieces, or `stream` for replies that go on.

    `at_once`: it leaves before the loop does anything else. Otherwise it leaves in the next turn with all others of this one,
    which wakes a client of many connections less often.
    """

    status: int
    body: bytes | Sequence[bytes] = b""
    headers: tuple[Header, ...] = (JSON,)
    stream: Streamer | None = None
    at_once: bool = False
    farewell: bool = False
    """It went to nobody in particular: an HTTP/2 connection takes no more requests after it."""
    switch: Callable[[TlsTransport], Switched] | None = None
    """What the connection becomes when `status` is 101 and `stream` goes on in another protocol."""


Handler = Callable[[Request], Awaitable[Response]]
Finish = Callable[[Request, Response], Awaitable[Response]]


async def as_it_is(request: Request, response: Response) -> Response:
    """The reply that the handler made."""
    return response


class _Flow(FlowControl):
    """uvicorn's, with an event only while the client is behind: each one is 0.8 kB, and hardly any client ever is."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False

    def pause_writing(self) -> None:
        if not self.write_paused:
            self._is_writable_event = asyncio.Event()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self.write_paused:
            super().resume_writing()
            del self._is_writable_event


class _Pipeline(list[Any]):
    """Requests that wait for the one before them. Not a deque: an empty one is 0.7 kB, and clients hardly ever pipeline."""

    __slots__ = ()

    def appendleft(self, waiting: Any) -> None:
        self.insert(0, waiting)


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol, with the connection in the scope and limits on headers."""

    __slots__ = ("_discarded", "_in_headers", "_timer", "_undecided", "_without_progress", "frames")
    """Attributes of our own beside the base class's dict: with more than 30 it would no longer be the compact form that all
    instances share (1.2 kB each)."""
    transport: TlsTransport

    def __init__(self, config: Config, server_state: ServerState) -> None:
        super().__init__(config, server_state, {})
        self._without_progress = 0
        self._discarded = 0
        self._in_headers = False
        self._timer: asyncio.TimerHandle | None = None
        self._undecided: bytearray | None = None
        self.frames: Frames | None = None
        self.pipeline = _Pipeline()  # type: ignore[assignment]  # has what is used of a deque

    def connection_made(self, transport: TlsTransport) -> None:  # type: ignore[override] # as uvicorn narrows it
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._timer = self.loop.call_later(HEADER_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        """The parser gathers a header or trailer of any length before it says anything: what it holds is bounded here."""
        if isinstance(self.frames, Switched):
            self.frames.received(data)
            return
        self._without_progress += len(data)
        if self._undecided is None:
            self._parse(data)
        else:
            self._undecided += data
        if self._without_progress > MAX_HEADER_BYTES:
            self._refuse_headers()

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._undecided = bytearray(data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._undecided is not None and self.cycle.response_complete and not self.transport.is_closing():
            self.data_received(self._decided())

    def _decided(self) -> bytes:
        undecided, self._undecided = bytes(self._undecided or b""), None
        self._without_progress = 0
        return undecided

    def switch(self) -> None:
        """The answer of this moment is a 101: it has no body, and nothing of HTTP follows it."""
        self.cycle.chunked_encoding = False
        self.cycle.keep_alive = True  # otherwise uvicorn adds its own `connection`

    def switched(self, frames: Switched) -> None:
        """The 101 is sent, and the connection belongs to `frames`."""
        self.cycle.keep_alive = False
        self.frames = frames
        frames.received(self._decided())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._discarded = 0
        self.scope["state"]["transport"] = self.transport
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def on_header(self, name: bytes, value: bytes) -> None:
        # trailers are counted and forgotten: they must not join the headers of a request being served
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._without_progress = 0
        self._in_headers = False
        self._stop_timer()
        if len(self.headers) > MAX_HEADERS:
            self._refuse_headers()
        elif self.parser.should_upgrade() and self._has_body():
            self._refuse(b"400 Bad Request")
        if not self.transport.is_closing():
            super().on_headers_complete()

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0"))
            for name, value in self.headers
        )

    def on_body(self, body: bytes) -> None:
        self._without_progress = 0
        if self.cycle.response_complete:
            before = self._discarded
            self._discarded += len(body)
            if before <= MAX_DISCARDED < self._discarded:
                self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        super().on_message_complete()

    def _refuse_headers(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large")

    def _refuse(self, status: bytes) -> None:
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()  # in the middle of another reply there is no place for this one
            return
        self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self.frames is not None:
            self.frames.lost()
        super().connection_lost(exc)


def _forget(headers: list[Header]) -> None:
    """Of a request that is being answered for an hour, keep what the audit record says: no credentials stay in memory."""
    headers[:] = [header for header in headers if header[0] == b"user-agent"]


async def _streamed(response: Response, stream: Streamer, scope: Any, send: Any) -> None:
    """Send a reply that goes on, as chunks or as what the connection becomes."""
    transport: TlsTransport = scope["state"]["transport"]
    protocol = transport.get_protocol()
    assert isinstance(protocol, Protocol)
    if response.switch is not None:
        protocol.switch()
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    _forget(scope["headers"])
    if response.switch is None:
        frames = protocol.frames = Frames(transport)
    else:
        frames = response.switch(transport)
        protocol.switched(frames)
    try:
        await stream(frames)
    finally:
        frames.end()
        if response.switch is None:
            protocol.frames = None
    late = asyncio.get_running_loop().call_later(END_SECONDS, transport.abort)
    try:
        if isinstance(frames, Switched):
            await frames.leave()
        await send({"type": "http.response.body", "body": b""})
    finally:
        late.cancel()


class Application:
    """ASGI on the outside, `Handler` on the inside; `finish` has the last word on a reply that is sent whole."""

    def __init__(self, handler: Handler, finish: Finish = as_it_is) -> None:
        self._handler = handler
        self._finish = finish
        self._config = Config(
            self,
            log_config=None,
            log_level="error",  # a line for each piece of junk would let strangers fill the log
            access_log=False,
            timeout_keep_alive=IDLE_SECONDS,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # X-Forwarded-For is anybody's claim: limits and audit use the real peer
        )
        self._config.load()
        self.state = ServerState()
        """The connections there are, and the requests that are being answered."""

    def protocol(self) -> Protocol:
        """A protocol for one new connection."""
        return Protocol(self._config, self.state)

    @property
    def in_flight(self) -> int:
        return len(self.state.tasks)

    async def drain(self, seconds: float) -> None:
        """Ask every connection to finish its request and close; return when all have, or after `seconds`."""
        for protocol in tuple(self.state.connections):
            protocol.shutdown()
        pending = {task for task in self.state.tasks if not task.done()}
        if pending:
            await asyncio.wait(pending, timeout=seconds)

    async def answer(self, request: Request) -> Response:
        """The reply to one request, as it is sent."""
        response = await self._handler(request)
        return response if response.stream is not None else await self._finish(request, response)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        transport: TlsTransport = scope["state"]["transport"]
        request = Request(
            scope["method"], scope["path"], scope["query_string"], scope["headers"], transport.connection, receive
        )
        response = await self.answer(request)
        if response.stream is not None:
            await _streamed(response, response.stream, scope, send)
            return
        body = response.body
        pieces = (body,) if isinstance(body, bytes) else body
        length = sum(map(len, pieces))
        headers = [*response.headers]
        if response.status != 304:  # RFC 9110 8.6: it would be the length of the 200 that is not sent
            headers.append((b"content-length", b"%d" % length))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": pieces[-1] if pieces else b""})
        if response.at_once:
            transport.flush()
