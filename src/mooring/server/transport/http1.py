"""HTTP/1.1 (RFC 9112): one connection over httptools' parser, and the exchange of a request and its reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus
from typing import Any, Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from mooring.apimachinery.codec.json import MAX_BODY
from mooring.server.transport.http import (
    HEADER_SECONDS,
    IDLE_SECONDS,
    KEPT_SECONDS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    Application,
    Request,
    Response,
    in_pieces,
    weight,
)
from mooring.server.transport.httpgrammar import Header, Target, header_bytes, is_host, is_known_encoding, read_target
from mooring.server.transport.responsewriter import BareWriter, ResponseWriter, Streamer, UpgradedWriter
from mooring.server.transport.tlsconnection import ApplicationProtocol, TlsTransport

# Exchange one request and its reply on a connection of HTTP/1.1 or 1.0 (RFC 9112).
#
# Rules kept here:
# * An exception that reaches this file is a bug of the server: the operator gets the traceback, the client a 500, or the end of
#   the connection in the middle of a reply. A header that would split the reply is treated alike.
# * A reply, and each further part of it, waits while the client is behind. A waiting reply and a received body count as memory
#   that the client makes the server hold (`mooring.server.transport.memorybudget`).
# * A large reply is sent in several turns of the event loop.
# * A streaming reply is sent in chunks, and over HTTP/1.0 bare: the end of the connection is its end (RFC 9112 6.1 and 6.3).
# * `100 Continue` is sent when the handler reads the body (RFC 9110 10.1.1). After a reply that comes first, the server cannot
#   know whether the client sends the body, so the connection ends.
# * So it does when the rest of the body is more than the connection would discard: a client that learns it from the reply sends
#   no further request on it.

log = logging.getLogger("mooring.server")

END_SECONDS = 5.0
"""Time that a client has to read the end of a stream before it is cut off."""

BYTES_PER_TURN = 256 << 10
"""Body bytes sent to one client in one turn of the event loop, as over HTTP/2: 0.3 ms of encryption."""

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in HTTPStatus}
_NO_BODY = (204, 304)
"""Status codes without content-length (RFC 9110 8.6): for 304 it would be the length of the 200 reply."""


def reply_head(status: int, headers: tuple[Header, ...], *more: Header) -> bytes:
    """Return the status line and headers, with the empty line. Raises ValueError for a header that holds a line break or NUL."""
    parts = [_STATUS_LINES[status]]
    for name, value in headers:
        parts += (b"\r\n", name, b": ", value)
    for name, value in more:
        parts += (b"\r\n", name, b": ", value)
    parts.append(b"\r\n\r\n")
    head = b"".join(parts)
    lines = len(headers) + len(more) + 2
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise ValueError("a header of the reply holds a line break or NUL")
    return head


class ExchangeCarrier(Protocol):
    """The connection that carries an exchange: `http1.connection.Http1Connection`."""

    transport: TlsTransport
    loop: asyncio.AbstractEventLoop

    @property
    def is_choked(self) -> bool:
        """True while the client is behind."""

    @property
    def is_leaving(self) -> bool:
        """True when the next reply is to end the connection, because the server stops."""

    async def drained(self) -> None:
        """Return when the client is no longer behind, or is gone."""

    def regulate(self) -> None:
        """Read from the client, or stop reading, as unread bodies and waiting requests require."""

    def refuse(self, status: bytes) -> None:
        """Reply with an empty body, and close."""

    def upgraded(self, exchange: Exchange) -> None:
        """Pass the client's bytes to `exchange.received` from now on."""

    def answered(self, exchange: Exchange) -> None:
        """Go on with the next request: this exchange has ended."""


class Exchange:
    """One request and its reply."""

    __slots__ = (
        "_carrier", "_pieces", "_sent_continue", "_takes_chunks", "_wake", "_writer", "held", "is_last", "is_lost", "is_started",
        "is_whole", "request", "task", "unread",
    )  # fmt: skip

    def __init__(
        self,
        carrier: ExchangeCarrier,
        method: str,
        target: Target,
        headers: list[Header],
        is_last: bool,
        *,
        takes_chunks: bool = True,
    ) -> None:
        """`takes_chunks`: false for a client of HTTP/1.0, to which the last reply of a connection is sent alone."""
        self._carrier = carrier
        self._takes_chunks = takes_chunks
        self.request = Request(method, *target, headers, carrier.transport.connection, self.receive)
        self.is_last = is_last
        """True when the connection ends after this exchange."""
        self.is_whole = False
        """True once the whole request was received."""
        self.is_started = False
        """True once the head of the reply was sent."""
        self.is_lost = False
        """True once the client is gone."""
        self.unread = 0
        """Bytes of the body that were received and not read by the handler."""
        self.task: asyncio.Task[None]
        """Task that answers the request, from when it is this request's turn."""
        self.held = 0
        """Bytes that count as held memory until the exchange has ended."""
        self._sent_continue = False
        self._pieces: list[bytes] = []
        self._wake: asyncio.Future[None] | None = None
        self._writer: ResponseWriter | None = None

    def arrived(self, data: bytes) -> None:
        """Add a piece of the body."""
        self._pieces.append(data)
        self.unread += len(data)
        self.hold(len(data))
        self._wake_waiter()

    def hold(self, octets: int) -> None:
        """Count bytes as held memory until the exchange has ended."""
        self.held += octets
        self._carrier.transport.hold(octets)

    def ended(self) -> None:
        """Note that the request is whole."""
        self.is_whole = True
        self._wake_waiter()

    def lost(self) -> None:
        """Note that the client is gone."""
        self.is_lost = True
        self._wake_waiter()
        if self._writer is not None:
            self._writer.lost()

    def received(self, data: bytes) -> None:
        """Pass bytes of the client to the protocol to which the connection was upgraded."""
        if isinstance(self._writer, UpgradedWriter):
            self._writer.received(data)

    def _wake_waiter(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        self._wake = None

    async def receive(self) -> tuple[bytes, bool] | None:
        """Return the next piece of the body and whether more follows, or None when the client is gone."""
        if self._expects_continue():
            self._sent_continue = True
            self._carrier.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._pieces or self.is_whole or self.is_lost):
            self._wake = self._carrier.loop.create_future()
            await self._wake
        if self.is_lost:
            return None
        body, self._pieces, self.unread = b"".join(self._pieces), [], 0
        self._carrier.regulate()
        return body, not self.is_whole

    def _expects_continue(self) -> bool:
        """Return True while the client waits for `100 Continue` before it sends the body (RFC 9110 10.1.1)."""
        if self.is_whole or self._pieces or self._sent_continue:
            return False
        return self.request.header(b"expect").lower() == "100-continue"

    def _has_too_much_left(self) -> bool:
        """Return True when the body is declared longer than any that is discarded (see `Http1Connection.on_body`)."""
        return not self.is_whole and int(self.request.header(b"content-length") or 0) > MAX_BODY

    async def run(self, application: Application) -> None:
        """Answer the request."""
        carrier = self._carrier
        try:
            response = await application.answer(self.request)
            if response.stream is not None:
                await self._stream(response, response.stream)
            else:
                await self._reply(response)
        except Exception:  # handlers turn their errors into replies, so this is a bug; other requests must go on
            log.exception("a request could not be answered")
            if self.is_started:
                carrier.transport.close()
            else:
                carrier.refuse(b"500 Internal Server Error")
        finally:
            self.request.close()
            del self.request  # breaks a reference cycle, so that the garbage collector has no work
            if self.held:
                carrier.transport.hold(-self.held)
            application.tasks.discard(self.task)
            carrier.answered(self)

    async def _reply(self, response: Response) -> None:
        pieces, size = in_pieces(response.body)
        is_mute = self.request.method == "HEAD"
        length = () if response.status in _NO_BODY else ((b"content-length", b"%d" % size),)
        if self._carrier.is_choked:
            self.hold(weight(response.body))
        if await self._begin(response, *length):
            if not is_mute:
                await self._send(pieces, weight(response.body))
            if response.at_once:
                self._carrier.transport.flush()

    async def _send(self, pieces: Iterable[bytes], held: int) -> None:
        """Send a body as the client takes it. `held`: bytes counted as held memory once it has to wait."""
        transport = self._carrier.transport
        left = BYTES_PER_TURN
        is_counted = False
        for piece in pieces:
            for start in range(0, len(piece), BYTES_PER_TURN):
                part = piece if len(piece) <= BYTES_PER_TURN else memoryview(piece)[start : start + BYTES_PER_TURN]
                left -= len(part)
                if left < 0:
                    # A large reply is sent in several turns of the event loop, so that it delays no other request.
                    left = BYTES_PER_TURN - len(part)
                    transport.flush()
                    if not self._carrier.is_choked:
                        await asyncio.sleep(0)
                    elif not is_counted:
                        is_counted = True
                        self.hold(held)
                    if not await self._has_room():
                        return
                transport.write(part)

    async def _begin(self, response: Response, *more: Header) -> bool:
        """Send the head of the reply. Return False when the client is gone."""
        if (self._carrier.is_choked or self.is_lost) and not await self._has_room():
            return False
        # Whether a client that waits for `100 Continue` sends its body is not known, and a body that is too long is not
        # discarded: the client learns from the reply that the connection closes.
        self.is_last = self.is_last or self._expects_continue() or self._carrier.is_leaving or self._has_too_much_left()
        if self.is_last and response.upgrade is None:
            more = (*more, (b"connection", b"close"))
        head = reply_head(response.status, response.headers, *more)
        self.is_started = True
        self._carrier.transport.write(head)
        return True

    async def _has_room(self) -> bool:
        """Wait until the client has taken enough of what was sent. Return False when it is gone."""
        if not self.is_lost:
            await self._carrier.drained()
        return not self.is_lost

    async def _stream(self, response: Response, stream: Streamer) -> None:
        """Send a streaming reply, as chunks or in the protocol to which the connection is upgraded."""
        carrier, transport = self._carrier, self._carrier.transport
        is_chunked = response.upgrade is None and self._takes_chunks
        coding = ((b"transfer-encoding", b"chunked"),) if is_chunked else ()
        await self._begin(response, *coding)
        # A watch may last an hour: keep what the audit record needs, and no credentials.
        self.request.headers = [one for one in self.request.headers if one[0] == b"user-agent"]
        if response.upgrade is None:
            writer = self._writer = ResponseWriter(transport) if is_chunked else BareWriter(transport)
        else:
            self.is_last = True
            writer = self._writer = response.upgrade(transport)
            carrier.upgraded(self)
        try:
            await stream(writer)
        finally:
            writer.end()
        deadline = carrier.loop.call_later(END_SECONDS, transport.abort)
        try:
            if isinstance(writer, UpgradedWriter):
                await writer.leave()
            else:
                self._writer = None
                if await self._has_room() and is_chunked:
                    transport.write(b"0\r\n\r\n")
        finally:
            deadline.cancel()


# Serve one HTTP/1.1 connection over httptools' parser (RFC 9112, docs/adr/0023).
#
# Rules kept here:
# * The connection is in one `ConnectionPhase`: what the next bytes of the client are. Eight events move it, each by its table.
# * Header bytes, unread and discarded body bytes, the time that headers may take, and idle time are bounded.
# * Requests of a connection are answered one after another, in order. Nothing is read while one waits for another.
# * Bytes after a request that asks for an upgrade are kept until the reply is known: after a 101 they belong to the new protocol,
#   after any other reply they are the next request. When there are many, the server stops reading. Such a request may have no
#   body, because httptools would leave the body among these bytes, and it would be read as a request.
# * When the server stops, the next reply says that the connection ends, and a client is not cut off in the middle of its work:
#   its connection is closed once it was silent for `KEPT_SECONDS`. No request is lost unless it crosses such a close.
# * Waiting requests and incomplete headers count as memory that the client makes the server hold
#   (`mooring.server.transport.memorybudget`).
# * A request sets no timer. The idle timer runs on while requests arrive and is checked when it fires; the header timer is set
#   only when headers do not arrive in one piece.
#
# httptools implements the grammar and calls the `on_…` methods.

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
        # Trailers are discarded: they must not join the headers of a running request.
        if self.phase is HEADERS:
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
            # A request that waits for another one takes memory, which the client makes the server hold.
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
        # The rest of the body is still on its way. It is discarded, so that it is not parsed as a request.
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
            # The reply was not a 101, so the bytes behind the request are the next request.
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
            # The requests before are answered first: a client would take the refusal for the reply to one of them.
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
