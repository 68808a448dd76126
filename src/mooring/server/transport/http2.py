"""HTTP/2 (RFC 9113): one connection over h2, its streams, and the guard against floods."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hpack.hpack import encode_integer
from hyperframe.frame import GoAwayFrame

from mooring.server.transport.http import (
    HEADER_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    Application,
    Header,
    Request,
    Response,
    has_control_character,
    header_bytes,
    is_host,
    read_target,
    weight,
)
from mooring.server.transport.listener import MAX_CONNECTIONS
from mooring.server.transport.responsewriter import ResponseWriter
from mooring.server.transport.tlsconnection import ApplicationProtocol, ReaderProgress, TlsConnection, TlsTransport

# Split an HTTP/2 client's bytes into frames, and detect floods of frames, resets and headers.
#
# Source: RFC 9113 4 to 6 and 10.5; the floods of CVE-2019-9511 to 9518, CVE-2023-44487 and CVE-2023-45288.
#
# Rules kept here:
# * Only whole frames are returned, one at a time, so that the caller bounds its work in one turn of the event loop.
# * A frame is at most `MAX_FRAME`, and a header block no larger than HTTP/1.1 allows, however many frames carry it.
# * Frames that cause work and carry no request or reply (PING, SETTINGS, PRIORITY, small DATA, …) have a budget that refills with
#   time. So have resets of streams. The budget of WINDOW_UPDATE grows with the bytes that were sent.
# * A GOAWAY of the client means that it opens no more streams. Open streams end normally.
#
# Pure: bytes and the time are arguments, frames are results.

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = 9
MAX_FRAME = 1 << 14
"""Bytes of a frame: the default that every peer may send (RFC 9113 6.5.2), and the size of a TLS record."""
MAX_BLOCK = 64 << 10
"""Bytes of one encoded header block, as many as HTTP/1.1 headers may have (`http.MAX_HEADER_BYTES`)."""
SMALL_DATA = 1024
"""Bytes below which a DATA frame that does not end its stream is charged: it takes as long as one of 16 kB."""
FREE_FRAMES = 1000
"""Frames that are free at once: the end of 250 watches with Go's PING beside each RST_STREAM, four times over."""
FRAMES_PER_SECOND = 100.0
"""Rate after that. Each takes 20 µs of the event loop. client-go sends one PING in 30 s."""
SETTINGS_COST = 10
"""Charge of a SETTINGS frame, in frames: it may change the window of every stream."""
BYTES_PER_UPDATE = 1024
"""Bytes sent for which one WINDOW_UPDATE is free. Go's client sends two for 4 kB: for the stream and the connection."""
MAX_UPDATES = 20_000
"""Bound of the free updates: two for each 4 kB of the largest list that a client holds unread."""
FREE_RESETS = 1000
"""Streams that a client may reset at once: all watches of a connection, four times over."""
RESETS_PER_SECOND = 100.0
"""Rate after that. kube-apiserver has no such limit: Go bounds running handlers instead, as `stream.MAX_STREAMS` does too."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 0x1, 0x4


class ClientProtocolError(Exception):
    """The client broke the protocol or a limit. The connection ends with `code`."""

    def __init__(self, code: ErrorCodes, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Budget:
    """Token bucket: `size` at once, then `rate` a second."""

    __slots__ = ("_at", "_left", "_rate", "_size")

    def __init__(self, size: int, rate: float, now: float) -> None:
        self._left = float(size)
        self._size = size
        self._rate = rate
        self._at = now

    def spend(self, cost: int, now: float) -> bool:
        """Spend `cost`. Return False when the budget is exceeded."""
        self._left = min(self._size, self._left + (now - self._at) * self._rate) - cost
        self._at = now
        return self._left >= 0


class FloodGuard:
    """Frame reader of one connection. `now` is seconds of a monotonic clock."""

    __slots__ = ("_block", "_budget", "_held", "_resets", "_started", "_updates", "block_since", "leaving")

    def __init__(self, now: float) -> None:
        self._held = bytearray()
        self._started = False
        self._block = -1
        self._updates = 0.0
        self._budget = Budget(FREE_FRAMES, FRAMES_PER_SECOND, now)
        self._resets = Budget(FREE_RESETS, RESETS_PER_SECOND, now)
        self.block_since = 0.0
        """Time at which the incomplete header block began; 0 when there is none."""
        self.leaving = False
        """True once the client has sent GOAWAY."""

    def take(self, data: bytes) -> None:
        """Add bytes of the client."""
        self._held += data

    @property
    def held(self) -> int:
        """Bytes of an incomplete frame and of an incomplete header block."""
        return len(self._held) + max(self._block, 0)

    def sent(self, size: int) -> None:
        """Note bytes of bodies that were sent, for which the client may send window updates."""
        self._updates = min(MAX_UPDATES, self._updates + size / BYTES_PER_UPDATE)

    def frame(self, now: float) -> bytes | None:
        """Return the next whole frame, the first one with the preface before it. Raises ClientProtocolError."""
        while True:
            start = 0 if self._started else len(PREFACE)
            held = self._held
            if start and not PREFACE.startswith(held[:start]):
                raise ClientProtocolError(ErrorCodes.PROTOCOL_ERROR, "this is not HTTP/2")
            if len(held) < start + FRAME_HEADER:
                return None
            length = int.from_bytes(held[start : start + 3])
            kind, flags = held[start + 3], held[start + 4]
            if length > MAX_FRAME:
                raise ClientProtocolError(ErrorCodes.FRAME_SIZE_ERROR, "the frame is too large")
            if start and kind != SETTINGS:
                raise ClientProtocolError(ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            end = start + FRAME_HEADER + length
            if len(held) < end:
                return None
            frame = bytes(held[:end])
            del held[:end]
            self._started = True
            self._charge(kind, flags, length, now)
            if kind != GOAWAY:
                return frame
            self.leaving = True

    def useless(self, now: float) -> None:
        """Charge for a frame that has no effect. Raises ClientProtocolError."""
        self._spend(1, now)

    def reset(self, now: float) -> None:
        """Charge for a stream that was reset. Raises ClientProtocolError."""
        if not self._resets.spend(1, now):
            raise ClientProtocolError(ErrorCodes.ENHANCE_YOUR_CALM, "too many streams are reset")

    def _charge(self, kind: int, flags: int, length: int, now: float) -> None:
        if kind == HEADERS or (kind == CONTINUATION and self._block >= 0):
            self._add_to_block(kind, flags, length, now)
        elif self._block >= 0:
            raise ClientProtocolError(ErrorCodes.PROTOCOL_ERROR, "a header block is interrupted")
        elif kind == DATA:
            if length < SMALL_DATA and not flags & END_STREAM:
                self._spend(1, now)
        elif kind == RST_STREAM:
            self.reset(now)
        elif kind == WINDOW_UPDATE and self._updates >= 1:
            self._updates -= 1
        else:
            self._spend(SETTINGS_COST if kind == SETTINGS else 1, now)

    def _add_to_block(self, kind: int, flags: int, length: int, now: float) -> None:
        if kind == CONTINUATION:
            self._spend(1, now)
        elif self._block >= 0:
            raise ClientProtocolError(ErrorCodes.PROTOCOL_ERROR, "a header block is interrupted")
        else:
            self._block = 0
            self.block_since = now
        self._block += length
        if self._block > MAX_BLOCK:
            raise ClientProtocolError(ErrorCodes.ENHANCE_YOUR_CALM, "the header block is too large")
        if flags & END_HEADERS:
            self._block = -1
            self.block_since = 0.0

    def _spend(self, cost: int, now: float) -> None:
        if not self._budget.spend(cost, now):
            raise ClientProtocolError(ErrorCodes.ENHANCE_YOUR_CALM, "too many frames that bring nothing")


# Exchange one request and its reply on a stream of an HTTP/2 connection.
#
# Rules kept here:
# * A stream is small, because a watch keeps it for an hour.
# * No piece of a reply is copied before it is sent.
# * Tasks that wait for the client are woken when it is gone.

MAX_STREAMS = 250
"""Requests and watches of one connection at a time: Go's default. With kube-apiserver's 100 a thousand watches would need ten
connections, each of which costs as much memory as four streams."""
STREAM_WINDOW = 256 << 10
"""Bytes of a body that the client may send before the handler reads it, as in kube-apiserver: 99 of 100 bodies are smaller."""
TABLE = 4096
"""Bytes of the HPACK table of each side: the default of RFC 9113. Each reply searches the server's."""
SWEEP = 64
"""Requests between two calls of h2's count of open streams, which visits every stream and forgets the closed ones."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
"""Methods that are served, those that the HTTP/1.1 parser accepts too."""
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_outbound_headers=False,  # `reply_headers` makes valid headers, and validation costs a tenth of each request
    normalize_outbound_headers=False,
)
_REPEATED = frozenset({b"content-type", b"cache-control", b"content-encoding", b"vary", b"www-authenticate"})
"""Headers that the client shall index. Others would only displace these from its table."""
_CONNECTION_HEADERS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})


NEVER_INDEXED = b"\x10"
"""First byte of a header that is never indexed, with a literal name (RFC 7541 6.2.3)."""


class _Decoder(Decoder):
    """hpack's decoder, which also strips white space around values, as HTTP/1.1 parsers do.

    RFC 9113 8.2.1 forbids such white space, and h2 would end the connection with every watch on it. Go's server accepts it, and
    Go's client sends a User-Agent as given: the e2e tests use their titles, some of which end with a space.
    """

    decoded = 0
    """Headers so far."""

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        headers = [
            header
            if header[1] == (bare := header[1].strip(b" \t")) or header[0].startswith(b":")
            else HeaderTuple(header[0], bare)
            for header in super().decode(data, raw)
        ]
        self.decoded += len(headers)
        return headers


class _Encoder(Encoder):
    """hpack's encoder, which writes headers that are never indexed as literals.

    They are not searched in the table, which cannot contain them, and not Huffman-coded: that would make a reply of 2 kB some 40
    bytes shorter, and take a tenth of the reply's processor time.
    """

    def encode(self, headers: Any, huffman: bool = True) -> bytes:  # HeaderTuples only, as `reply_headers` makes them
        parts = [bytes(super().encode([]))] if self.header_table.resized else []  # only the new table size
        for header in headers:
            if header.indexable:
                parts.append(self.add(header, False, huffman))
            else:
                parts += (NEVER_INDEXED, _length(len(header[0])), header[0], _length(len(header[1])), header[1])
        return b"".join(parts)


@lru_cache(maxsize=256)
def _length(size: int) -> bytes:
    """Encode the length of a string without Huffman coding (RFC 7541 5.2)."""
    return bytes(encode_integer(size, 7))


class H2(H2Connection):
    """h2's connection, which remembers fewer closed streams than 65 536 and does not count open ones at each request."""

    MAX_CLOSED_STREAMS = 4 * MAX_STREAMS
    DEFAULT_MAX_HEADER_LIST_SIZE = MAX_HEADER_BYTES + 32 * MAX_HEADERS
    """Room for as many headers as over HTTP/1.1: this size counts 32 bytes for each header (RFC 9113 6.5.2). A larger list ends the
connection; one that is too large by the rule of HTTP/1.1 is answered 431."""

    def __init__(self) -> None:
        super().__init__(_CONFIG)
        self.encoder = _Encoder()
        self._headers = self.decoder = _Decoder(self.DEFAULT_MAX_HEADER_LIST_SIZE)
        self._until_sweep = SWEEP
        self.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = MAX_STREAMS
        self.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = STREAM_WINDOW
        self.local_settings.acknowledge()  # so that they apply from the first frame

    @property
    def decoded(self) -> int:
        """Headers received so far, those of streams that have ended and trailers included."""
        return self._headers.decoded

    def bound_tables(self) -> None:
        """Keep the HPACK table of the server at its usual size when the client allows a larger one."""
        if self.encoder.header_table_size > TABLE:
            self.encoder.header_table_size = TABLE

    @property
    def open_inbound_streams(self) -> int:
        """Number that h2 compares with its limit: always 0, because the server refuses the stream and not the connection."""
        self._until_sweep -= 1
        if not self._until_sweep:
            self._until_sweep = SWEEP
            _ = super().open_inbound_streams  # h2 forgets closed streams while it counts open ones
        return 0


class StreamCarrier(Protocol):
    """The connection that carries a stream: `http2.connection.Http2Connection`."""

    def acknowledge(self, number: int, size: int) -> None:
        """Let the client send as many bytes as were read of a body."""

    def send_now(self, stream: Http2Stream, data: bytes) -> bool:
        """Send `data`, and the end of the reply if it is complete. Return False, having sent nothing, when it must wait."""

    def hold(self, size: int) -> bool:
        """Count bytes that wait. Return False when they are too many and the connection ends."""

    def wants_to_send(self, stream: Http2Stream) -> None:
        """Give the stream a turn to send."""

    def cut(self, stream: Http2Stream) -> None:
        """Reset the stream."""


class Http2Stream:
    """One request and its reply; the outlet of its `ResponseWriter` if the reply streams."""

    __slots__ = (
        "_ended",
        "_is_over",
        "_pieces",
        "_unsent",
        "_wake",
        "carrier",
        "held",
        "is_mute",
        "is_served",
        "missing",
        "number",
        "progress",
        "taken",
        "waiting",
        "writer",
    )

    def __init__(self, carrier: StreamCarrier, number: int) -> None:
        self.carrier = carrier
        self.number = number
        self.writer: ResponseWriter | None = None
        self.missing = 0
        """Bytes of the content-length that have not arrived. Below 0 without one."""
        self.waiting = 0
        """Bytes of the reply that are not sent yet."""
        self.is_mute = False
        """True when nothing more may be sent: the client is gone, or takes no body."""
        self.held = 0
        """Bytes that count as held memory until the stream has ended: of the received body, and of a waiting reply."""
        self.taken = 0
        """Bytes of the reply that were sent after they had waited."""
        self.progress: ReaderProgress | None = None
        """Progress of the client since it shut this stream's window while bytes wait."""
        self._unsent: deque[memoryview] | None = None
        self._is_over = False  # the reply is complete
        self._pieces: list[tuple[bytes, int]] | None = None
        self._ended = False  # the request is complete
        self.is_served = False
        """True once the handler has ended."""
        self._wake: asyncio.Future[None] | None = None

    # The request

    def arrived(self, data: bytes, size: int) -> None:
        """Add a piece of the body, which took `size` bytes of the flow control windows."""
        if self._pieces is None:
            self._pieces = []
        self._pieces.append((data, size))
        self.held += size
        self._wake_waiter()

    def ended(self) -> None:
        """Note that the request is whole."""
        self._ended = True
        self._wake_waiter()

    @property
    def unread(self) -> int:
        """Bytes of the flow control windows that unread pieces take."""
        return sum(size for _, size in self._pieces or ())

    @property
    def is_whole(self) -> bool:
        """True once the request was received to its end."""
        return self._ended

    async def receive(self) -> tuple[bytes, bool] | None:
        """Return the next piece of the body and whether more follows, or None when the client is gone."""
        while not (self._pieces or self._ended or self.is_mute):
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if self.is_mute:
            return None
        if not self._pieces:
            return b"", False
        pieces, self._pieces = self._pieces, None
        self.carrier.acknowledge(self.number, sum(size for _, size in pieces))
        body = pieces[0][0] if len(pieces) == 1 else b"".join(data for data, _ in pieces)
        return body, not self._ended

    def _wake_waiter(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        self._wake = None

    # The reply

    def is_closing(self) -> bool:
        return self.is_mute

    def write(self, data: bytes) -> None:
        """Send a piece of the body as soon as the client takes it."""
        if self.is_mute or not data:
            return
        if self._unsent is None and self.carrier.send_now(self, data):
            return
        if self.carrier.hold(len(data)):
            if self._unsent is None:
                self._unsent = deque()
            self._unsent.append(memoryview(data))
            self.waiting += len(data)
            self.carrier.wants_to_send(self)

    async def drained(self) -> None:
        """Return when all that was written is sent, or when the client is gone. Always gives way to other tasks."""
        await asyncio.sleep(0)
        while self._unsent is not None:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def is_stalled(self, now: float) -> bool:
        """Return True when the client has taken too little of the waiting bytes for too long."""
        if self.progress is None:
            self.progress = ReaderProgress(self.taken, self.waiting, now)
        return self.progress.is_stalled(self.taken, self.waiting, now)

    def finish(self, data: bytes = b"", *, sent_end: bool = False) -> None:
        """Send the rest of the body, and its end; with `sent_end` the headers have ended the reply already."""
        self._is_over = True
        if self.is_mute or sent_end:
            return
        if self._unsent is None and self.carrier.send_now(self, data):
            return
        if data:
            self.write(data)
        else:
            self.carrier.wants_to_send(self)

    @property
    def is_over(self) -> bool:
        """True once the reply is complete."""
        return self._is_over

    @property
    def is_sent(self) -> bool:
        """True once nothing is left to send."""
        return self.is_mute or (self._is_over and self._unsent is None)

    def next_piece(self, size: int) -> memoryview:
        """Take up to `size` of the waiting bytes, for sending."""
        if self._unsent is None:
            return memoryview(b"")
        piece = self._unsent[0]
        if len(piece) <= size:
            self._unsent.popleft()
            if not self._unsent:
                self._unsent = None
                self._wake_waiter()
        else:
            self._unsent[0] = piece[size:]
            piece = piece[:size]
        self.waiting -= len(piece)
        self.taken += len(piece)
        return piece

    def abort(self) -> None:
        """Reset this stream: its client is too far behind."""
        self.carrier.cut(self)

    def lost(self) -> None:
        """Note that the client is gone, or has reset the stream."""
        self.is_mute = True
        self._ended = True
        self._pieces = None
        self._unsent = None
        self.waiting = 0
        self._wake_waiter()
        if self.writer is not None:
            self.writer.lost()


class Http2ResponseWriter(ResponseWriter):
    """Writer of a streaming reply as DATA frames, without a transfer coding."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        self.send(data)


def request_of(
    sent: Sequence[Header], connection: TlsConnection, stream: Http2Stream, *, is_empty: bool = False
) -> tuple[Request, int]:
    """Return the request, and the status with which it is refused before any handler, or 0. `is_empty`: without a body."""
    pseudo = {name: value for name, value in sent if name[:1] == b":"}
    headers = [(name, value) for name, value in sent if name[:1] != b":"]
    if b":authority" in pseudo and not any(name == b"host" for name, _ in headers):
        headers.insert(0, (b"host", pseudo[b":authority"]))
    method, target, refusal = pseudo[b":method"].decode("latin-1"), read_target(pseudo.get(b":path", b"")), 0
    hosts = {value for name, value in headers if name == b"host"} | {pseudo.get(b":authority", b"")} - {b""}
    if target is None or method not in METHODS or len(hosts) > 1 or not all(map(is_host, hosts)):
        refusal = 400
    if has_control_character(headers):
        refusal = 400
    if is_empty and any(name == b"content-length" and value.strip(b"0") for name, value in headers):
        refusal = 400  # RFC 9113 8.1.1: the length is not that of the body; h2 compares it with DATA frames only
    if len(headers) > MAX_HEADERS or header_bytes(headers) > MAX_HEADER_BYTES:
        refusal = 431
    return Request(method, *(target or ("", b"")), headers, connection, stream.receive), refusal


def reply_headers(response: Response, length: int | None) -> list[HeaderTuple]:
    """Return the headers of a reply in HTTP/2 form: lower-case names, no connection headers."""
    headers = [HeaderTuple(b":status", b"%d" % response.status)]
    for name, value in response.headers:
        name = name.lower()
        if name not in _CONNECTION_HEADERS:
            headers.append((HeaderTuple if name in _REPEATED else NeverIndexedHeaderTuple)(name, value))
    if length is not None and response.status != 304:
        headers.append(NeverIndexedHeaderTuple(b"content-length", b"%d" % length))
    return headers


# Serve one HTTP/2 connection, negotiated by ALPN, over h2 (RFC 9113, docs/adr/0022).
#
# Rules kept here:
# * The contract is that of HTTP/1.1 (`mooring.server.transport.http`): a `Request` in, a `Response` out, a `ResponseWriter` for a
#   streaming reply.
# * A client that resets a stream, or disconnects, ends its watch. A running handler comes to its end and keeps the stream's place
#   until then, so that resetting streams gives a client no more work at a time than keeping them (CVE-2023-44487).
# * A slow stream delays no other: replies are sent in turns of one frame, as far as the client's windows and the kernel accept
#   them. Waiting bytes count as held memory together with those that wait in TCP (`mooring.server.transport.heldbytes`).
# * A watch too far behind is reset alone, and so is a stream whose window the client keeps shut for too long.
# * One turn of the event loop handles a bounded number of frames and headers of a client and sends it a bounded number of bytes.
# * A body is received as its handler reads it; an unread one fills its window and no more, after the reply too. A stream whose
#   reply came first is reset a moment later.
# * After a reply to an anonymous client the connection accepts no more requests, as kube-apiserver's
#   UnauthenticatedHTTP2DOSMitigation has it (docs/protocol/authentication.md#connections): GOAWAY, and the connection is closed
#   once every stream has ended.
# * When the server stops, a GOAWAY without a last stream comes first, with a PING (RFC 9113 6.8). The client has read both when
#   it acknowledges the PING. Streams that it opened before are served, and the GOAWAY that follows names the last of them.
#
# h2 implements frames, headers and windows; it receives and returns bytes only. `mooring.server.transport.http2` bounds
# the work that h2 leaves unbounded.

log = logging.getLogger("mooring.server")

MAX_TOTAL_STREAMS = MAX_CONNECTIONS
"""Streams of all HTTP/2 clients of a host, half of them of one source: as many watches as HTTP/1.1 connections can carry. Each
worker may have its part of them."""
CONNECTION_WINDOW = 1 << 20
"""Bytes of request bodies that all streams of a connection together may have unread."""
FRAMES_PER_TURN = 32
"""Frames of one client in one turn of the event loop: 8 ms when each is a request of 250 µs."""
HEADERS_PER_TURN = 1000
"""Headers of one client after which a turn ends: 32 usual requests have half as many. One that HPACK's table holds is an octet on
the wire, and costs 3 µs to decode and check, so that a frame of 3 KiB may take 8 ms."""
BYTES_PER_TURN = 256 << 10
"""Body bytes sent to one client in one turn of the event loop."""
CHECK_SECONDS = 10.0
"""Time between two checks of a connection for idleness and incomplete headers."""
SMALL_FRAMES = 4096
"""Bytes of incomplete frames and header blocks that do not count as held memory."""
_EVERY_STREAM = 2**31 - 1
_LEAVING = b"leaving."
"""Content of the PING behind the first GOAWAY."""
RESET_SECONDS = 0.2
"""Time from a reply that came before the end of its request to the reset of the stream: a client reads the reply first."""
CLOSE_SECONDS = 5.0
"""Time that a client has to read GOAWAY before the connection is cut."""


class Http2Server:
    """Limits and application that all HTTP/2 connections of a listener share."""

    def __init__(self, application: Application, workers: int = 1) -> None:
        """`workers`: number of processes that share the limits."""
        self.application = application
        self._workers = workers
        self._streams = 0
        self._by_source: dict[str, int] = {}

    @property
    def open_streams(self) -> dict[str, int]:
        """Number of open streams by source."""
        assert self._streams == sum(self._by_source.values())
        return dict(self._by_source)

    def protocol(self) -> Http2Connection:
        """Return a protocol for one new connection."""
        return Http2Connection(self)

    def admit(self, source: str) -> bool:
        """Count one more stream. Return False when there are too many, in all or of its source, which may have half of them."""
        held = self._by_source.get(source, 0)
        most = MAX_TOTAL_STREAMS // self._workers
        if self._streams >= most or held >= most // 2:
            return False
        self._by_source[source] = held + 1
        self._streams += 1
        return True

    def dismiss(self, source: str) -> None:
        """Count one stream less."""
        self._streams -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]


class Http2Connection(ApplicationProtocol):
    """One HTTP/2 connection, from the TLS handshake to its end."""

    __slots__ = (
        "_buffered", "_counted", "_ends_after_reset", "_guard", "_held", "_is_asking", "_is_choked", "_is_leaving", "_is_over",
        "_is_scheduled", "_is_sending", "_is_turning", "_loop", "_progress", "_quiet_since", "_ready", "_shared", "_streams",
        "_taken", "_timer", "h2", "transport",
    )  # fmt: skip

    def __init__(self, shared: Http2Server) -> None:
        self._shared = shared
        self._streams: dict[int, Http2Stream] = {}
        self._ready: dict[int, Http2Stream] = {}  # streams that may send, in the order of their turns
        self._held = 0
        self._counted = 0
        self._taken = 0  # body bytes that were sent after they had waited
        self._progress: ReaderProgress | None = None
        self._buffered = 0
        self._is_choked = False
        self._is_asking = False
        self._is_leaving = False
        self._is_over = False
        self._is_scheduled = False
        self._is_sending = False  # a request was answered before it was whole: more of it may be on its way
        self._is_turning = False
        self._ends_after_reset = False
        """True when the connection ends once the stream of its last reply is reset."""

    @property
    def open_streams(self) -> int:
        """Number of open streams of this connection."""
        return len(self._streams)

    def connection_made(self, transport: TlsTransport) -> None:  # type: ignore[override]  # what the listener gives
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._quiet_since = now + HEADER_SECONDS - IDLE_SECONDS  # the first request is due as soon as over HTTP/1.1
        self._guard = FloodGuard(now)
        self.h2 = H2()
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(CONNECTION_WINDOW - 65_535)
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)
        self._shared.application.connections.add(self)
        self._push()
        if not transport.connection.allows_http2:
            self._refuse(ErrorCodes.INADEQUATE_SECURITY)
        elif self._shared.application.is_leaving:
            self.leave()

    # Receiving

    def data_received(self, data: bytes) -> None:
        if not self._is_over:
            self._guard.take(data)
            if not self._is_turning:
                self._turn()

    def _turn(self) -> None:
        """Handle up to `FRAMES_PER_TURN` frames, and no more after `HEADERS_PER_TURN` headers; leave the others to the next turn of
        the event loop."""
        self._is_turning = False
        if self._is_over:
            return
        now = self._loop.time()
        try:
            frames, enough = 0, self.h2.decoded + HEADERS_PER_TURN
            while frames < FRAMES_PER_TURN and self.h2.decoded < enough:
                frames += 1
                frame = self._guard.frame(now)
                if frame is None:
                    self.transport.resume_reading()
                    break
                self._handle(frame, now)
            else:
                # Other connections get their turn. Reading pauses, so that the client cannot fill the memory meanwhile.
                self._is_turning = True
                self.transport.pause_reading()
                self._loop.call_soon(self._turn)
            held = self._guard.held
            if self._counted or held > SMALL_FRAMES:
                counted, self._counted = self._counted, held
                self.transport.hold(held - counted)
            self._schedule()
        except ClientProtocolError as misbehaviour:
            self.h2.close_connection(misbehaviour.code)
            self._end()
        except ProtocolError:  # h2 has queued a GOAWAY with the reason
            self._end()
        except Exception:  # h2 does not document which other exceptions it raises
            log.exception("an HTTP/2 connection failed unexpectedly")
            self.transport.abort()
        if self._guard.leaving:
            self._leave()

    def _handle(self, frame: bytes, now: float) -> None:
        events = self.h2.receive_data(frame)
        if not events and frame[3] in (DATA, HEADERS):  # for a stream that has ended
            self._guard.useless(now)
        for event in events:
            match event:
                case RequestReceived():
                    self._request_received(event, now)
                case DataReceived():
                    self._data_received(event, now)
                case StreamEnded():
                    if (stream := self._streams.get(event.stream_id)) is None:
                        pass
                    elif stream.missing > 0:  # it ended with trailers: h2 compares the length at the last DATA frame
                        self.cut(stream, ErrorCodes.PROTOCOL_ERROR)
                    else:
                        stream.ended()
                        self._settle(stream)
                case StreamReset():
                    if (stream := self._streams.get(event.stream_id)) is not None:
                        self._lose(stream)
                case WindowUpdated():
                    if (stream := self._streams.get(event.stream_id)) is not None and stream.waiting:
                        self._ready[event.stream_id] = stream
                case PingAckReceived():
                    if self._is_asking and event.ping_data == _LEAVING:
                        self._leave()
                case RemoteSettingsChanged():
                    self.h2.bound_tables()
                    self._ready |= {number: stream for number, stream in self._streams.items() if stream.waiting}
                case _:
                    pass

    def _request_received(self, event: RequestReceived, now: float) -> None:
        number, source = event.stream_id, self.transport.connection.network
        assert number is not None
        assert event.headers is not None
        if (
            self._is_leaving
            or self._ends_after_reset
            or len(self._streams) >= MAX_STREAMS
            or not self._shared.admit(source)
        ):
            self.h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            # A refused stream is charged like one that the client resets (CVE-2023-44487).
            self._guard.reset(now)
            return
        stream = self._streams[number] = Http2Stream(self, number)
        is_empty = event.stream_ended is not None
        request, refusal = request_of(event.headers, self.transport.connection, stream, is_empty=is_empty)
        if not is_empty:
            stream.missing = int(request.header(b"content-length") or 0)  # h2 has checked that it is a number
        task = self._loop.create_task(self._serve(stream, request, refusal))
        tasks = self._shared.application.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _data_received(self, event: DataReceived, now: float) -> None:
        assert event.stream_id is not None
        assert event.data is not None
        size = event.flow_controlled_length or 0
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.missing -= len(event.data)
        if stream is not None and event.data and not stream.is_over:
            self.transport.hold(size)
            stream.arrived(event.data, size)
        else:
            if size and not self._is_over:
                # The window of the stream stays shut, because the rest of the body is not wanted.
                self.h2.increment_flow_control_window(size)
            if event.data:
                self._guard.useless(now)

    # Replying

    async def _serve(self, stream: Http2Stream, request: Request, refusal: int) -> None:
        is_last = False
        try:
            response = Response(refusal, headers=()) if refusal else await self._shared.application.answer(request)
            if response.stream is None:
                await self._reply(stream, request, response)
            else:
                self._begin(stream, request, response, None)
                # An anonymous client may not open more requests while this stream runs, as in kube-apiserver.
                if response.closes_http2:
                    self._leave()
                # A watch may last an hour: only the header that the audit record needs stays in memory.
                request.headers = [one for one in request.headers if one[0] == b"user-agent"]
                writer = stream.writer = Http2ResponseWriter(stream)
                try:
                    await response.stream(writer)
                finally:
                    writer.end()
                    stream.writer = None
                stream.finish()
            is_last = response.closes_http2
        except Exception:  # handlers turn their errors into replies, so this is a bug; other requests must go on
            log.exception("a request could not be answered")
            self.cut(stream, ErrorCodes.INTERNAL_ERROR)
        finally:
            request.close()
            stream.is_served = True
            self._settle(stream)
            if is_last and self._waits_for_reset(stream):  # some clients take no reset after a GOAWAY
                self._ends_after_reset = True
            elif is_last:
                self._leave()

    async def _reply(self, stream: Http2Stream, request: Request, response: Response) -> None:
        body = response.body
        if isinstance(body, bytes):
            if self._begin(stream, request, response, len(body)):
                stream.finish(body)
        elif self._begin(stream, request, response, body.size):
            stream.held += weight(body)
            self.transport.hold(weight(body))
            for piece in body:
                stream.write(piece)
                await stream.drained()
            stream.finish()
        if response.at_once:
            self._push()

    def _begin(self, stream: Http2Stream, request: Request, response: Response, length: int | None) -> bool:
        """Send the headers. Return True when a body follows."""
        if stream.is_mute:
            return False
        follows = length != 0 and request.method != "HEAD" and response.status != 304
        self.h2.send_headers(stream.number, reply_headers(response, length), end_stream=not follows)
        self._schedule()
        if not follows:
            stream.finish(sent_end=True)
            stream.is_mute = True
        return follows

    def _settle(self, stream: Http2Stream) -> None:
        """Free the place of a stream whose handler has ended and whose reply is sent; later, if its request is not whole."""
        if not (stream.is_served and stream.is_sent):
            return
        # curl drops a reply that it reads together with the reset, so the reset comes a moment later.
        if self._waits_for_reset(stream) and not (self._is_leaving or self._is_over):
            self._loop.call_later(RESET_SECONDS, self._remove, stream)
        else:
            self._remove(stream)

    def _waits_for_reset(self, stream: Http2Stream) -> bool:
        """Return True while the reply to a request that is not whole is sent, and the stream is not reset yet."""
        return stream.is_served and stream.is_sent and not stream.is_whole and stream.number in self._streams

    def _remove(self, stream: Http2Stream) -> None:
        """Free the place of a stream, and reset it if its request is not whole. Idempotent."""
        if self._streams.pop(stream.number, None) is None:
            return
        self._shared.dismiss(self.transport.connection.network)
        if self._is_over:
            return
        self.transport.hold(-stream.held)
        if stream.unread:
            self.acknowledge(stream.number, stream.unread)
        if not stream.is_whole:  # the rest of the body is not wanted (RFC 9113 8.1)
            self.h2.reset_stream(stream.number, ErrorCodes.NO_ERROR)
            self._is_sending = True
        if not self._streams:
            self._quiet_since = self._loop.time()
            if self._is_leaving:
                self._linger()
        self._schedule()
        if self._ends_after_reset:
            self._leave()

    def acknowledge(self, number: int, size: int) -> None:
        """Let the client send as many bytes as were read or discarded of a body."""
        if size and not self._is_over:
            self.h2.acknowledge_received_data(size, number)
            self._schedule()

    def _lose(self, stream: Http2Stream) -> None:
        """End a stream that the client reset, or that was reset by the server."""
        self.hold(-stream.waiting)
        self._ready.pop(stream.number, None)
        if stream.unread:
            self.acknowledge(stream.number, stream.unread)
        stream.lost()
        self._settle(stream)

    def cut(self, stream: Http2Stream, code: ErrorCodes = ErrorCodes.ENHANCE_YOUR_CALM) -> None:
        """Reset one stream."""
        if not self._is_over and not stream.is_mute:
            with suppress(ProtocolError):  # the stream has ended already
                self.h2.reset_stream(stream.number, code)
            self._lose(stream)
            self._schedule()

    # Sending

    def send_now(self, stream: Http2Stream, data: bytes) -> bool:
        """Send `data`, and the end of the reply if it is complete. Return False, having sent nothing, when it must wait."""
        if self._is_choked or self._buffered > BYTES_PER_TURN:
            return False
        size = len(data)
        if size > min(self.h2.local_flow_control_window(stream.number), MAX_FRAME):
            return False
        self._sent(stream, data, size)
        self._schedule()
        return True

    def _sent(self, stream: Http2Stream, data: bytes | memoryview, size: int) -> None:
        if size:
            self.h2.send_data(stream.number, data, end_stream=stream.is_over and not stream.waiting)
            self._buffered += size
            self._guard.sent(size)
        elif stream.is_over:
            self.h2.end_stream(stream.number)

    def hold(self, size: int) -> bool:
        """Count bytes that wait for this client. Return False when they are too many and the client is cut off."""
        if size and not self._is_over:
            self._held += size
            self._is_over = not self.transport.hold(size)
        return not self._is_over

    def wants_to_send(self, stream: Http2Stream) -> None:
        """Give a stream a turn to send."""
        self._ready[stream.number] = stream
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_over:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the data of this turn of the event loop, and of the waiting data as much as one turn may send."""
        self._is_scheduled = False
        if self._is_over:
            return
        while self._ready and self._buffered < BYTES_PER_TURN and not self._is_choked:
            number, stream = next(iter(self._ready.items()))
            del self._ready[number]
            if stream.is_mute:
                continue
            window = self.h2.local_flow_control_window(number)
            if stream.waiting and window <= 0:
                # The window of the connection is shut, so no other stream can send either.
                if self.h2.outbound_flow_control_window <= 0:
                    self._ready[number] = stream
                    break
                continue  # it gets a turn again when the client opens its window
            piece = stream.next_piece(min(max(window, 0), MAX_FRAME))
            self._sent(stream, piece, len(piece))
            self.hold(-len(piece))
            self._taken += len(piece)
            if stream.waiting:
                self._ready[number] = stream
            elif stream.is_over:
                self._settle(stream)
        is_more = bool(self._ready) and self._buffered >= BYTES_PER_TURN
        self._push()
        if is_more:
            self._schedule()

    def _push(self) -> None:
        data = self.h2.data_to_send()
        self._buffered = 0
        if data:
            self.transport.write(data)
            self.transport.flush()

    def pause_writing(self) -> None:
        self._is_choked = True

    def resume_writing(self) -> None:
        self._is_choked = False
        self._schedule()

    # Closing

    def expects_request(self) -> bool:
        """Return True while the client may not know that it is to use another connection."""
        return self._is_asking and not (self._is_leaving or self._is_over)

    def leave(self) -> None:
        """Ask the client to open no more streams. Those that it opens before it knows are served."""
        if self._is_asking or self._is_leaving or self._is_over:
            return
        self._is_asking = True
        self._push()
        self.transport.write(GoAwayFrame(0, last_stream_id=_EVERY_STREAM).serialize())
        # The client has read the GOAWAY when it acknowledges this PING. Streams that it opened before are served.
        self.h2.ping(_LEAVING)
        self._push()

    def shutdown(self) -> None:
        """Accept no more requests; close once the accepted ones are answered."""
        self._leave()

    def _leave(self) -> None:
        if self._is_leaving or self._is_over:
            return
        self._ends_after_reset = False
        for stream in tuple(filter(self._waits_for_reset, self._streams.values())):
            self._remove(stream)
        self._is_leaving = True
        self._push()
        # Built here, because h2 refuses to send on open streams after a GOAWAY of its own.
        goaway = GoAwayFrame(0, last_stream_id=self.h2.highest_inbound_stream_id)
        self.transport.write(goaway.serialize())
        self.transport.flush()
        if not self._streams:
            self._linger()

    def _linger(self) -> None:
        """Close soon. The client closes when it has read the GOAWAY; closing before it could lose the last reply."""
        if self._is_sending:
            self._end()
            return
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._close_when_sent)

    def _close_when_sent(self) -> None:
        if not self.transport.waiting:  # the listener cuts off a client that reads nothing
            self._end()
        else:
            self._timer = self._loop.call_later(LINGER_SECONDS, self._close_when_sent)

    def _refuse(self, code: ErrorCodes) -> None:
        """Take nothing of the client. It has time to read the reason."""
        self.h2.close_connection(code)
        self._end()

    def _end(self) -> None:
        """Close now."""
        if self._is_over:
            return
        self._push()
        self._is_over = True
        self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self.transport.abort)
        for stream in tuple(self._streams.values()):
            stream.lost()
        self.transport.close(linger=True)

    def _check(self) -> None:
        """Close the connection when a header block takes too long, or when it was idle for too long."""
        now = self._loop.time()
        since = self._guard.block_since
        if since and now - since > HEADER_SECONDS:
            self.transport.abort()
            return
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)
        if not self._streams and now - self._quiet_since > IDLE_SECONDS:
            self._leave()

    def has_stalled_readers(self, now: float) -> bool:
        """Return True when the client keeps the connection's window shut. Streams whose own window stays shut are reset."""
        if self._is_over or self._is_choked or not self._held:
            self._progress = None  # nothing waits for a window
            return False
        if self.h2.outbound_flow_control_window <= 0:
            if self._progress is None:
                self._progress = ReaderProgress(self._taken, self._held, now)
            return self._progress.is_stalled(self._taken, self._held, now)
        self._progress = None
        for stream in tuple(self._streams.values()):
            if not stream.waiting or self.h2.local_flow_control_window(stream.number) > 0:
                stream.progress = None
            elif stream.is_stalled(now):
                self.cut(stream)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._timer.cancel()
        self._shared.application.connections.discard(self)
        for stream in tuple(self._streams.values()):
            stream.lost()
            self._settle(stream)
