"""Connections that the load balancer carries: through the tunnel of an HTTP proxy or directly, and how they end."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import Callable
from enum import Enum
from typing import cast
from urllib.parse import unquote, urlsplit

from mooring.trust.httpproxy import Proxy, ProxySettingError

# Tunnel of an HTTP proxy (RFC 9110 9.3.6), whose transport another protocol takes over once it is open.
#
# Rules kept here: only http proxies, because TLS to a proxy could not pass on the end of one direction. The server is named with
# its IPv6 address in brackets (RFC 9112 3.2.3). Nothing is read behind the reply of the proxy until the other protocol reads it.

HTTP_PORT = 80
"""RFC 9110 section 4.2.1."""
MAX_HEAD = 1 << 14
"""Octets of a reply: proxies send a few hundred."""


class TunnelError(OSError):
    """The proxy opened no tunnel. The message names it."""


class _Reply(asyncio.Protocol):
    """Reads the head of the reply, and nothing after it."""

    def __init__(self) -> None:
        self.head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.head.done() or (b"\r\n\r\n" not in self._received and len(self._received) <= MAX_HEAD):
            return
        # Octets behind the reply are for the other protocol, and stay in the kernel.
        self._transport.pause_reading()
        self.head.set_result(bytes(self._received))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.head.done():
            self.head.set_exception(ConnectionResetError("it closed the connection"))


def check_proxy(proxy: Proxy) -> None:
    """Raise ProxySettingError for a proxy that opens no tunnel here."""
    if urlsplit(proxy.url).scheme != "http":
        raise ProxySettingError(f"{proxy}: the load balancer uses http proxies only")


async def connect(proxy: Proxy, address: str, protocol: asyncio.BaseProtocol) -> None:
    """Connect `protocol` to the server at `address` (host:port) through `proxy`. Raises TunnelError, ProxySettingError."""
    check_proxy(proxy)
    parts = urlsplit(proxy.url)
    loop = asyncio.get_running_loop()
    try:
        transport, reply = await loop.create_connection(_Reply, str(parts.hostname), parts.port or HTTP_PORT)
    except OSError as error:
        raise TunnelError(f"{proxy} does not connect: {_reason(error)}") from error
    try:
        transport.write(_request(proxy, address))
        head = await reply.head
        status_line = head.partition(b"\r\n")[0].decode("ascii", "replace")
        version, _, status = status_line.partition(" ")
        if not version.startswith("HTTP/1.") or not head.endswith(b"\r\n\r\n"):
            raise TunnelError(f"{proxy} does not connect: the answer is not that of a proxy")
        if not status.startswith("2"):
            raise TunnelError(proxy.refusal(status))
    except TunnelError:
        transport.abort()
        raise
    except OSError as error:
        transport.abort()
        raise TunnelError(f"{proxy} does not connect: {_reason(error)}") from error
    except BaseException:
        transport.abort()
        raise
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if not transport.is_closing():
        # Only now: octets that come before the protocol was set would be lost.
        transport.resume_reading()


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def _request(proxy: Proxy, address: str) -> bytes:
    parts = urlsplit(proxy.url)
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(credentials).decode()}")
    return "\r\n".join([*lines, "", ""]).encode()


# A connection through the load balancer: its two sides, what flows between them, and how it ends.
#
# Rules kept here:
# * Nothing is read from the client before its server is connected, and nothing from a sender while WRITE_BUFFER octets wait for
#   the other side. What a connection holds in memory is bounded by that.
# * The end of one direction is passed on behind its last octet, and the other direction goes on. A lost side ends the other one:
#   after the octets that are on their way, when it ended in order, at once otherwise.

WRITE_BUFFER = 1 << 16
"""Octets that wait for a slow reader before its sender is paused."""
READ_BUFFER = 1 << 16
"""Octets that are read at once. All sides of a process read into one buffer, which is empty again before the next one reads."""
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds, seconds and times: the kernel finds out within a minute that a machine is gone."""

_buffer = memoryview(bytearray(READ_BUFFER))


class Dialogue(Enum):
    """Stage that a connection has reached."""

    SILENT = "neither side has sent anything"
    ASKED = "the client has sent something, and the server has not"
    ANSWERED = "the server has sent something"
    ENDED = "both sides are closed, or are being closed"


CLIENT_SENT = {
    Dialogue.SILENT: Dialogue.ASKED,
    Dialogue.ASKED: Dialogue.ASKED,
    Dialogue.ANSWERED: Dialogue.ANSWERED,
    Dialogue.ENDED: Dialogue.ENDED,
}
"""The stage after octets of the client, by the stage before them."""
SERVER_SENT = {
    Dialogue.SILENT: Dialogue.ANSWERED,
    Dialogue.ASKED: Dialogue.ANSWERED,
    Dialogue.ANSWERED: Dialogue.ANSWERED,
    Dialogue.ENDED: Dialogue.ENDED,
}
"""The stage after octets of the server."""


class Connection:
    """A connection of a client, and its continuation to a server. `server` is "" until then."""

    def __init__(
        self,
        on_accepted: Callable[[Connection], None],
        on_unanswered: Callable[[Connection], None],
        on_ended: Callable[[Connection], None],
    ) -> None:
        """`on_unanswered` is called when the client finishes without an answer, before `on_ended`."""
        self._on_accepted = on_accepted
        self._on_unanswered = on_unanswered
        self._on_ended = on_ended
        self._sides: list[Side] = []
        self._is_active = False
        self._was_heard = False
        self._idle_since = 0.0
        self.server = ""
        self.opened = 0.0
        self.dialogue = Dialogue.SILENT

    @property
    def is_half_closed(self) -> bool:
        return any(side.is_finished for side in self._sides)

    @property
    def is_paused(self) -> bool:
        """True while a slow reader keeps its sender from being read."""
        return any(side.is_paused for side in self._sides)

    @property
    def waiting_octets(self) -> int:
        """Octets that were read from one side and that the other has not taken."""
        return sum(side.transport.get_write_buffer_size() for side in self._sides)

    def client_side(self) -> Side:
        """Return the protocol of an accepted connection."""
        return Side(self)

    def server_side(self, address: str) -> Side:
        """Return the protocol of a connection to the server at `address`."""
        return Side(self, address)

    def begin(self, now: float) -> None:
        """Count the time from `now`."""
        self.opened = self._idle_since = now

    def pause_client(self) -> None:
        """Read nothing from the client until its server is connected."""
        self._sides[0].transport.pause_reading()

    def joined(self, side: Side) -> None:
        """Take `side`, which is connected. The first one is the client's."""
        if self.dialogue is Dialogue.ENDED:
            # The client has gone while the server was dialled.
            side.transport.abort()
            return
        self._sides.append(side)
        if len(self._sides) == 1:
            self._on_accepted(self)
        else:
            self.server = side.server
            client = self._sides[0]
            client.peer, side.peer = side, client
            client.transport.resume_reading()

    def heard(self, side: Side) -> None:
        """Note that `side` sent something."""
        self._is_active = True
        self._was_heard = self._was_heard or bool(side.server)
        self.dialogue = (SERVER_SENT if side.server else CLIENT_SENT)[self.dialogue]

    def take_heard(self, now: float) -> bool:
        """Return whether the server sent something since the last call."""
        was_heard, self._was_heard = self._was_heard, False
        if self._is_active:
            self._is_active, self._idle_since = False, now
        return was_heard

    def idle_since(self, now: float) -> float:
        """Return when something passed last, to the precision of a check."""
        return now if self._is_active else self._idle_since

    def finished(self, side: Side) -> None:
        """Note that `side` sends no more."""
        if not side.server and self.dialogue is Dialogue.ASKED:
            self._on_unanswered(self)

    def lost(self, side: Side, error: Exception | None) -> None:
        """End the other side after `side` was lost."""
        self.finished(side)
        if error is not None:
            self.abort()
        for one in self._sides:
            one.transport.close()
        self._end()

    def abort(self) -> None:
        """End both sides at once."""
        for one in self._sides:
            one.transport.abort()
        self._end()

    def _end(self) -> None:
        if self.dialogue is not Dialogue.ENDED:
            self.dialogue = Dialogue.ENDED
            self._on_ended(self)


class Side(asyncio.BufferedProtocol):
    """One of the two ends that the load balancer holds."""

    transport: asyncio.Transport

    def __init__(self, connection: Connection, server: str = "") -> None:
        self._connection = connection
        self.server = server
        self.peer: Side | None = None
        self.is_finished = False
        """True after this side has said that it sends no more."""
        self.is_paused = False
        """True while this side takes less than is sent to it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_BUFFER)
        keep_alive(transport.get_extra_info("socket"))
        self._connection.joined(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.heard(self)
        if self.peer is not None:
            self.peer.transport.write(bytes(_buffer[:nbytes]))

    def eof_received(self) -> bool:
        self.is_finished = True
        self._connection.finished(self)
        if self.peer is None or self.peer.is_finished:
            # The transport is closed: nothing is left to come.
            return False
        if not self.peer.transport.is_closing():
            self.peer.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        self.is_paused = True
        if self.peer is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self.peer is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.lost(self, exc)


class Probe(asyncio.Protocol):
    """A connection that shows that a server accepts connections, and is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel find out when the other machine is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
