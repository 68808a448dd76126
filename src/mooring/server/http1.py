"""HTTP/1.1 for who does not ask for HTTP/2 (RFC 9112, docs/adr/0023): httptools' parser in, `Request` and `Response` out.

Rules kept here:
* Bounded: header bytes, what is held of a body, what is thrown away of one, the time headers may take, idle time.
* Requests of a connection are answered one after another, in their order; nothing is read while one waits for another.
* What follows a request that asks for another protocol is kept until that is decided: after a 101 it belongs to the new
  protocol, after any other answer it is the next request. Such a request has no body: httptools would take the body for what
  follows, and so for a request.
* An exception that reaches this file is a bug of ours: the operator gets the traceback, the client a 500, or the end in the
  middle of a reply. So is a header that would split the reply.
* A request costs no timer: the one for idle time runs on while requests come and is looked at when it is due, the one for
  headers is set when they did not come in one piece.

httptools knows the grammar; it calls the `on_…` methods.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from mooring.server.frames import Frames, Streamer, Switched
from mooring.server.http import (
    HEADER_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    Application,
    Header,
    Request,
    Response,
    Target,
    read_target,
)
from mooring.server.listener import TlsTransport
from mooring.wire.codec import MAX_BODY

log = logging.getLogger("mooring.server")

MAX_DISCARDED = MAX_BODY
"""How much of a body may still come after the answer: what would have been read; then it must end soon."""
MAX_UNREAD = 64 << 10
"""Bytes of a body that are held before anybody reads it; then the client waits."""
END_SECONDS = 5.0
"""A client that is so far behind that it has not come to the end of a stream by then does not read: it is cut off."""

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in HTTPStatus}
_NO_BODY = (204, 304)
"""RFC 9110 8.6: for 304 the length would be that of the 200 that is not sent."""


def reply_head(status: int, headers: tuple[Header, ...], *more: Header) -> bytes:
    """The status line and the headers, up to and with the empty line. Raises ValueError for what would be more than that."""
    parts = [_STATUS_LINES[status]]
    for name, value in headers:
        parts += (b"\r\n", name, b": ", value)
    for name, value in more:
        parts += (b"\r\n", name, b": ", value)
    parts.append(b"\r\n\r\n")
    head = b"".join(parts)
    lines = len(headers) + len(more) + 2
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise ValueError("a header of the reply holds more than a line")
    return head


class Exchange:
    """One request and its reply."""

    __slots__ = (
        "_is_told", "_pieces", "_protocol", "_wake", "is_last", "is_lost", "is_started", "is_whole", "request", "task", "unread",
    )  # fmt: skip

    def __init__(self, protocol: Protocol, method: str, target: Target, headers: list[Header], is_last: bool) -> None:
        self._protocol = protocol
        self.request = Request(method, *target, headers, protocol.transport.connection, self.receive)
        self.is_last = is_last
        """The connection ends after it."""
        self.is_whole = False
        """The whole request is here."""
        self.is_started = False
        """The reply has begun."""
        self.is_lost = False
        """The client has gone."""
        self.unread = 0
        """Bytes of the body that nobody has read."""
        self.task: asyncio.Task[None]
        """What finds the reply; there is one from when it is this request's turn."""
        self._is_told = False  # to send the body
        self._pieces: list[bytes] = []
        self._wake: asyncio.Future[None] | None = None

    def arrived(self, data: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(data)
        self.unread += len(data)
        self._woken()

    def ended(self) -> None:
        """The request is whole."""
        self.is_whole = True
        self._woken()

    def lost(self) -> None:
        """The client has gone."""
        self.is_lost = True
        self._woken()

    def _woken(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        self._wake = None

    async def receive(self) -> dict[str, Any]:
        """The next piece of the body, as ASGI has it."""
        if self._is_expecting():
            self._is_told = True
            self._protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._pieces or self.is_whole or self.is_lost):
            self._wake = self._protocol.loop.create_future()
            await self._wake
        if self.is_lost:
            return {"type": "http.disconnect"}
        body, self._pieces, self.unread = b"".join(self._pieces), [], 0
        self._protocol.regulate()
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    def _is_expecting(self) -> bool:
        """Whether the client waits to be told to send the body (RFC 9110 10.1.1)."""
        if self.is_whole or self._pieces or self._is_told:
            return False
        return self.request.header(b"expect").lower() == "100-continue"

    async def run(self, application: Application) -> None:
        """Find the reply and send it."""
        protocol = self._protocol
        try:
            response = await application.answer(self.request)
            if response.stream is not None:
                await self._stream(response, response.stream)
            else:
                await self._reply(response)
        except Exception:  # a handler answers for its own errors; this is a bug, and must not stop the others
            log.exception("a request could not be answered")
            if self.is_started:
                protocol.transport.close()
            else:
                protocol.refuse(b"500 Internal Server Error")
        finally:
            del self.request  # it holds this object: no work for the garbage collector
            application.tasks.discard(self.task)
            protocol.answered(self)

    async def _reply(self, response: Response) -> None:
        body = response.body
        pieces = (body,) if isinstance(body, bytes) else body
        is_mute = self.request.method == "HEAD"
        length = () if response.status in _NO_BODY else ((b"content-length", b"%d" % sum(map(len, pieces))),)
        if await self._begin(response, *length):
            transport = self._protocol.transport
            for piece in () if is_mute else pieces:
                if self._protocol.is_choked and not await self._has_room():
                    return
                transport.write(piece)
            if response.at_once:
                transport.flush()

    async def _begin(self, response: Response, *more: Header) -> bool:
        """Send the head; False when nobody is there any more."""
        if (self._protocol.is_choked or self.is_lost) and not await self._has_room():
            return False
        self.is_last = self.is_last or self._is_expecting()  # whether its body still comes, nobody knows
        if self.is_last and response.switch is None:
            more = (*more, (b"connection", b"close"))
        head = reply_head(response.status, response.headers, *more)
        self.is_started = True
        self._protocol.transport.write(head)
        return True

    async def _has_room(self) -> bool:
        """Wait until the client has taken enough of what was sent; False when it has gone."""
        if not self.is_lost:
            await self._protocol.drained()
        return not self.is_lost

    async def _stream(self, response: Response, stream: Streamer) -> None:
        """Send a reply that goes on, as chunks or as what the connection becomes."""
        protocol, transport = self._protocol, self._protocol.transport
        coding = ((b"transfer-encoding", b"chunked"),) if response.switch is None else ()
        await self._begin(response, *coding)
        # for the audit record; no credentials stay in memory of a request that is being answered for an hour
        self.request.headers = [one for one in self.request.headers if one[0] == b"user-agent"]
        if response.switch is None:
            frames = protocol.frames = Frames(transport)
        else:
            self.is_last = True
            frames = response.switch(transport)
            protocol.switched(frames)
        try:
            await stream(frames)
        finally:
            frames.end()
        late = protocol.loop.call_later(END_SECONDS, transport.abort)
        try:
            if isinstance(frames, Switched):
                await frames.leave()
            else:
                protocol.frames = None
                if await self._has_room():
                    transport.write(b"0\r\n\r\n")
        finally:
            late.cancel()


class Protocol(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_application", "_discarded", "_drained", "_exchanges", "_headers", "_idle", "_in_headers", "_is_held", "_parser",
        "_quiet_since", "_target", "_timer", "_undecided", "_without_progress", "frames", "loop", "transport",
    )  # fmt: skip

    def __init__(self, application: Application) -> None:
        self._application = application
        self.frames: Frames | None = None
        self._exchanges: list[Exchange] = []  # the first is being answered, the last is being received
        self._headers: list[Header] = []
        self._target = b""
        self._in_headers = False
        self._without_progress = 0
        self._discarded = 0
        self._undecided: bytearray | None = None
        self._is_held = False
        self._drained: asyncio.Future[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._quiet_since = 0.0

    def connection_made(self, transport: TlsTransport) -> None:  # type: ignore[override]  # what the listener gives
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self._parser: Any = HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it is ignored, as RFC 9112 9.6 wants
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(HEADER_SECONDS, transport.abort)
        self._application.connections.add(self)

    # What comes

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
        elif self._in_headers and self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._undecided = bytearray(data[upgrade.args[0] :])
        except HttpParserError:
            self.refuse(b"400 Bad Request")

    def on_message_begin(self) -> None:
        self._headers = []
        self._target = b""
        self._in_headers = True
        self._discarded = 0

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # trailers are forgotten: they must not join the headers of a request being served
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._without_progress = 0
        self._in_headers = False
        self._stop_timer()
        headers, self._headers = self._headers, []
        parser = self._parser
        if len(headers) > MAX_HEADERS:
            self._refuse_headers()
        elif parser.should_upgrade() and _has_body(headers):
            self.refuse(b"400 Bad Request")
        target = read_target(self._target)
        if target is None:
            self.refuse(b"400 Bad Request")
        if target is None or self.transport.is_closing():
            return
        is_last = parser.get_http_version() == "1.0" or not parser.should_keep_alive()
        exchange = Exchange(self, parser.get_method().decode(), target, headers, is_last)
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self._start(exchange)
        else:
            self.regulate()

    def _start(self, exchange: Exchange) -> None:
        exchange.task = self.loop.create_task(exchange.run(self._application))
        self._application.tasks.add(exchange.task)

    def on_body(self, body: bytes) -> None:
        self._without_progress = 0
        if self._exchanges:
            self._exchanges[-1].arrived(body)
            self.regulate()
            return
        before = self._discarded
        self._discarded += len(body)
        if before <= MAX_DISCARDED < self._discarded:
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def on_message_complete(self) -> None:
        self._stop_timer()
        if self._exchanges:
            self._exchanges[-1].ended()

    def regulate(self) -> None:
        """Read on, or not: one request waits for another, or more came of a body than was read."""
        waiting = self._exchanges
        is_held = len(waiting) > 1 or (bool(waiting) and waiting[0].unread > MAX_UNREAD)
        if is_held != self._is_held:
            self._is_held = is_held
            if is_held:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # What is answered

    def answered(self, exchange: Exchange) -> None:
        """The reply is complete, or will never be."""
        if exchange.is_last:
            self.transport.close()
        del self._exchanges[0]
        if self.transport.is_closing():
            return
        self._quiet_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(IDLE_SECONDS, self._look)
        self.regulate()
        if self._exchanges:
            self._start(self._exchanges[0])
        elif self._undecided is not None:
            self.data_received(self._decided())

    def _look(self) -> None:
        """End a connection on which nothing was asked for too long; whoever ends what is asked now looks again."""
        self._idle = None
        left = self._quiet_since + IDLE_SECONDS - self.loop.time()
        if self._exchanges or self._in_headers:
            return
        if left > 0:
            self._idle = self.loop.call_later(left, self._look)
        else:
            self.transport.close()

    def _decided(self) -> bytes:
        undecided, self._undecided = bytes(self._undecided or b""), None
        self._without_progress = 0
        return undecided

    def switched(self, frames: Switched) -> None:
        """The 101 is sent, and the connection belongs to `frames`."""
        self.frames = frames
        frames.received(self._decided())

    def _refuse_headers(self) -> None:
        self.refuse(b"431 Request Header Fields Too Large")

    def refuse(self, status: bytes) -> None:
        """Answer so, and end."""
        if self.transport.is_closing():
            return
        if self._exchanges and self._exchanges[0].is_started:
            self.transport.abort()  # in the middle of another reply there is no place for this one
            return
        self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        self.transport.close()

    # How it goes

    @property
    def is_choked(self) -> bool:
        """The client is behind: wait for `drained`."""
        return self._drained is not None

    async def drained(self) -> None:
        """Return when the client is no longer behind, or has gone."""
        if self._drained is not None:
            await asyncio.shield(self._drained)

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = self.loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    def shutdown(self) -> None:
        """Take no more requests; close when those there are have been answered."""
        if self._exchanges:
            self._exchanges[-1].is_last = True
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._application.connections.discard(self)
        self._stop_timer()
        if self._idle is not None:
            self._idle.cancel()
        for exchange in self._exchanges:
            exchange.lost()
        if self.frames is not None:
            self.frames.lost()
        self.resume_writing()
        self._parser = None  # it holds this object


def _has_body(headers: list[Header]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0")) for name, value in headers
    )
