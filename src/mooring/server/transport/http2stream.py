"""Exchange one request and its reply on a stream of an HTTP/2 connection.

Rules kept here:
* A stream is small, because a watch keeps it for an hour.
* No piece of a reply is copied before it is sent.
* Tasks that wait for the client are woken when it is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hpack.hpack import encode_integer

from mooring.server.transport.http import MAX_HEADER_BYTES, MAX_HEADERS, Request, Response
from mooring.server.transport.httpgrammar import Header, has_control_character, header_bytes, is_host, read_target
from mooring.server.transport.responsewriter import ResponseWriter
from mooring.server.transport.tlsconnection import ReaderProgress, TlsConnection

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
    """The connection that carries a stream: `http2.Http2Connection`."""

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
