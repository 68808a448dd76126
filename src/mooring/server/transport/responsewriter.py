"""Write streaming replies: HTTP chunks, or the frames of the protocol to which a connection was upgraded.

Rules kept here:
* A streaming reply is written straight to the transport. One encoded watch event is shared by all watchers (law 5).
* A client with more than `MAX_BACKLOG` bytes unsent is cut off, whatever the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Protocol

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
