"""Serve one HTTP/1.1 connection over httptools' parser (RFC 9112, docs/adr/0023).

Rules kept here:
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
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from mooring.apimachinery.codec.limits import MAX_BODY
from mooring.server.transport.http import (
    HEADER_SECONDS,
    IDLE_SECONDS,
    KEPT_SECONDS,
    LINGER_SECONDS,
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
from mooring.server.transport.responsewriter import ResponseWriter, UpgradedWriter
from mooring.server.transport.tlsconnection import ApplicationProtocol, TlsTransport

MAX_DISCARDED = MAX_BODY
"""Bytes of a body that are discarded after the reply, as many as a body may have. Then the connection is soon cut."""
MAX_UNREAD = 64 << 10
"""Bytes of a body that are received before the handler reads it. Then the server stops reading from the client."""

OWS = b" \t"
"""Optional white space around a field value is not part of it (RFC 9112 5). httptools keeps the white space behind it."""

SMALL_HEADERS = 4096
"""Bytes of incomplete headers that do not count as held memory. Nearly all requests arrive in one piece."""
PIPELINED_REQUEST = 2048
"""Bytes of memory that a waiting request with few headers takes."""

_VERSIONS = ("1.0", "1.1")
"""Versions that are served. httptools accepts others, and would handle them as if they were these."""


class Http1Connection(ApplicationProtocol):
    """One HTTP/1.1 connection, from the TLS handshake to its end."""

    __slots__ = (
        "_after_upgrade", "_application", "_counted", "_discarded", "_drained", "_header_bytes", "_headers", "_idle",
        "_idle_since", "_in_headers", "_is_paused", "_parser", "_refusal", "_target", "_timer", "exchanges", "loop",
        "transport", "writer",
    )  # fmt: skip

    def __init__(self, application: Application) -> None:
        self._application = application
        self.writer: ResponseWriter | None = None
        self.exchanges: list[Exchange] = []
        """Requests in order: the first is being answered, the last is being received."""
        self._headers: list[Header] = []
        self._target = b""
        self._in_headers = False
        self._header_bytes = 0
        self._counted = 0
        self._discarded = 0
        self._after_upgrade: bytearray | None = None
        self._is_paused = False
        self._drained: asyncio.Future[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._refusal = b""

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
        if isinstance(self.writer, UpgradedWriter):
            self.writer.received(data)
            return
        if self._refusal:
            return  # nothing after a refused request is served
        self._header_bytes += len(data)
        if self._after_upgrade is None:
            self._parse(data)
        else:
            self._after_upgrade += data
            self.regulate()
        if self._counted or self._header_bytes > SMALL_HEADERS:
            counted, self._counted = self._counted, self._header_bytes
            self.transport.hold(self._counted - counted)
        if self._header_bytes > MAX_HEADER_BYTES and self._after_upgrade is None:
            self._refuse_headers()
        elif self._in_headers and self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._after_upgrade = bytearray(data[upgrade.args[0] :])
        except HttpParserError:
            self._refuse_in_turn(b"400 Bad Request")

    def on_message_begin(self) -> None:
        self._headers = []
        self._target = b""
        self._in_headers = True
        self._discarded = 0

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # trailers are discarded: they must not join the headers of a running request
            self._headers.append((name.lower(), value.strip(OWS)))

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        self._in_headers = False
        self._stop_timer()
        headers, self._headers = self._headers, []
        parser = self._parser
        version: str = parser.get_http_version()
        if len(headers) > MAX_HEADERS or len(self._target) + header_bytes(headers) > MAX_HEADER_BYTES:
            self._refuse_headers()
        elif version not in _VERSIONS:
            self._refuse_in_turn(b"505 HTTP Version Not Supported")
        elif not is_known_encoding(headers):
            self._refuse_in_turn(b"501 Not Implemented")
        elif (
            not _names_one_host(headers, version)
            or (parser.should_upgrade() and _has_body(headers))
            or (version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers))  # RFC 9112 6.1
        ):
            self._refuse_in_turn(b"400 Bad Request")
        target = read_target(self._target, next((value for name, value in headers if name == b"host"), b""))
        if target is None:
            self._refuse_in_turn(b"400 Bad Request")
        if target is None or self._refusal or self.transport.is_closing():
            return
        is_last = version == "1.0" or not parser.should_keep_alive()
        exchange = Exchange(self, parser.get_method().decode(), target, headers, is_last)
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
        if self.exchanges and not self._refusal:
            self.exchanges[-1].arrived(body)
            self.regulate()
            return
        before = self._discarded
        self._discarded += len(body)
        if before <= MAX_DISCARDED < self._discarded:
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def on_message_complete(self) -> None:
        self._stop_timer()
        if self.exchanges and not self._refusal:
            self.exchanges[-1].ended()

    def regulate(self) -> None:
        """Pause reading while one request waits for another, or while too much of a body or behind an upgrade is unread; else
        resume."""
        waiting = self.exchanges
        is_paused = (
            len(waiting) > 1
            or (bool(waiting) and waiting[0].unread > MAX_UNREAD)
            or len(self._after_upgrade or b"") > MAX_UNREAD
        )
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            if is_paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # Replying

    def answered(self, exchange: Exchange) -> None:
        """Go on with the next request: the reply is complete, or was given up."""
        if exchange.is_last:
            self.transport.close()
        del self.exchanges[0]
        if self.transport.is_closing():
            return
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(IDLE_SECONDS, self._check_idle)
        self.regulate()
        if self.exchanges:
            self._start(self.exchanges[0])
        elif self._refusal:
            self.refuse(self._refusal)
        elif self._after_upgrade is not None:
            self.data_received(self._take_after_upgrade())

    def _check_idle(self) -> None:
        """Close a connection that was idle for too long. While a request runs, its end sets the timer again."""
        self._idle = None
        left = self._idle_since + IDLE_SECONDS - self.loop.time()
        if self.exchanges or self._in_headers:
            return
        if left > 0:
            self._idle = self.loop.call_later(left, self._check_idle)
        else:
            self.transport.close()

    def _take_after_upgrade(self) -> bytes:
        data, self._after_upgrade = bytes(self._after_upgrade or b""), None
        self._header_bytes = 0
        self.regulate()
        return data

    def upgraded(self, writer: UpgradedWriter) -> None:
        """Pass the client's bytes to `writer` from now on: the 101 was sent."""
        self.writer = writer
        writer.received(self._take_after_upgrade())

    def _refuse_headers(self) -> None:
        self._refuse_in_turn(b"431 Request Header Fields Too Large")

    def _refuse_in_turn(self, status: bytes) -> None:
        """Refuse what is being received, after the replies to the requests before it (RFC 9112 9.3.2), and serve nothing after it.

        A reply that has begun is cut off instead: it may go on for hours.
        """
        self._stop_timer()
        self._in_headers = False
        before = self.exchanges
        if before and not before[-1].is_whole and len(before) > 1:  # its own body is what is refused
            before[-1].hold(-before[-1].held)
            del before[-1]
        if before and before[0].is_whole and not before[0].is_started:
            self._refusal = self._refusal or status
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
        self.transport.close()

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
        if self._timer is not None:
            return True
        return not self.exchanges and self.loop.time() - self._idle_since < KEPT_SECONDS

    def shutdown(self) -> None:
        """Accept no more requests; close once the accepted ones are answered.

        A reply that has begun could not say that the connection ends. After it the client has the time of a kept connection.
        """
        if not self.exchanges:
            self.transport.close()
        elif not self.exchanges[-1].is_started:
            self.exchanges[-1].is_last = True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._application.connections.discard(self)
        self._stop_timer()
        if self._idle is not None:
            self._idle.cancel()
        for exchange in self.exchanges:
            exchange.lost()
        if self.writer is not None:
            self.writer.lost()
        self.resume_writing()
        self._parser = None  # breaks a reference cycle


def _names_one_host(headers: list[Header], version: str) -> bool:
    """Return True for exactly one Host header that is a host (RFC 9112 3.2). Servers and proxies could disagree about any other."""
    hosts = [value for name, value in headers if name == b"host"]
    return is_host(hosts[0]) if len(hosts) == 1 else (not hosts and version == "1.0")


def _has_body(headers: list[Header]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0")) for name, value in headers
    )
