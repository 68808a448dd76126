"""Carry a watch over WebSocket frames, for browsers and other clients that prefer messages to chunks (RFC 6455).

Source: docs/protocol/watch.md#form.

Rules kept here:
* One event is one message: text for JSON, binary for protobuf. Its payload is that of kube-apiserver: in protobuf the event without
  the length that separates events in a response body.
* The client of a watch needs to send ping, pong and close only. Other messages are discarded, as kube-apiserver does, while they
  are small (else close code 1009) and few (1008). Unmasked or malformed frames close with 1002, text that is not UTF-8 with 1007.
* The watch ends when the client closes the WebSocket or the connection. At its own end the server sends close code 1000, and waits
  for the client's close frame until the connection is cut off.
* Unsent bytes, pongs included, are bounded as for every watch (`mooring.server.transport.responsewriter`).

wsproto implements the frames; it receives and returns bytes only.
"""

from __future__ import annotations

import asyncio

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from mooring.server.transport.responsewriter import UpgradedWriter
from mooring.server.transport.tlsconnection import TlsTransport

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
