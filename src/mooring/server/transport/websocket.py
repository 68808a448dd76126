"""Watches over WebSocket, for browsers and whoever else prefers messages to chunks (RFC 6455).

Source: docs/protocol/watch.md#form.

Rules kept here:
* The handshake is judged as kube-apiserver judges it, after the caller is known and allowed: a key, version 13, an Origin. The
  subprotocol with the token is taken out of the list before one of the rest is chosen and echoed.
* One event is one message: text for JSON, binary for protobuf; what a message holds is what kube-apiserver sends, which for
  protobuf is the event without the length that separates events in a body.
* A watch's client has nothing to say but ping, pong and close. Other messages are taken and forgotten, as kube-apiserver does,
  while they are small (else close code 1009) and few (1008). Unmasked or malformed frames are 1002, text that is not
  UTF-8 1007.
* The watch ends when the client closes, or goes; at its own end the client is told 1000 and may answer until it is cut off.
* What a slow reader may have waiting, pongs included, is what every watch may have (`mooring.server.transport.frames`).

wsproto knows the frames, and gets and gives bytes only.
"""

from __future__ import annotations

import asyncio

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from mooring.apimachinery.websocket import PROTOCOL, is_origin, subprotocols, wants_websocket
from mooring.authn.websocketbearer import without_token
from mooring.errors import BadRequestError, ForbiddenError
from mooring.server.response.render import error_response
from mooring.server.transport.frames import Switched
from mooring.server.transport.http import Header, Request, Response
from mooring.server.transport.listener import TlsTransport

VERSION = "13"
MAX_MESSAGE = 4096
"""Bytes of one message that a client may send: it has nothing to say, so that any greeting fits."""
MAX_FRAMES = 1000
"""Frames that a client may send at once, and then `FRAMES_PER_SECOND`: each costs 6 µs of everybody's time."""
FRAMES_PER_SECOND = 10.0
"""A client that pings does so every few seconds."""
LENGTH_PREFIX = 4
"""Bytes before each event of a protobuf body (docs/protocol/watch.md#form)."""


def is_websocket(request: Request) -> bool:
    """Whether the caller wants a WebSocket. Only watches look: what else is asked is answered as if it had not been said."""
    return wants_websocket(request.header(b"upgrade"), request.header(b"connection"))


def refusal(request: Request) -> Response | None:
    """Why this handshake cannot be accepted, if it cannot."""
    key = request.header(b"sec-websocket-key")
    if not key:
        return error_response(BadRequestError("the WebSocket handshake has no Sec-WebSocket-Key"), request)
    if not key.isascii():
        return error_response(BadRequestError("the Sec-WebSocket-Key of the handshake is not ASCII"), request)
    if request.header(b"sec-websocket-version") != VERSION:
        error = BadRequestError(f"the WebSocket version is not supported: this server speaks version {VERSION}")
        response = error_response(error, request)
        response.headers = (*response.headers, (b"sec-websocket-version", VERSION.encode()))  # RFC 6455 4.4
        return response
    if not is_origin(request.header(b"origin")):
        return error_response(ForbiddenError("the WebSocket handshake has no Origin that is a URI"), request)
    if not all(name.isascii() and name.isprintable() for name in _subprotocols(request)):
        message = "a subprotocol of the WebSocket handshake is not printable ASCII (RFC 6455 4.1)"
        return error_response(BadRequestError(message), request)
    return None


def _subprotocols(request: Request) -> tuple[str, ...]:
    """The offered subprotocols without the token."""
    return without_token(subprotocols(request.header_values(PROTOCOL.encode())))


def acceptance(request: Request) -> tuple[Header, ...]:
    """The headers of the 101."""
    headers: list[Header] = [
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", generate_accept_token(request.header(b"sec-websocket-key").encode("ascii"))),
    ]
    if offered := _subprotocols(request):
        headers.append((PROTOCOL.encode(), offered[0].encode("ascii")))
    return tuple(headers)


class Messages(Switched):
    """The frames of one connection that became a WebSocket."""

    __slots__ = ("_closed", "_connection", "_frames", "_since", "_size")

    def __init__(self, transport: TlsTransport) -> None:
        self._connection = Connection(ConnectionType.SERVER)
        self._closed = asyncio.get_running_loop().create_future()
        self._since = asyncio.get_running_loop().time()
        self._frames = 0
        self._size = 0
        super().__init__(transport)

    def _framed(self, data: bytes) -> bytes:
        return bytes(self._connection.send(TextMessage(data.decode())))

    def received(self, data: bytes) -> None:
        """Bytes of the client. Never raises."""
        if self._closed.done():
            return
        self._connection.receive_data(data)
        for event in self._connection.events():
            if isinstance(event, CloseConnection):
                self._close(event)
                return
            code = self._objection(event)
            if code is not None:
                self._close(CloseConnection(code))
                return
            if isinstance(event, Ping) and self._connection.state is ConnectionState.OPEN:
                self._send(bytes(self._connection.send(event.response())))

    def _objection(self, event: Event) -> CloseReason | None:
        """The code with which to close on a frame that is too much."""
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
        """The client said goodbye, in answer or first, or made it impossible to go on: nothing is read after this."""
        if self._connection.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            self._transport.write(bytes(self._connection.send(CloseConnection(event.code))))
        self.lost()

    def lost(self) -> None:
        """Nothing more will come."""
        if not self._closed.done():
            self._closed.set_result(None)
        super().lost()

    async def leave(self) -> None:
        """Say goodbye, unless that has happened, and wait for the answer or for the end of the connection."""
        if self._connection.state is ConnectionState.OPEN and not self._closed.done():
            self._transport.write(bytes(self._connection.send(CloseConnection(CloseReason.NORMAL_CLOSURE))))
        await self._closed


class BinaryMessages(Messages):
    """For protobuf."""

    __slots__ = ()

    def _framed(self, data: bytes) -> bytes:
        return bytes(self._connection.send(BytesMessage(data[LENGTH_PREFIX:])))
