"""Serve one HTTP/1.1 connection over httptools' parser (RFC 9112, docs/adr/0023).

Rules kept here:
* The connection is in one `ConnectionPhase`: what the next bytes of the client are. Eight events move it, each by its table.
* Header bytes, unread and discarded body bytes, the time that headers may take, and idle time are bounded.
* Requests of a connection are answered one after another, in order. Nothing is read while one waits for another.
* Bytes after a request that asks for an upgrade are kept until the reply is known: after a 101 they belong to the new protocol,
  after any other reply they are the next request. When there are many, the server stops reading. Such a request may have no body,
  because httptools would leave the body among these bytes, and it would be read as a request.
* When the server stops, the next reply says that the connection ends, and a client is not cut off in the middle of its work: its
  connection is closed once it was silent for `KEPT_SECONDS`. No request is lost unless it crosses such a close.
* Waiting requests and incomplete headers count as memory that the client makes the server hold
  (`mooring.server.transport.heldbytes`).
* A request sets no timer. The idle timer runs on while requests arrive and is checked when it fires; the header timer is set only
  when headers do not arrive in one piece.

httptools implements the grammar and calls the `on_…` methods.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from mooring.apimachinery.codec.limits import MAX_BODY
from mooring.server.transport.http import (
    HEADER_SECONDS,
    IDLE_SECONDS,
    KEPT_SECONDS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    Application,
    Header,
    header_bytes,
    is_host,
    is_known_encoding,
    read_target,
)
from mooring.server.transport.http1.exchange import Exchange
from mooring.server.transport.tlsconnection import ApplicationProtocol, TlsTransport

MAX_DISCARDED = MAX_BODY
"""Bytes of a body that are discarded after the reply, as many as a body may have. Then the connection ends."""
MAX_UNREAD = 64 << 10
"""Bytes of a body that are received before the handler reads it. Then the server stops reading from the client."""

OWS = b" \t"
"""Optional white space around a field value is not part of it (RFC 9112 5). httptools keeps the white space behind it."""

SMALL_HEADERS = 4096
"""Bytes of incomplete headers that do not count as held memory. Nearly all requests arrive in one piece."""
PIPELINED_REQUEST = 2048
"""Bytes of memory that a waiting request with few headers takes."""

BAD_REQUEST = b"400 Bad Request"
TOO_LARGE = b"431 Request Header Fields Too Large"

_VERSIONS = ("1.0", "1.1")
"""Versions that are served. httptools accepts others, and would handle them as if they were these."""


class ConnectionPhase(Enum):
    """Part of a request to which the next bytes of the client belong."""

    FIRST = "the first request, which must arrive in time"
    BETWEEN = "another request"
    HEADERS = "headers, which must arrive in time"
    BODY = "the body of the last exchange"
    DISCARDED = "a body that is discarded, because the reply came first"
    KEPT = "behind a request for an upgrade: its reply decides what they are"
    UPGRADED = "for the protocol to which the connection was upgraded"
    ENDED = "not served: a request was refused, or the connection ends"

    __hash__ = object.__hash__  # by identity: Enum's own is written in Python


FIRST, BETWEEN, HEADERS, BODY, DISCARDED, KEPT, UPGRADED, ENDED = ConnectionPhase
"""Members by names of their own: reading one from its class takes 0.1 µs, and every header of a request needs one."""

# The phase after each event, by the phase before it. Other moves do not exist. After the end the parser goes on with what
# arrived in one piece, and a handler with its reply.
BEGUN = {FIRST: HEADERS, BETWEEN: HEADERS, ENDED: ENDED}
"""The first byte of a request arrived."""
HEADED = {HEADERS: BODY, ENDED: ENDED}
"""The headers of a request are complete."""
WHOLE = {BODY: BETWEEN, DISCARDED: BETWEEN, ENDED: ENDED}
"""A request is complete."""
ANSWERED_EARLY = {BODY: DISCARDED}
"""A reply is complete, and its request is not."""
ASKED_UPGRADE = {BETWEEN: KEPT, ENDED: ENDED}
"""The complete request asks for an upgrade."""
SWITCHED = {KEPT: UPGRADED, ENDED: ENDED}
"""The reply to a request for an upgrade is a 101."""
NOT_SWITCHED = {KEPT: BETWEEN}
"""The reply to a request for an upgrade was another one."""
OVER = dict.fromkeys(ConnectionPhase, ENDED)
"""A request was refused, or the connection ends."""


class Http1Connection(ApplicationProtocol):
    """One HTTP/1.1 connection, from the TLS handshake to its end."""

    __slots__ = (
        "_after_upgrade", "_application", "_counted", "_discarded", "_drained", "_header_bytes", "_headers", "_idle",
        "_idle_since", "_parser", "_refusal", "_target", "_timer", "exchanges", "loop", "phase", "transport",
    )  # fmt: skip

    def __init__(self, application: Application) -> None:
        self._application = application
        self.phase = FIRST
        self.exchanges: list[Exchange] = []
        """Requests in order: the first is being answered, the last is being received."""
        self._headers: list[Header] = []
        self._target = b""
        self._header_bytes = 0
        """Bytes that arrived since the last complete headers, or the last piece of a body."""
        self._counted = 0
        """Number of these bytes that count as held memory."""
        self._discarded = 0
        self._after_upgrade = bytearray()
        self._drained: asyncio.Future[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._refusal = b""
        """Status of a refusal that waits for the replies before it."""

    def connection_made(self, transport: TlsTransport) -> None:  # type: ignore[override]  # what the listener gives
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self._parser: Any = HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # RFC 9112 9.6: ignored
        self._timer = self.loop.call_later(HEADER_SECONDS, transport.abort)
        self._application.connections.add(self)

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the client. The parser buffers headers and trailers of any length; this method bounds them."""
        phase = self.phase
        if phase is UPGRADED:
            self.exchanges[0].received(data)
            return
        if phase is ENDED:
            return
        self._header_bytes += len(data)
        if phase is KEPT:
            self._after_upgrade += data
            self.regulate()
        else:
            self._parse(data)
        if self._counted or self._header_bytes > SMALL_HEADERS:
            counted, self._counted = self._counted, self._header_bytes
            self.transport.hold(self._counted - counted)
        if self._header_bytes > MAX_HEADER_BYTES and self.phase is not KEPT:
            self._refuse_in_turn(TOO_LARGE)
        elif self.phase is HEADERS and self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self.phase = ASKED_UPGRADE[self.phase]
            self._after_upgrade += data[upgrade.args[0] :]
        except HttpParserError:
            self._refuse_in_turn(BAD_REQUEST)

    def on_message_begin(self) -> None:
        self.phase = BEGUN[self.phase]
        self._headers = []
        self._target = b""

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is HEADERS:  # trailers are discarded: they must not join the headers of a running request
            self._headers.append((name.lower(), value.strip(OWS)))

    def on_headers_complete(self) -> None:
        self.phase = HEADED[self.phase]
        self._header_bytes = 0
        self._stop_timer()
        if self.phase is ENDED:
            return
        headers, self._headers = self._headers, []
        parser = self._parser
        version: str = parser.get_http_version()
        target = read_target(self._target, next((value for name, value in headers if name == b"host"), b""))
        refusal = _refusal_of(self._target, headers, version, parser.should_upgrade())
        if target is None or refusal:
            self._refuse_in_turn(refusal or BAD_REQUEST)
            return
        if self.transport.is_closing():
            self.phase = OVER[self.phase]
            return
        is_old = version == "1.0"
        if is_old:
            headers = [one for one in headers if one[0] not in _IGNORED_BEFORE_1_1]
        is_last = is_old or not parser.should_keep_alive()
        exchange = Exchange(self, parser.get_method().decode(), target, headers, is_last, takes_chunks=not is_old)
        self.exchanges.append(exchange)
        if len(self.exchanges) == 1:
            self._start(exchange)
        else:
            exchange.hold(PIPELINED_REQUEST + sum(len(name) + len(value) for name, value in headers))
            self.regulate()

    def _start(self, exchange: Exchange) -> None:
        exchange.task = self.loop.create_task(exchange.run(self._application))
        self._application.tasks.add(exchange.task)

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        if self.phase is BODY:
            self.exchanges[-1].arrived(body)
            self.regulate()
        elif self.phase is DISCARDED:
            before = self._discarded
            self._discarded += len(body)
            if before <= MAX_DISCARDED < self._discarded:
                self.phase = OVER[self.phase]
                self.transport.close(linger=True)

    def on_message_complete(self) -> None:
        self._stop_timer()
        if self.phase is BODY:
            self.exchanges[-1].ended()
        self.phase = WHOLE[self.phase]

    def regulate(self) -> None:
        """Pause reading while one request waits for another, or while too much of a body or behind an upgrade is unread; else
        resume."""
        waiting = self.exchanges
        if len(waiting) > 1 or (waiting and waiting[0].unread > MAX_UNREAD) or len(self._after_upgrade) > MAX_UNREAD:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # Replying

    def answered(self, exchange: Exchange) -> None:
        """Go on with the next request: the reply is complete, or was given up."""
        if exchange.is_last:
            # even a client whose request is whole may send: a line break, another request
            self.transport.close(linger=True)
        del self.exchanges[0]
        if self.transport.is_closing():
            self.phase = OVER[self.phase]
            return
        if not exchange.is_whole:
            self.phase = ANSWERED_EARLY[self.phase]
            self._discarded = 0
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(IDLE_SECONDS, self._check_idle)
        self.regulate()
        if self.exchanges:
            self._start(self.exchanges[0])
        elif self._refusal:
            self.refuse(self._refusal)
        elif self.phase is KEPT:
            self.phase = NOT_SWITCHED[self.phase]
            self.data_received(self._take_after_upgrade())

    def _check_idle(self) -> None:
        """Close a connection that was idle for too long. While a request runs, its end sets the timer again."""
        self._idle = None
        left = self._idle_since + IDLE_SECONDS - self.loop.time()
        if self.exchanges or self.phase is HEADERS:
            return
        if left > 0:
            self._idle = self.loop.call_later(left, self._check_idle)
        else:
            self.transport.close(linger=self.phase is DISCARDED)

    def _take_after_upgrade(self) -> bytes:
        data, self._after_upgrade = bytes(self._after_upgrade), bytearray()
        self._header_bytes = 0
        self.regulate()
        return data

    def upgraded(self, exchange: Exchange) -> None:
        """Pass the client's bytes to the protocol of this exchange from now on: the 101 was sent."""
        self.phase = SWITCHED[self.phase]
        exchange.received(self._take_after_upgrade())

    def _refuse_in_turn(self, status: bytes) -> None:
        """Refuse what is being received, after the replies to the requests before it (RFC 9112 9.3.2), and serve nothing after it.

        A reply that has begun is cut off instead: it may go on for hours.
        """
        if self.phase is ENDED:
            return
        self.phase = OVER[self.phase]
        self._stop_timer()
        before = self.exchanges
        if before and not before[-1].is_whole and len(before) > 1:  # its own body is what is refused
            before[-1].hold(-before[-1].held)
            del before[-1]
        if before and before[0].is_whole and not before[0].is_started:
            self._refusal = status
        else:
            self.refuse(status)

    def refuse(self, status: bytes) -> None:
        """Reply with an empty body, and close."""
        if self.transport.is_closing():
            return
        if self.exchanges and self.exchanges[0].is_started:
            self.transport.abort()  # another reply has begun
            return
        self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        self.transport.close(linger=True)

    # Flow control and end

    @property
    def is_choked(self) -> bool:
        """True while the client is behind: wait for `drained`."""
        return self._drained is not None

    async def drained(self) -> None:
        """Return when the client is no longer behind, or is gone."""
        if self._drained is not None:
            await asyncio.shield(self._drained)

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = self.loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    @property
    def is_leaving(self) -> bool:
        """True when the reply that begins now is the last one: the server stops, and no other request has arrived."""
        return self._application.is_leaving and len(self.exchanges) == 1

    def leave(self) -> None:
        """Nothing to send: HTTP/1.1 can tell a client only in a reply."""

    def expects_request(self) -> bool:
        """Return True until the headers of the first request have arrived, while those of a later one arrive, and after a reply."""
        if self.transport.is_closing():
            return False
        if self.phase in (FIRST, HEADERS):
            return True
        return not self.exchanges and self.loop.time() - self._idle_since < KEPT_SECONDS

    def shutdown(self) -> None:
        """Accept no more requests; close once the accepted ones are answered.

        A reply that has begun could not say that the connection ends. After it the client has the time of a kept connection.
        """
        if not self.exchanges:
            self.transport.close(linger=self.phase is DISCARDED)
        elif not self.exchanges[-1].is_started:
            self.exchanges[-1].is_last = True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.phase = OVER[self.phase]
        self._application.connections.discard(self)
        self._stop_timer()
        if self._idle is not None:
            self._idle.cancel()
        for exchange in self.exchanges:
            exchange.lost()
        self.resume_writing()
        self._parser = None  # breaks a reference cycle


_IGNORED_BEFORE_1_1 = (b"expect", b"upgrade")
"""Headers that mean nothing in HTTP/1.0 (RFC 9110 7.8 and 10.1.1)."""


def _refusal_of(target: bytes, headers: list[Header], version: str, asks_upgrade: bool) -> bytes:
    """Return the status with which a request is refused, or b""."""
    if len(headers) > MAX_HEADERS or len(target) + header_bytes(headers) > MAX_HEADER_BYTES:
        return TOO_LARGE
    if version not in _VERSIONS:
        return b"505 HTTP Version Not Supported"
    if not is_known_encoding(headers):
        return b"501 Not Implemented"
    if (
        not _names_one_host(headers, version)
        or (asks_upgrade and _has_body(headers))
        or (version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers))  # RFC 9112 6.1
    ):
        return BAD_REQUEST
    return b""


def _names_one_host(headers: list[Header], version: str) -> bool:
    """Return True for exactly one Host header that is a host (RFC 9112 3.2). Servers and proxies could disagree about any other."""
    hosts = [value for name, value in headers if name == b"host"]
    return is_host(hosts[0]) if len(hosts) == 1 else (not hosts and version == "1.0")


def _has_body(headers: list[Header]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0")) for name, value in headers
    )
