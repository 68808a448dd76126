"""A blocking HTTP/2 client over TLS that can also break the rules: h2 keeps the state, hyperframe makes frames of any kind.

Rules kept here: every wait is bounded by the socket's timeout; frames from the server are kept as h2's events.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes
from hyperframe.frame import Frame

from tests.support.testca import Pair
from tests.support.tlspeer import Served, rest

Headers = list[tuple[str, str]]


@dataclass
class Reply:
    """The response received on one stream."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


class Peer:
    """One connection. `windows` False: the client sends no WINDOW_UPDATE."""

    def __init__(self, plain: socket.socket, *, window: int | None = None, windows: bool = True) -> None:
        self.socket = plain
        self.windows = windows
        self.h2 = H2Connection(
            H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False)
        )
        if window is not None:
            self.h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
            self.h2.local_settings.acknowledge()
        self.h2.initiate_connection()
        self.events: list[Event] = []
        self.replies: dict[int, Reply] = {}
        self.goaway: ConnectionTerminated | None = None
        self.is_closed = False
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            self.socket.sendall(self.h2.data_to_send())

    def raw(self, *frames: Frame | bytes) -> None:
        """Send frames unchanged, valid or not."""
        data = b"".join(frame if isinstance(frame, bytes) else frame.serialize() for frame in frames)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            self.socket.sendall(data)

    def ask(
        self, path: str = "/", method: str = "GET", headers: Headers | None = None, *, body: bytes | None = None
    ) -> int:
        """Send one request. Return its stream. A body is sent as far as the server's windows allow."""
        stream = self.begin(path, method, headers, end=body is None)
        if body is not None:
            self.send(stream, body)
        return stream

    def begin(self, path: str, method: str, headers: Headers | None = None, *, end: bool = False) -> int:
        """Send the headers of one request, whose body follows unless `end`. Return its stream."""
        stream = self.h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        self.h2.send_headers(stream, [*pseudo, *(headers or [])], end_stream=end)
        self.replies[stream] = Reply()
        self.flush()
        return stream

    def send(self, stream: int, body: bytes, *, end: bool = True) -> None:
        """Send a body within the server's windows, until it is complete or the stream has ended."""
        reply = self.replies[stream]
        while body:
            self.until(lambda: self.h2.local_flow_control_window(stream) > 0 or reply.reset is not None)
            if reply.reset is not None:
                return
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(body))
            self.h2.send_data(stream, body[:size])
            body = body[size:]
            self.flush()
        if end and reply.reset is None:
            self.h2.end_stream(stream)
            self.flush()

    def step(self) -> None:
        """Receive the server's next bytes."""
        try:
            data = self.socket.recv(1 << 16)
        except (ConnectionError, ssl.SSLError) as error:
            if isinstance(error, TimeoutError):
                raise
            data = b""
        if not data:
            self.is_closed = True
            return
        for event in self.h2.receive_data(data):
            self._note(event)
        self.flush()

    def _note(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case ResponseReceived(stream_id=stream, headers=headers):
                reply = self.replies[stream or 0]
                reply.headers = {str(name): str(value) for name, value in headers or ()}
                reply.status = int(reply.headers[":status"])
            case DataReceived(stream_id=stream, data=data):
                self.replies[stream or 0].pieces.append(data or b"")
                if self.windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length or 0, stream or 0)
            case StreamEnded(stream_id=stream):
                self.replies[stream or 0].ended = True
            case StreamReset(stream_id=stream):
                self.replies[stream or 0].reset = event.error_code
            case ConnectionTerminated():
                self.goaway = event
            case _:
                pass

    def until(self, passes: Callable[[], bool]) -> None:
        """Receive until `passes`. Raises ConnectionError when the server closes before."""
        while not passes():
            if self.is_closed:
                raise ConnectionError("the server closed the connection")
            self.step()

    def reply(self, stream: int) -> Reply:
        """Return the complete reply to one request."""
        reply = self.replies[stream]
        self.until(lambda: reply.ended or reply.reset is not None)
        return reply

    def get(self, path: str = "/", method: str = "GET", headers: Headers | None = None) -> Reply:
        return self.reply(self.ask(path, method, headers))

    def end(self) -> int | None:
        """Receive everything until the server closes. Return the code of its GOAWAY."""
        while not self.is_closed:
            self.step()
        return self.goaway.error_code if self.goaway is not None else None

    def rest(self) -> list[tuple[int, int, bytes]]:
        """Return type, stream and payload of each frame until the server closes; h2 rejects frames after a GOAWAY."""
        data = rest(self.socket)
        frames, at = [], 0
        while at + 9 <= len(data):
            end = at + 9 + int.from_bytes(data[at : at + 3])
            frames.append((data[at + 3], int.from_bytes(data[at + 5 : at + 9]), data[at + 9 : end]))
            at = end
        return frames


@contextlib.contextmanager
def peer(
    served: Served,
    directory: Path,
    identity: Pair | None = None,
    *,
    window: int | None = None,
    windows: bool = True,
) -> Iterator[Peer]:
    """Yield a client that has negotiated HTTP/2."""
    context = served.context(directory, identity)
    context.set_alpn_protocols(["h2"])
    with served.client(directory, context=context) as plain:
        yield Peer(plain, window=window, windows=windows)
