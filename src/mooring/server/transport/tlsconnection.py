"""TLS over one connection on asyncio, with bounds for small records and for clients that have stopped reading."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, cast

from OpenSSL import SSL

from mooring.authn.credentials import PeerMemo
from mooring.server.transport.memorybudget import HeldBytes
from mooring.server.transport.tls import allows_http2, presented_chain
from mooring.settings.addresses import parse_address

# Count the TLS records of a client, so that small and empty ones cannot hold the event loop (RFC 8446 5.1, RFC 5246 6.2.1).
#
# Rules kept here:
# * A record costs about as much with one byte as with 16 kB: 8 µs with data, 17 µs when it replaces the keys (KeyUpdate). 64 kB may
#   be thousands of them, so that a turn of the event loop is bounded in records, too.
# * After the handshake a client needs no record without data but a close_notify and, after 2^24 records, a KeyUpdate. Go's server
#   ends a connection after 16 of them in a row; here a budget counts them, so that data in between does not help.
#
# Pure: bytes and seconds are arguments.

HEADER = 5
"""Bytes of a record's header: type, version, and the length of what follows."""
RECORDS_PER_TURN = 32
"""Records of one connection that are decrypted in a turn of the event loop: half a megabyte of a large body, or 0.6 ms."""
FREE_RECORDS = 100
"""Records without data that are free at once. Those whose data HTTP has not taken yet count meanwhile: at most a turn's."""
RECORDS_PER_SECOND = 1.0
"""Rate after that. OpenSSL and Go replace keys every few hundred gigabytes."""


class TlsRecords:
    """Records of one connection. `begun` is their number."""

    __slots__ = ("_header", "_left", "_since", "_without_data", "begun")

    def __init__(self) -> None:
        self.begun = 0
        self._header = b""
        self._left = 0
        self._since = 0.0
        self._without_data = 0

    def end_of(self, data: bytes | memoryview, most: int) -> int:
        """Return the end of the next bytes of the client, `data`, that begin at most `most` records, and count these."""
        end, begun = 0, 0
        while end < len(data):
            if not self._left:
                if not self._header:
                    if begun == most:
                        break
                    begun += 1
                missing = HEADER - len(self._header)
                self._header += bytes(data[end : end + missing])
                end = min(end + missing, len(data))
                if len(self._header) < HEADER:
                    break
                self._left = int.from_bytes(self._header[3:])
                self._header = b""
            taken = min(self._left, len(data) - end)
            self._left -= taken
            end += taken
        self.begun += begun
        return end

    def start(self, now: float) -> None:
        """Begin to count records without data: the handshake has ended."""
        self._since = now

    def are_too_empty(self, begun: int, with_data: int, now: float) -> bool:
        """Return True when too many records of the client had no data, with `begun` more, and `with_data` more that had."""
        self._without_data += begun - with_data
        return self._without_data > FREE_RECORDS + (now - self._since) * RECORDS_PER_SECOND


# Detect clients that have stopped reading: a reader must take `MIN_PROGRESS`, or all that waits, within `STALLED_SECONDS`.

STALLED_SECONDS = 20.0
"""Time without progress after which a reader counts as stalled. With two checks `CHECK_SECONDS` apart it is cut off within 30 s."""
CHECK_SECONDS = 5.0
"""Time between two checks of connections for which bytes wait."""
MIN_PROGRESS = 16 << 10
"""Bytes that a reader takes in `STALLED_SECONDS`: one TLS record. At 0.8 kB/s a list of 64 kB still arrives."""


class ReaderProgress:
    """Progress of one reader for which bytes wait. Time is an argument."""

    __slots__ = ("_mark", "_needed", "_since")

    def __init__(self, taken: int, waiting: int, now: float) -> None:
        self._restart(taken, waiting, now)

    def _restart(self, taken: int, waiting: int, now: float) -> None:
        self._mark = taken
        self._needed = min(MIN_PROGRESS, waiting)
        self._since = now

    def is_stalled(self, taken: int, waiting: int, now: float) -> bool:
        """Return True when the reader made no progress for too long. `taken` counts all bytes that it ever took."""
        if taken - self._mark >= self._needed:
            self._restart(taken, waiting, now)
        return now - self._since >= STALLED_SECONDS


# Run TLS over one connection on asyncio, keep the peer's certificate chain, and pass plain bytes to HTTP/1.1 or HTTP/2.
#
# asyncio's own TLS uses `ssl`, which ends the handshake of a client whose certificate does not verify; so this file runs TLS over
# pyOpenSSL (see `mooring.server.transport.tls`, docs/adr/0003).
#
# Rules kept here:
# * The time of a handshake, the memory held for a client (`mooring.server.transport.memorybudget`), and the records decrypted
#   for it in a turn of the event loop are bounded. A client that sends records without data all the time is cut off.
# * A client that takes none of the bytes that wait for it is cut off within 30 s. Bytes that its kernel acknowledges count as
#   taken.
# * A client that may still be sending can read the last reply (RFC 9112 9.6): only the sending side is closed, and what arrives
#   is discarded, undecrypted, until the client closes, is silent, or its time is over. A closed socket would answer with a reset,
#   which makes the client's kernel drop the reply.
# * All plain bytes written during one turn of the event loop are encrypted together and sent by one system call.
# * Connections, streams, held memory and failed authentications are all counted by source: one IPv4 address, or one IPv6 /64, the
#   smallest block that a site is given (RFC 6177), with 2^64 addresses. An IPv4-mapped IPv6 address (RFC 4291 2.5.5.2) counts as
#   IPv4.

log = logging.getLogger("mooring.server")

UNKNOWN_NETWORK = "unknown"
"""Source of all peers without an IP address, for example on a Unix socket."""
IPV6_PREFIX = 64
"""Bits of an IPv6 address that name its source."""
KEPT_ADDRESSES = 4096
"""Addresses whose result is kept, less than 2 MiB: clients connect again and again, and parsing takes 2 % of a new connection."""


@lru_cache(KEPT_ADDRESSES)
def address_of(source: str) -> str:
    """Return the address in normal form: IPv4 for an IPv4-mapped one, without zone id. Return "" for a peer without IP address."""
    return str(parse_address(source) or "")


@lru_cache(KEPT_ADDRESSES)
def network_of(address: str) -> str:
    """Return the source of an address: an IPv4 address, an IPv6 /64, or `unknown`. Zone ids are dropped."""
    ip = parse_address(address)
    if ip is None:
        return UNKNOWN_NETWORK
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ipaddress.ip_network((ip, IPV6_PREFIX), strict=False))


HANDSHAKE_SECONDS = 10.0
"""Time for a TLS handshake, of the order of Go's net/http and nginx's ssl_handshake_timeout."""
SPEAK_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
"""Reply to plain HTTP on a TLS port, as Go's net/http writes it."""
REFUSAL = b"\x15\x03\x01\x00\x02\x02\x50"
"""Fatal alert internal_error (RFC 8446 6), for a connection beyond the limits: the client sees that a server is there."""
_HTTP_REQUEST = "http request"
"""Part of OpenSSL's error for a handshake that begins with an HTTP method."""
LINGER_SECONDS = 30.0
"""Time after the last byte of a reply for which a client that is still sending is listened to, as nginx's lingering_time."""
DISCARD_SECONDS = 0.01
"""Pause between two reads from such a client, 250 kB each: 300 of them delayed other requests by half a second without it."""
SILENT_SECONDS = 2.0
"""A client that sends nothing for so long has stopped sending, and has had the time to read."""
RECORD = 16_384
"""Bytes of plain text that one TLS record carries at most (RFC 8446 5.1): a read needs no larger buffer."""
RECORD_OVERHEAD = 4096
"""Bytes for record headers and tags when encrypted data is read from the BIO."""
PIECE = RECORD
"""Bytes that pass through a memory BIO at once, in either direction. A BIO never frees memory, so this bounds the memory that a
large request or reply leaves with its connection (docs/adr/0017)."""
MAX_UNSENT = 64 << 20
"""Bytes. A client for which more than this waits is cut off at the next write. One reply may be larger."""


@dataclass(slots=True)
class TlsConnection:
    """Facts about one client connection, shared by all its requests."""

    source: str
    """The peer's IP address as text."""
    address: str = field(init=False)
    """The peer's IP address in normal form: IPv4 for an IPv4-mapped one, no zone; "" without an IP address."""
    network: str = field(init=False)
    """Source network under which limits count the client: its IPv4 address or IPv6 /64."""
    chain: tuple[bytes, ...] = ()
    """Certificates that the peer presented in the handshake, in DER, leaf first. No CA has verified them."""
    allows_http2: bool = True
    """False for a cipher suite that HTTP/2 prohibits."""
    peer_memo: PeerMemo = field(default_factory=PeerMemo)
    """Verdicts of authentication about `chain`, kept for the life of the connection."""

    def __post_init__(self) -> None:
        self.address = address_of(self.source)
        self.network = network_of(self.address)


class TlsTransport(asyncio.Transport):
    """Plain side of one TLS connection, to which an application protocol writes."""

    def __init__(self, outer: TlsProtocol) -> None:
        super().__init__()
        self._outer = outer
        self._unsent: list[bytes] = []
        self._closing = False

    @property
    def connection(self) -> TlsConnection:
        """Facts about the client connection."""
        return self._outer.connection

    @property
    def is_cut(self) -> bool:
        """True once the connection was cut off."""
        return self._outer.is_cut

    @property
    def waiting(self) -> int:
        """Bytes for this client that the kernel has not taken yet."""
        return self._outer.tcp.get_write_buffer_size()

    def hold(self, size: int) -> bool:
        """Count bytes that HTTP holds for the client (negative: releases). Return False when the client was cut off for it."""
        return self._outer.hold(size)

    def is_closing(self) -> bool:
        return self._closing

    def lost(self) -> None:
        """Accept no more writes: the connection has ended."""
        self._closing = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        if not self._unsent:
            self._outer.loop.call_soon(self.flush)
        self._unsent.append(bytes(data))

    def flush(self) -> None:
        """Encrypt and send what was written since the last flush."""
        if self._unsent:
            self._outer.send(self._take_unsent())

    def _take_unsent(self) -> bytes:
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        self._unsent.clear()
        return data

    async def drained(self) -> None:
        """Return when more may be sent, or when the client is gone. Always gives way to other tasks."""
        self.flush()
        await asyncio.sleep(0)
        await self._outer.inner.drained()

    def close(self, *, linger: bool = False) -> None:
        """Send what was written, and close. `linger`: the client may still be sending, and shall be able to read it."""
        if not self._closing:
            self._closing = True
            self._outer.close(self._take_unsent(), linger=linger)

    def abort(self) -> None:
        self._closing = True
        self._unsent.clear()
        self._outer.tcp.abort()

    def pause_reading(self) -> None:
        self._outer.pause_reading()

    def resume_reading(self) -> None:
        self._outer.resume_reading()


class ApplicationProtocol(asyncio.Protocol):
    """Protocol over the plain bytes of one connection: HTTP/1.1 or HTTP/2."""

    __slots__ = ()

    def has_stalled_readers(self, now: float) -> bool:
        """Return True when the client has shut its flow control windows for too long."""
        return False

    def expects_request(self) -> bool:
        """Return True while the client is about to send a request that it could not know to be safe to repeat."""
        return False


class Acceptor(Protocol):
    """The listener of a connection: `mooring.server.transport.listener.Listener`."""

    loop: asyncio.AbstractEventLoop
    context: Callable[[], SSL.Context]
    failed_handshakes: int
    held_bytes: HeldBytes

    def protocol_for(self, tls: SSL.Connection) -> ApplicationProtocol:
        """Return a protocol of the kind that the handshake negotiated."""

    def admit(self, protocol: TlsProtocol) -> bool:
        """Add a connection. Return False when there are too many."""

    def dismiss(self, protocol: TlsProtocol) -> None:
        """Remove a connection that ended."""

    def count(self, protocol: TlsProtocol, size: int) -> None:
        """Set the bytes that a connection holds."""


class TlsProtocol(asyncio.Protocol):
    """Encrypted side of one connection: TLS between the TCP transport and an application protocol."""

    def __init__(self, listener: Acceptor) -> None:
        self._listener = listener
        self.loop = listener.loop
        self.context = listener.context()
        self.connection: TlsConnection
        self.inner: Any = None
        self._transport: TlsTransport | None = None
        self._tls: Any = None  # SSL.Connection, from the connection's begin to its end
        self._deadline: asyncio.TimerHandle | None = None
        self._paused = False
        self._deferred: list[bytes | memoryview] = []
        self._undecrypted = 0
        """Upper bound of the client's bytes that were not decrypted yet."""
        self._undecrypted_counted = 0
        self._records = TlsRecords()
        self._next_turn = False
        """True while a turn of the event loop is ordered in which decryption goes on."""
        self.held = 0
        """Bytes held, as of the last write: encrypted ones that the kernel has not taken, and those that HTTP holds."""
        self._held_by_http = 0
        self._encrypted = 0
        """Encrypted bytes passed to the TCP transport since the connection began."""
        self._progress: ReaderProgress | None = None
        self.is_cut = False
        self._linger_end = 0.0
        """Time at which a client is listened to no more after the last reply; 0 before that reply."""
        self._heard = 0.0

    @property
    def expects_request(self) -> bool:
        """True while the handshake is under way, or the first request."""
        if self.is_lingering:
            return False
        return self._transport is None or (self.inner is not None and self.inner.expects_request())

    @property
    def is_lingering(self) -> bool:
        """True while the client may still be sending, and has time to read the last reply."""
        return bool(self._linger_end)

    @property
    def _is_over(self) -> bool:
        """True when nothing that arrives is decrypted any more."""
        return self.is_lingering or self.tcp.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.tcp = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it
        peer = transport.get_extra_info("peername")
        self.connection = TlsConnection(str(peer[0]) if peer else "")
        if not self._listener.admit(self):
            self.tcp.write(REFUSAL)
            self.tcp.close()
            return
        self._tls = SSL.Connection(self.context, None)
        self._tls.set_accept_state()
        self._deadline = self.loop.call_later(HANDSHAKE_SECONDS, self.tcp.abort)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            self._discard()
            return
        self._deferred.append(data)
        if not self._paused and len(self._deferred) == 1:  # else bytes that came before are next, in another turn
            self._decrypt_deferred()

    def _decrypt_deferred(self) -> None:
        """Decrypt deferred bytes, a piece and at most `RECORDS_PER_TURN` records at a time. The next turn goes on with the rest."""
        records, left = self._records, RECORDS_PER_TURN
        while self._deferred and left and not (self._paused or self._is_over):
            data = self._deferred.pop(0)
            piece = data if len(data) <= PIECE else memoryview(data)[:PIECE]
            before = records.begun
            end = records.end_of(piece, left)
            begun = records.begun - before
            left -= begun
            if end < len(data):
                self._deferred.insert(0, memoryview(data)[end:])
                piece = memoryview(data)[:end]
            self._decrypt(piece, begun)
        if self._deferred and not (self._paused or self._is_over):
            self.tcp.pause_reading()
            self._go_on_next_turn()

    def _decrypt(self, data: bytes | memoryview, begun: int) -> None:
        self._tls.bio_write(data)
        self._undecrypted = len(data)
        if self._transport is None:
            if self._handshake():
                self._records.start(self.loop.time())
                self._deliver()
            return
        if self._records.are_too_empty(begun, self._deliver(), self.loop.time()) and not self._is_over:
            log.info("%s sends TLS records without data all the time: cut off", self.connection.source)
            self._transport.abort()

    def _handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            self._send_pending()
            return False
        except SSL.Error as error:
            self._listener.failed_handshakes += 1
            if _HTTP_REQUEST in str(error):
                self.tcp.write(SPEAK_TLS)
            self._send_pending()  # the alert with the reason
            self._linger()
            return False
        self._send_pending()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.connection.chain = presented_chain(self._tls)
        self.connection.allows_http2 = allows_http2(self._tls)
        self._transport = TlsTransport(self)
        self.inner = self._listener.protocol_for(self._tls)
        self.inner.connection_made(self._transport)
        return True

    def _deliver(self) -> int:
        """Pass decrypted bytes to HTTP. Return the number of their records."""
        number = 0
        while not (self._paused or self._transport is None or self._transport.is_closing()):
            try:
                data = self._tls.recv(RECORD)
            except SSL.WantReadError:
                self._undecrypted = 0
                break
            except SSL.ZeroReturnError:
                self.tcp.close()
                break
            except SSL.Error:
                self.tcp.abort()
                break
            number += 1
            self.inner.data_received(data)
        return number

    def send(self, data: bytes, *, end: bool = False) -> None:
        """Encrypt `data` and pass it to the TCP transport, in pieces, the last one with a close_notify at the `end`."""
        tcp = self.tcp
        if self._is_over:
            return
        if tcp.get_write_buffer_size() > MAX_UNSENT:
            self._listener.held_bytes.cut(self)
            return
        view = data if len(data) <= PIECE else memoryview(data)
        try:
            for start in range(0, len(data), PIECE):
                piece = view[start : start + PIECE]
                self._tls.sendall(piece)
                if end and start + PIECE >= len(data):
                    with contextlib.suppress(SSL.Error):  # the data goes out in any case
                        self._tls.shutdown()
                encrypted = self._tls.bio_read(len(piece) + RECORD_OVERHEAD)
                self._encrypted += len(encrypted)
                tcp.write(encrypted)
        except SSL.Error:
            tcp.abort()
        size = tcp.get_write_buffer_size() + self._held_by_http
        if size != self.held:
            self._listener.count(self, size)

    def hold(self, size: int) -> bool:
        """See `TlsTransport.hold`."""
        if size > 0 and self._held_by_http > MAX_UNSENT:
            self._listener.held_bytes.cut(self)
        elif not self.is_cut:
            self._held_by_http += size
            self._listener.count(self, self.held + size)
        return not self.is_cut

    def recount(self) -> int:
        """Return the bytes held now."""
        return 0 if self.is_cut else self.unsent

    def cut(self) -> None:
        """End the connection at once: it makes the server hold too much, or for too long."""
        self.is_cut = True
        if self._transport is not None:
            self._transport.abort()
        self.tcp.abort()

    @property
    def unsent(self) -> int:
        """Bytes that the client has not been sent: encrypted ones, and those that HTTP holds."""
        return self.tcp.get_write_buffer_size() + self._held_by_http

    def is_behind(self, now: float) -> bool:
        """Return True while bytes wait for the client. A stalled client is cut off."""
        waiting = self.tcp.get_write_buffer_size()
        self._listener.count(self, waiting + self._held_by_http)
        if self.is_cut or not (waiting or self._held_by_http):
            self._progress = None
            return False
        is_stalled = self.inner is not None and self.inner.has_stalled_readers(now)
        if not waiting:
            self._progress = None
        else:
            taken = self._encrypted - waiting - self._unacknowledged()
            if self._progress is None:
                self._progress = ReaderProgress(taken, waiting, now)
            is_stalled = self._progress.is_stalled(taken, waiting, now) or is_stalled
        if is_stalled:
            log.info("%s takes none of the %d bytes that wait for it: cut off", self.connection.source, self.held)
            self._listener.held_bytes.cut(self)
        return not is_stalled

    def _unacknowledged(self) -> int:
        """Return the bytes in the kernel's send queue (tcp(7) SIOCOUTQ).

        The kernel wakes writers only when a third of the queue is free. With megabytes of buffers, a slow reader that makes
        progress all the time may need minutes for that.
        """
        try:
            number = self.tcp.get_extra_info("socket").fileno()
            return int.from_bytes(fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except OSError:  # not supported for sockets on this platform
            return 0

    def _send_pending(self) -> None:
        try:
            while True:  # each ticket of TLS 1.3 has the client's certificate in it
                self.tcp.write(self._tls.bio_read(65_536))
        except SSL.WantReadError:
            return
        except SSL.Error:
            self.tcp.abort()

    def close(self, data: bytes, *, linger: bool = False) -> None:
        """Send `data` and a close_notify by one system call, and close, at once or when the client has read them (`linger`)."""
        if data:
            self.send(data, end=True)
        elif not self._is_over:
            with contextlib.suppress(SSL.Error):  # the peer is gone, so that no close_notify is needed
                self._tls.shutdown()
                self._send_pending()
        if linger:
            self._linger()
        elif not self._is_over:
            self.tcp.close()

    def _linger(self) -> None:
        """Close the sending side, and discard what the client sends until it closes."""
        if self._is_over:
            return
        self._heard = self.loop.time()
        self._linger_end = self._heard + LINGER_SECONDS
        self._deferred.clear()
        if self._paused:
            self._paused = False
            self.hold(-self._undecrypted_counted)
        try:
            self.tcp.write_eof()
        except OSError:  # the client has gone
            self.tcp.abort()
            return
        self.tcp.resume_reading()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(SILENT_SECONDS, self._check_lingering)

    def _discard(self) -> None:
        """Note that the client is sending, and pause. Without pauses libuv reads up to 8 MB of it in a turn of the event loop."""
        self._heard = self.loop.time()
        if not self.tcp.is_closing():
            self.tcp.pause_reading()
            self.loop.call_later(DISCARD_SECONDS, self._discard_more)

    def _discard_more(self) -> None:
        if not self.tcp.is_closing():
            self.tcp.resume_reading()

    def _check_lingering(self) -> None:
        """Close when the client is silent, or when its time is over. While bytes wait for it, the check of slow readers decides."""
        now = self.loop.time()
        if self.tcp.get_write_buffer_size():
            self._heard, self._linger_end = now, now + LINGER_SECONDS
        left = min(self._heard + SILENT_SECONDS, self._linger_end) - now
        if left > 0:
            self._deadline = self.loop.call_later(left, self._check_lingering)
        else:
            self._deadline = None
            self.tcp.close()

    def pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self.tcp.pause_reading()
            self._undecrypted_counted = self._undecrypted + sum(map(len, self._deferred))
            self.hold(self._undecrypted_counted)

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self.hold(-self._undecrypted_counted)
            self._go_on_next_turn()

    def _go_on_next_turn(self) -> None:
        if not self._next_turn:
            self._next_turn = True
            self.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._next_turn = False
        if self._is_over:
            return
        self._records.are_too_empty(0, self._deliver(), self.loop.time())
        self._decrypt_deferred()
        if not (self._paused or self._next_turn or self._is_over):
            self.tcp.resume_reading()

    def pause_writing(self) -> None:
        if self.inner is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self.inner is not None:
            self.inner.resume_writing()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.dismiss(self)
        self.is_cut = True  # counts no more held bytes
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._transport is not None:
            self._transport.lost()
            self.inner.connection_lost(error)
        # Breaking the reference cycles frees OpenSSL's 27 kB now. The garbage collector runs rarely in a server that keeps many
        # objects, because it waits for a quarter as many new ones.
        self.inner = self._transport = self._tls = None
