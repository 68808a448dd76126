"""TLS over asyncio: accepts connections, finishes handshakes, keeps the peer's chain, hands plain bytes to a protocol.

Why our own layer instead of asyncio's: asyncio speaks TLS only through `ssl`, which ends the handshake of a client whose
certificate does not verify (see `mooring.server.transport.tls`, docs/adr/0003).

Rules kept here:
* Bounded: connections, the time a handshake may take, what a client and its source may make us hold (`holdings`).
* A client that takes nothing of what waits for it is cut off within 30 s; what its kernel acknowledges counts.
* All plain bytes written during one turn of the loop leave as one TLS record run and one system call.
* Drain: stop accepting, let the inner protocols finish, let the clients take what was answered, then close what is left.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import socket
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from OpenSSL import SSL

from mooring.server.transport.holdings import LOOK_SECONDS, Holdings, Progress, Source
from mooring.server.transport.sources import network_of
from mooring.server.transport.tls import presented_chain

log = logging.getLogger("mooring.server")

HANDSHAKE_SECONDS = 10.0
"""Go's net/http and nginx's ssl_handshake_timeout are of this order; a stalled client must not hold a slot."""
SPEAK_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
"""The answer of Go's net/http, which clients and people know."""
_HTTP_REQUEST = "http request"
"""OpenSSL's reason for a handshake that begins with an HTTP method."""
MAX_CONNECTIONS = 20_000
"""Each costs 45 to 50 kB while a watch runs on it (docs/adr/0017): 1 GB at the most. Fewer where the process may not open as
many files."""
SPARE_FILES = 128
"""Descriptors kept for the database, logs and files."""
BACKLOG = 1024
RECORD = 16_384
"""RFC 8446 5.1: no TLS record carries more plain text, so one read never needs a larger buffer."""
RECORD_OVERHEAD = 4096
"""Room for record headers and tags when asking the BIO for what was just encrypted."""
PIECE = RECORD
"""Octets that pass through a memory BIO at once, in either direction. A BIO never gives memory back, so this bounds what a large
request or reply adds to its connection for as long as it lasts (docs/adr/0017)."""
MAX_UNSENT = 64 << 20
"""A client for which this much waits when there is more to send is cut off. One reply may be larger: it was asked for."""
FLUSH_LOOK_SECONDS = 0.01
"""How often to look whether clients have taken what was sent; only while the server stops."""


@dataclass(slots=True)
class Connection:
    """What is known of one client connection; requests on it share this."""

    source: str
    """The peer's IP address as text."""
    network: str = field(init=False)
    """The source under which limits count it: its IPv4 address or IPv6 /64."""
    chain: tuple[bytes, ...] = ()
    """The certificates the peer presented and proved possession of, DER, leaf first; not verified against any CA."""
    cache: dict[str, Any] = field(default_factory=dict)
    """What authentication found out about `chain` and may keep for the life of the connection."""

    def __post_init__(self) -> None:
        self.network = network_of(self.source)


class TlsTransport(asyncio.Transport):
    """The plain-bytes side of one TLS connection, as the inner protocol sees it."""

    def __init__(self, outer: TlsProtocol) -> None:
        super().__init__()
        self._outer = outer
        self._unsent: list[bytes] = []
        self._closing = False

    @property
    def connection(self) -> Connection:
        return self._outer.connection

    @property
    def is_cut(self) -> bool:
        return self._outer.is_cut

    @property
    def waiting(self) -> int:
        """Bytes accepted for this client that the kernel has not taken yet."""
        return self._outer.tcp.get_write_buffer_size()

    def hold(self, octets: int) -> bool:
        """Count bytes that are kept above this (negative: no more). False when that was too much, and the client is cut off."""
        return self._outer.hold(octets)

    def is_closing(self) -> bool:
        return self._closing

    def lost(self) -> None:
        """Take no more writes: the connection has ended."""
        self._closing = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        if not self._unsent:
            self._outer.loop.call_soon(self.flush)
        self._unsent.append(bytes(data))

    def flush(self) -> None:
        """Encrypt and send what was written since the last flush."""
        if not self._unsent:
            return
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        self._unsent.clear()
        self._outer.send(data)

    async def drained(self) -> None:
        """Return when the client has taken enough to be sent more, or is gone. Others have their turn in any case."""
        self.flush()
        await asyncio.sleep(0)
        await self._outer.inner.drained()

    def close(self) -> None:
        if not self._closing:
            self.flush()
            self._closing = True
            self._outer.close()

    def abort(self) -> None:
        self._closing = True
        self._unsent.clear()
        self._outer.tcp.abort()

    def pause_reading(self) -> None:
        self._outer.pause_reading()

    def resume_reading(self) -> None:
        self._outer.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._outer.inner = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._outer.inner
        return protocol


class Inner(asyncio.Protocol):
    """The protocol that reads and writes the plain bytes of one connection: HTTP/1.1 or HTTP/2."""

    __slots__ = ()

    def has_stalled_readers(self, now: float) -> bool:
        """Whether the client has shut its windows for too long, where the protocol has windows."""
        return False


class TlsProtocol(asyncio.Protocol):
    """The cipher-text side of one connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.loop = listener.loop
        self.context = listener.context
        self.connection: Connection
        self.inner: Any = None
        self._transport: TlsTransport | None = None
        self._tls: Any = None  # SSL.Connection, from the connection's begin to its end
        self._deadline: asyncio.TimerHandle | None = None
        self._paused = False
        self._deferred: list[bytes | memoryview] = []
        self._undecrypted = 0
        """Octets of the client that OpenSSL may not have been asked for, at most."""
        self._undecrypted_counted = 0
        self.held = 0
        """Octets, as of the last write: encrypted ones that the kernel has not taken, and those kept above."""
        self._above = 0
        self._encrypted = 0
        """Octets handed to the kernel's side, ever."""
        self._progress: Progress | None = None
        self.is_cut = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.tcp = cast(asyncio.Transport, transport)  # uvloop's is one in all but inheritance
        peer = transport.get_extra_info("peername")
        self.connection = Connection(str(peer[0]) if peer else "")
        if not self._listener.admit(self):
            self.tcp.abort()
            return
        self._tls = SSL.Connection(self.context, None)
        self._tls.set_accept_state()
        self._deadline = self.loop.call_later(HANDSHAKE_SECONDS, self.tcp.abort)

    def data_received(self, data: bytes) -> None:
        if self.tcp.is_closing():
            return
        if self._paused or self._deferred:  # in order: what was deferred goes first
            self._deferred.append(data)
            return
        if len(data) <= PIECE:
            self._decrypt(data)
        else:
            self._deferred.append(memoryview(data))
            self._decrypt_deferred()

    def _decrypt_deferred(self) -> None:
        """Decrypt what was deferred, a piece at a time, until reading is paused or the connection ends."""
        while self._deferred and not (self._paused or self.tcp.is_closing()):
            data = self._deferred.pop(0)
            if len(data) > PIECE:
                self._deferred.insert(0, data[PIECE:])
            self._decrypt(data[:PIECE])

    def _decrypt(self, data: bytes | memoryview) -> None:
        self._tls.bio_write(data)
        self._undecrypted = len(data)
        if self._transport is not None or self._shake_hands():
            self._read()

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            self._send_pending()
            return False
        except SSL.Error as error:
            self._listener.failed_handshakes += 1
            if _HTTP_REQUEST in str(error):
                self.tcp.write(SPEAK_TLS)
            self._send_pending()  # the alert that says why
            self.tcp.close()
            return False
        self._send_pending()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.connection.chain = presented_chain(self._tls)
        self._transport = TlsTransport(self)
        self.inner = self._listener.protocol_for(self._tls)
        self.inner.connection_made(self._transport)
        return True

    def _read(self) -> None:
        while not (self._paused or self._transport is None or self._transport.is_closing()):
            try:
                data = self._tls.recv(RECORD)
            except SSL.WantReadError:
                self._undecrypted = 0
                break
            except SSL.ZeroReturnError:
                self.tcp.close()
                return
            except SSL.Error:
                self.tcp.abort()
                return
            self.inner.data_received(data)

    def send(self, data: bytes) -> None:
        """Encrypt `data` and pass it to the kernel, in pieces."""
        tcp = self.tcp
        if tcp.is_closing():
            return
        if tcp.get_write_buffer_size() > MAX_UNSENT:
            self._listener.holdings.cut(self)
            return
        try:
            if len(data) <= PIECE:
                self._tls.sendall(data)
                encrypted = self._tls.bio_read(len(data) + RECORD_OVERHEAD)
                self._encrypted += len(encrypted)
                tcp.write(encrypted)
            else:
                view = memoryview(data)
                for start in range(0, len(data), PIECE):
                    self._tls.sendall(view[start : start + PIECE])
                    encrypted = self._tls.bio_read(PIECE + RECORD_OVERHEAD)
                    self._encrypted += len(encrypted)
                    tcp.write(encrypted)
        except SSL.Error:
            tcp.abort()
        self._listener.count(self, tcp.get_write_buffer_size() + self._above)

    def hold(self, octets: int) -> bool:
        """See `TlsTransport.hold`."""
        if octets > 0 and self._above > MAX_UNSENT:
            self._listener.holdings.cut(self)
        elif not self.is_cut:
            self._above += octets
            self._listener.count(self, self.held + octets)
        return not self.is_cut

    def recount(self) -> int:
        """Octets held as of now."""
        return 0 if self.is_cut else self.unsent

    def cut(self) -> None:
        """End the connection at once: it holds too much, or for too long."""
        self.is_cut = True
        if self._transport is not None:
            self._transport.abort()
        self.tcp.abort()

    @property
    def unsent(self) -> int:
        """Octets that the kernel has not taken: those encrypted, and those kept above."""
        return self.tcp.get_write_buffer_size() + self._above

    def is_behind(self, now: float) -> bool:
        """Whether something waits for the client. A client that does not move is cut off."""
        waiting = self.tcp.get_write_buffer_size()
        self._listener.count(self, waiting + self._above)
        if self.is_cut or not (waiting or self._above):
            self._progress = None
            return False
        is_stalled = self.inner is not None and self.inner.has_stalled_readers(now)
        if not waiting:
            self._progress = None
        else:
            taken = self._encrypted - waiting - self._unacknowledged()
            if self._progress is None:
                self._progress = Progress(taken, waiting, now)
            is_stalled = self._progress.is_stalled(taken, waiting, now) or is_stalled
        if is_stalled:
            log.info("%s takes nothing of %d octets that wait for it: cut off", self.connection.source, self.held)
            self._listener.holdings.cut(self)
        return not is_stalled

    def _unacknowledged(self) -> int:
        """Octets in the kernel's send queue (tcp(7) SIOCOUTQ). It wakes writers only when a third of it is free: with megabytes
        of buffers, that is minutes of a slow reader who moves all the time."""
        try:
            number = self.tcp.get_extra_info("socket").fileno()
            return int.from_bytes(fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except OSError:  # the platform does not know it for sockets
            return 0

    def _send_pending(self) -> None:
        try:
            self.tcp.write(self._tls.bio_read(65_536))
        except SSL.WantReadError:
            return
        except SSL.Error:
            self.tcp.abort()

    def close(self) -> None:
        if not self.tcp.is_closing():
            try:
                self._tls.shutdown()
                self._send_pending()
            except SSL.Error:
                pass  # the peer is gone already; there is nobody to say goodbye to
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
            self.tcp.resume_reading()
            self.hold(-self._undecrypted_counted)
            self.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        if not self.tcp.is_closing():
            self._read()
            self._decrypt_deferred()

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
        self.is_cut = True  # nothing is counted any more
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._transport is not None:
            self._transport.lost()
            self.inner.connection_lost(error)
        # References to this object are undone, and with them OpenSSL's 27 kB: the garbage collector comes late in a server that
        # keeps many objects, because it waits for a quarter as many new ones.
        self.inner = self._transport = self._tls = None


def affordable_connections() -> int:
    """How many connections this process may hold: its limit of open files is raised as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_FILES
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    allowed = wanted if soft == resource.RLIM_INFINITY else soft
    return max(SPARE_FILES, min(MAX_CONNECTIONS, allowed - SPARE_FILES))


class Listener:
    """One listening address. `make_protocol()` builds the protocol that gets the plain bytes of each connection, `make_http2()`
    that of clients which ask for HTTP/2, when the context offers it."""

    def __init__(
        self,
        context: SSL.Context,
        make_protocol: Callable[[], Inner],
        *,
        make_http2: Callable[[], Inner] | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.context = context
        self._make_protocol = make_protocol
        self._make_http2 = make_http2
        self.max_connections = max_connections
        self.connections: dict[TlsProtocol, Source] = {}
        self.refused = 0
        self.failed_handshakes = 0
        self.holdings = Holdings()
        self._behind: set[TlsProtocol] = set()
        """Connections for which something waited at their last write."""
        self._looking: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port really taken (0 asks for any). Raises OSError."""
        self.loop = asyncio.get_running_loop()
        self._server = await self.loop.create_server(lambda: TlsProtocol(self), host, port, backlog=BACKLOG)
        for listening in self._server.sockets:
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound = self._server.sockets[0].getsockname()
        return int(bound[1])

    def protocol_for(self, tls: SSL.Connection) -> Inner:
        """The protocol that the handshake agreed on."""
        if self._make_http2 is not None and tls.get_alpn_proto_negotiated() == b"h2":
            return self._make_http2()
        return self._make_protocol()

    def admit(self, protocol: TlsProtocol) -> bool:
        """Whether one more connection fits: in all, and of its source, which may hold half of them."""
        network = protocol.connection.network
        source = self.holdings.source(network)
        of_source = 0 if source is None else len(source.holders)
        if len(self.connections) >= self.max_connections or of_source >= max(1, self.max_connections // 2):
            self.refused += 1
            return False
        self.connections[protocol] = self.holdings.admit(network, protocol)
        return True

    def dismiss(self, protocol: TlsProtocol) -> None:
        """Forget a connection that ended. Idempotent."""
        source = self.connections.pop(protocol, None)
        if source is not None:
            self.holdings.dismiss(source, protocol)
            self._behind.discard(protocol)

    def count(self, protocol: TlsProtocol, octets: int) -> None:
        """Note what a connection holds."""
        source = self.connections.get(protocol)
        if source is None or octets == protocol.held:
            return
        self.holdings.change(source, protocol, octets)
        if octets:
            self._behind.add(protocol)
            if self._looking is None:
                self._looking = self.loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """End readers that do not move; forget those for whom nothing waits."""
        now = self.loop.time()
        self.holdings.look()
        for protocol in tuple(self._behind):
            if not protocol.is_behind(now):
                self._behind.discard(protocol)
        self._looking = self.loop.call_later(LOOK_SECONDS, self._look) if self._behind else None

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def flushed(self, seconds: float) -> None:
        """Wait until the kernel has taken everything that was answered, or that long."""
        deadline = self.loop.time() + seconds
        while self.loop.time() < deadline and self._unsent():  # noqa: ASYNC110 - transports do not tell when they are empty
            await asyncio.sleep(FLUSH_LOOK_SECONDS)

    def _unsent(self) -> bool:
        return any(protocol.unsent for protocol in self.connections)

    def abort_all(self) -> None:
        """Cut what is left after the drain."""
        for protocol in tuple(self.connections):
            protocol.tcp.abort()
