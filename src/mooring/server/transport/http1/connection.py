"""HTTP/1.1 for who does not ask for HTTP/2 (RFC 9112, docs/adr/0023): httptools' parser in, `Request` and `Response` out.

Rules kept here:
* Bounded: header bytes, what is held of a body, what is thrown away of one, the time headers may take, idle time.
* Requests of a connection are answered one after another, in their order; nothing is read while one waits for another.
* What follows a request that asks for another protocol is kept until that is decided: after a 101 it belongs to the new
  protocol, after any other answer it is the next request. Such a request has no body: httptools would take the body for what
  follows, and so for a request.
* Requests that wait for others, and headers that are not whole, count as what the client makes us hold (`holdings`).
* A request costs no timer: the one for idle time runs on while requests come and is looked at when it is due, the one for
  headers is set when they did not come in one piece.

httptools knows the grammar; it calls the `on_…` methods.
"""

from __future__ import annotations

import asyncio
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from mooring.apimachinery.codec.limits import MAX_BODY
from mooring.server.transport.frames import Frames, Switched
from mooring.server.transport.http import (
    HEADER_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    Application,
    Header,
    read_target,
)
from mooring.server.transport.http1.exchange import Exchange
from mooring.server.transport.listener import Inner, TlsTransport

MAX_DISCARDED = MAX_BODY
"""How much of a body may still come after the answer: what would have been read; then it must end soon."""
MAX_UNREAD = 64 << 10
"""Bytes of a body that are held before anybody reads it; then the client waits."""

OWS = b" \t"
"""Optional white space around a field value is no part of it (RFC 9112 5); httptools leaves what stands behind."""

SMALL_HEADERS = 4096
"""Bytes of headers that are not whole yet and are not counted: nearly all requests come in one piece."""
PIPELINED_REQUEST = 2048
"""Bytes that a request of few headers takes while it waits for the one before it."""

_VERSIONS = ("1.0", "1.1")
"""httptools reads others too, and would serve them as if they were these."""


class Protocol(Inner):
    """One connection."""

    __slots__ = (
        "_application", "_counted", "_discarded", "_drained", "_exchanges", "_headers", "_idle", "_in_headers", "_is_held",
        "_parser", "_quiet_since", "_target", "_timer", "_undecided", "_without_progress", "frames", "loop", "transport",
    )  # fmt: skip

    def __init__(self, application: Application) -> None:
        self._application = application
        self.frames: Frames | None = None
        self._exchanges: list[Exchange] = []  # the first is being answered, the last is being received
        self._headers: list[Header] = []
        self._target = b""
        self._in_headers = False
        self._without_progress = 0
        self._counted = 0
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
        if self._counted or self._without_progress > SMALL_HEADERS:
            counted, self._counted = self._counted, self._without_progress
            self.transport.hold(self._counted - counted)
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
            self._headers.append((name.lower(), value.strip(OWS)))

    def on_headers_complete(self) -> None:
        self._without_progress = 0
        self._in_headers = False
        self._stop_timer()
        headers, self._headers = self._headers, []
        parser = self._parser
        version: str = parser.get_http_version()
        if len(headers) > MAX_HEADERS:
            self._refuse_headers()
        elif version not in _VERSIONS:
            self.refuse(b"505 HTTP Version Not Supported")
        elif not _names_one_host(headers, version) or (parser.should_upgrade() and _has_body(headers)):
            self.refuse(b"400 Bad Request")
        target = read_target(self._target)
        if target is None:
            self.refuse(b"400 Bad Request")
        if target is None or self.transport.is_closing():
            return
        is_last = version == "1.0" or not parser.should_keep_alive()
        exchange = Exchange(self, parser.get_method().decode(), target, headers, is_last)
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self._start(exchange)
        else:
            exchange.hold(PIPELINED_REQUEST + sum(len(name) + len(value) for name, value in headers))
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


def _names_one_host(headers: list[Header], version: str) -> bool:
    """RFC 9112 3.2: who is in doubt which host is meant, and who believes it, must not disagree."""
    hosts = [name for name, _ in headers].count(b"host")
    return hosts == 1 or (hosts == 0 and version == "1.0")


def _has_body(headers: list[Header]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0")) for name, value in headers
    )
