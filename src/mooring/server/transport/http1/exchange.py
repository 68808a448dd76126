"""Exchange one request and its reply on a connection of HTTP/1.1 or 1.0 (RFC 9112).

Rules kept here:
* An exception that reaches this file is a bug of the server: the operator gets the traceback, the client a 500, or the end of the
  connection in the middle of a reply. A header that would split the reply is treated alike.
* A reply, and each further part of it, waits while the client is behind. A waiting reply and a received body count as memory that
  the client makes the server hold (`mooring.server.transport.heldbytes`).
* A large reply is sent in several turns of the event loop.
* A streaming reply is sent in chunks, and over HTTP/1.0 bare: the end of the connection is its end (RFC 9112 6.1 and 6.3).
* `100 Continue` is sent when the handler reads the body (RFC 9110 10.1.1). After a reply that comes first, the server cannot know
  whether the client sends the body, so the connection ends.
* So it does when the rest of the body is more than the connection would discard: a client that learns it from the reply sends no
  further request on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Protocol

from mooring.apimachinery.codec.limits import MAX_BODY
from mooring.server.transport.http import Application, Header, Request, Response, Target, in_pieces, weight
from mooring.server.transport.responsewriter import BareWriter, ResponseWriter, Streamer, UpgradedWriter
from mooring.server.transport.tlsconnection import TlsTransport

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
        # see the last two rules of this file
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
