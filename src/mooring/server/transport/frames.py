"""Where a reply that goes on writes: HTTP chunks, or the messages of what the connection has become.

Rules kept here:
* A streaming response writes frames straight into the transport: one encoded frame is shared by every watcher (law 5).
* A client that falls too far behind is cut off, whichever way it reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

MAX_FRAME_BACKLOG = 8 << 20
"""A watcher with this much unsent is ended; it will list again, as after any lost watch."""


class Outlet(Protocol):
    """What takes the bytes: a connection, or one stream of it."""

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken."""

    def is_closing(self) -> bool:
        """Whether nobody reads any more."""

    def write(self, data: bytes) -> None:
        """Send `data`."""

    async def drained(self) -> None:
        """Return when the client has taken enough to be sent more, or is gone. Others have their turn in any case."""

    def abort(self) -> None:
        """End it at once."""


class Frames:
    """Where a streaming response writes. Synchronous, so that one change reaches every watcher in one pass."""

    __slots__ = ("_transport", "ended")

    def __init__(self, transport: Outlet) -> None:
        self._transport = transport
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the client is gone, or somebody called `end`."""
        if transport.is_closing():
            self.lost()  # before the stream began: nobody else will say so

    def write(self, data: bytes) -> None:
        """Send `data` as one HTTP chunk. A client too far behind is cut off; after the end nothing is sent."""
        self._send(chunk(data))

    def write_all(self, pieces: Sequence[bytes]) -> None:
        """Send several at once."""
        self.write(b"".join(pieces))

    def _send(self, framed: bytes) -> None:
        if self.ended.done():
            return
        if self._transport.waiting > MAX_FRAME_BACKLOG:
            self._transport.abort()
            self.end()
            return
        self._transport.write(framed)

    async def drained(self) -> None:
        """Return when the client has taken enough to be sent more, or is gone. Others have their turn in any case."""
        await self._transport.drained()

    def end(self) -> None:
        """Let the stream finish."""
        if not self.ended.done():
            self.ended.set_result(None)

    def lost(self) -> None:
        """The connection is gone."""
        self.end()


def chunk(data: bytes) -> bytes:
    """`data` as one chunk of HTTP/1.1 chunked coding (RFC 9112 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


Streamer = Callable[[Frames], Awaitable[None]]


class Switched(Frames):
    """A stream whose connection speaks its protocol after a 101: it frames what it sends, and gets what the client sends."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        if not self.ended.done():
            self._send(self._framed(data))

    def write_all(self, pieces: Sequence[bytes]) -> None:
        if not self.ended.done():
            self._send(b"".join(map(self._framed, pieces)))

    def _framed(self, data: bytes) -> bytes:
        raise NotImplementedError

    def received(self, data: bytes) -> None:
        """Take what the client sent. Never raises."""
        raise NotImplementedError

    async def leave(self) -> None:
        """End the protocol in its own way, after the stream has finished. Returns at once when the connection is lost."""
        raise NotImplementedError
