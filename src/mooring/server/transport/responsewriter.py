"""Streaming replies: HTTP chunks, or WebSocket frames of a connection that was upgraded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Protocol

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from mooring.server.transport.tlsconnection import TlsTransport

# Write streaming replies: HTTP chunks, or the frames of the protocol to which a connection was upgraded.
#
# Rules kept here:
# * A streaming reply is written straight to the transport. One encoded watch event is shared by all watchers (law 5).
# * A client with more than `MAX_BACKLOG` bytes unsent is cut off, whatever the protocol.

MAX_BACKLOG = 8 << 20
"""Bytes. A watch with this much unsent is ended; its client lists again, as after any lost watch."""


class Outlet(Protocol):
    """A connection, or one HTTP/2 stream of it, that takes the bytes of a reply."""

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken."""

    def is_closing(self) -> bool:
        """Return True once nothing more can be sent."""

    def write(self, data: bytes) -> None:
        """Send `data`."""

    async def drained(self) -> None:
        """Return when more may be sent, or when the client is gone. Always gives way to other tasks."""

    def abort(self) -> None:
        """End the connection or stream at once."""


class ResponseWriter:
    """Writer of a streaming reply as HTTP chunks. It is synchronous, so that one change reaches every watcher in one pass."""

    __slots__ = ("ended", "transport")

    _last: ClassVar[tuple[bytes, bytes]] = b"", b""
    """Event that any writer wrote last, and its chunk: an event is framed once, and all its watchers take the same bytes."""

    def __init__(self, transport: Outlet) -> None:
        self.transport = transport
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the client is gone or `end` was called."""
        if transport.is_closing():
            self.lost()  # the connection ended before the stream began, and will not report that again

    def write(self, data: bytes) -> None:
        """Send `data` as one HTTP chunk. A client too far behind is cut off; after the end nothing is sent."""
        written, framed = ResponseWriter._last
        if written is not data:
            framed = chunk(data)
            ResponseWriter._last = data, framed
        self.send(framed)

    def write_all(self, pieces: Sequence[bytes]) -> None:
        """Send several pieces at once."""
        self.write(b"".join(pieces))

    def send(self, framed: bytes) -> None:
        """Send bytes that are framed already. A client too far behind is cut off; after the end nothing is sent."""
        if self.ended.done():
            return
        if self.transport.waiting > MAX_BACKLOG:
            self.transport.abort()
            self.end()
            return
        self.transport.write(framed)

    async def drained(self) -> None:
        """Return when more may be sent, or when the client is gone. Always gives way to other tasks."""
        await self.transport.drained()

    def end(self) -> None:
        """Let the stream finish."""
        if not self.ended.done():
            self.ended.set_result(None)

    def lost(self) -> None:
        """Note that the connection is gone."""
        self.end()


class BareWriter(ResponseWriter):
    """Writer of a reply that the end of the connection ends."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        self.send(data)


def chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of the chunked transfer coding (RFC 9112 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


Streamer = Callable[[ResponseWriter], Awaitable[None]]


class UpgradedWriter(ResponseWriter):
    """Writer on a connection that was upgraded by a 101 reply. It frames what it sends, and receives the client's bytes."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        if not self.ended.done():
            self.send(self.frame(data))

    def write_all(self, pieces: Sequence[bytes]) -> None:
        if not self.ended.done():
            self.send(b"".join(map(self.frame, pieces)))

    def frame(self, data: bytes) -> bytes:
        """Return `data` in the framing of the protocol."""
        raise NotImplementedError

    def received(self, data: bytes) -> None:
        """Process bytes of the client. Never raises."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Close in the protocol's own way after the stream has finished. Returns at once when the connection is lost."""
        raise NotImplementedError


# Carry a watch over WebSocket frames, for browsers and other clients that prefer messages to chunks (RFC 6455).
#
# Source: docs/protocol/watch.md#form.
#
# Rules kept here:
# * One event is one message: text for JSON, binary for protobuf. Its payload is that of kube-apiserver: in protobuf the event
#   without the length that separates events in a response body.
# * The client of a watch needs to send ping, pong and close only. Other messages are discarded, as kube-apiserver does, while
#   they are small (else close code 1009) and few (1008). Unmasked or malformed frames close with 1002, text that is not UTF-8
#   with 1007.
# * The watch ends when the client closes the WebSocket or the connection. At its own end the server sends close code 1000, and
#   waits for the client's close frame until the connection is cut off.
# * Unsent bytes, pongs included, are bounded as for every watch (`mooring.server.transport.responsewriter`).
#
# wsproto implements the frames; it receives and returns bytes only.

MAX_MESSAGE = 4096
"""Bytes of one message that a client may send. The client of a watch sends none on purpose."""
MAX_FRAMES = 1000
"""Frames that a client may send at once; after that `FRAMES_PER_SECOND`. Each takes 6 µs of the event loop."""
FRAMES_PER_SECOND = 10.0
"""Rate after that. A client pings every few seconds."""
LENGTH_PREFIX = 4
"""Bytes before each event of a protobuf body (docs/protocol/watch.md)."""


class WebSocketWriter(UpgradedWriter):
    """Writer of text messages on one connection that was upgraded to WebSocket."""

    __slots__ = ("_closed", "_connection", "_frames", "_since", "_size", "heard")

    def __init__(self, transport: TlsTransport) -> None:
        self._connection = Connection(ConnectionType.SERVER)
        self._closed = asyncio.get_running_loop().create_future()
        self._since = asyncio.get_running_loop().time()
        self._frames = 0
        self._size = 0
        self.heard = 0
        """Number of times that bytes of the client came."""
        super().__init__(transport)

    def frame(self, data: bytes) -> bytes:
        return bytes(self._connection.send(TextMessage(data.decode())))

    def received(self, data: bytes) -> None:
        """Process bytes of the client. Never raises."""
        if self._closed.done():
            return
        self.heard += 1
        self._connection.receive_data(data)
        for event in self._connection.events():
            if isinstance(event, CloseConnection):
                self._close(event)
                return
            code = self._exceeded_limit(event)
            if code is not None:
                self._close(CloseConnection(code))
                return
            if isinstance(event, Ping) and self._connection.state is ConnectionState.OPEN:
                self.send(bytes(self._connection.send(event.response())))

    def ping(self) -> None:
        """Send a ping, unless the WebSocket is closing."""
        if self._connection.state is ConnectionState.OPEN:
            self.send(bytes(self._connection.send(Ping())))

    def _exceeded_limit(self, event: Event) -> CloseReason | None:
        """Return the close code when this event exceeds a limit, else None."""
        self._frames += 1
        elapsed = asyncio.get_running_loop().time() - self._since
        if self._frames > MAX_FRAMES + elapsed * FRAMES_PER_SECOND:
            return CloseReason.POLICY_VIOLATION
        if isinstance(event, Message):
            self._size += len(event.data)
            if self._size > MAX_MESSAGE:
                return CloseReason.MESSAGE_TOO_BIG
            if event.message_finished:
                self._size = 0
        return None

    def _close(self, event: CloseConnection) -> None:
        """Send or answer a close frame; nothing is read after it."""
        if self._connection.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            self.transport.write(bytes(self._connection.send(CloseConnection(event.code))))
        self.lost()

    def lost(self) -> None:
        """Note that the connection is gone."""
        if not self._closed.done():
            self._closed.set_result(None)
        super().lost()

    async def leave(self) -> None:
        """Send a close frame unless one was sent, and wait for the client's close frame or the end of the connection."""
        if self._connection.state is ConnectionState.OPEN and not self._closed.done():
            self.transport.write(bytes(self._connection.send(CloseConnection(CloseReason.NORMAL_CLOSURE))))
        await self._closed


class BinaryWebSocketWriter(WebSocketWriter):
    """Writer of binary messages, for protobuf."""

    __slots__ = ()

    def frame(self, data: bytes) -> bytes:
        return bytes(self._connection.send(BytesMessage(data[LENGTH_PREFIX:])))
