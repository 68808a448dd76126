"""One request on an HTTP/1.1 connection, and its reply: the body as it is read, the reply as the client takes it (RFC 9112).

Rules kept here:
* An exception that reaches this file is a bug of ours: the operator gets the traceback, the client a 500, or the end in the
  middle of a reply. So is a header that would split the reply.
* Nothing is added to what waits for a client that is behind: a reply, and each turn of it, waits until it has caught up.
  What waits so, and the body that was received, count as what the client makes us hold (`mooring.server.transport.holdings`).
* A large reply leaves in several turns of the loop.
* Who asks whether to send a body (RFC 9110 10.1.1) is told when somebody reads it. Answered before, it may send it or not, and
  nobody can know: the connection ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from mooring.server.transport.frames import Frames, Streamer, Switched
from mooring.server.transport.http import Application, Header, Request, Response, Target, in_pieces, weight

if TYPE_CHECKING:
    from mooring.server.transport.http1.connection import Protocol

log = logging.getLogger("mooring.server")

END_SECONDS = 5.0
"""A client that is so far behind that it has not come to the end of a stream by then does not read: it is cut off."""

OCTETS_A_TURN = 256 << 10
"""Body bytes sent to one client in one turn, as over HTTP/2: 0.3 ms of encryption."""

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in HTTPStatus}
_NO_BODY = (204, 304)
"""RFC 9110 8.6: for 304 the length would be that of the 200 that is not sent."""


def reply_head(status: int, headers: tuple[Header, ...], *more: Header) -> bytes:
    """The status line and the headers, up to and with the empty line. Raises ValueError for what would be more than that."""
    parts = [_STATUS_LINES[status]]
    for name, value in headers:
        parts += (b"\r\n", name, b": ", value)
    for name, value in more:
        parts += (b"\r\n", name, b": ", value)
    parts.append(b"\r\n\r\n")
    head = b"".join(parts)
    lines = len(headers) + len(more) + 2
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise ValueError("a header of the reply holds more than a line")
    return head


class Exchange:
    """One request and its reply."""

    __slots__ = (
        "_held", "_is_told", "_pieces", "_protocol", "_wake", "is_last", "is_lost", "is_started", "is_whole", "request", "task",
        "unread",
    )  # fmt: skip

    def __init__(self, protocol: Protocol, method: str, target: Target, headers: list[Header], is_last: bool) -> None:
        self._protocol = protocol
        self.request = Request(method, *target, headers, protocol.transport.connection, self.receive)
        self.is_last = is_last
        """The connection ends after it."""
        self.is_whole = False
        """The whole request is here."""
        self.is_started = False
        """The reply has begun."""
        self.is_lost = False
        """The client has gone."""
        self.unread = 0
        """Bytes of the body that nobody has read."""
        self.task: asyncio.Task[None]
        """What finds the reply; there is one from when it is this request's turn."""
        self._held = 0
        self._is_told = False  # to send the body
        self._pieces: list[bytes] = []
        self._wake: asyncio.Future[None] | None = None

    def arrived(self, data: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(data)
        self.unread += len(data)
        self.hold(len(data))
        self._woken()

    def hold(self, octets: int) -> None:
        """Count bytes that are kept until the exchange has ended."""
        self._held += octets
        self._protocol.transport.hold(octets)

    def ended(self) -> None:
        """The request is whole."""
        self.is_whole = True
        self._woken()

    def lost(self) -> None:
        """The client has gone."""
        self.is_lost = True
        self._woken()

    def _woken(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        self._wake = None

    async def receive(self) -> dict[str, Any]:
        """The next piece of the body, as ASGI has it."""
        if self._is_expecting():
            self._is_told = True
            self._protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._pieces or self.is_whole or self.is_lost):
            self._wake = self._protocol.loop.create_future()
            await self._wake
        if self.is_lost:
            return {"type": "http.disconnect"}
        body, self._pieces, self.unread = b"".join(self._pieces), [], 0
        self._protocol.regulate()
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    def _is_expecting(self) -> bool:
        """Whether the client waits to be told to send the body (RFC 9110 10.1.1)."""
        if self.is_whole or self._pieces or self._is_told:
            return False
        return self.request.header(b"expect").lower() == "100-continue"

    async def run(self, application: Application) -> None:
        """Find the reply and send it."""
        protocol = self._protocol
        try:
            response = await application.answer(self.request)
            if response.stream is not None:
                await self._stream(response, response.stream)
            else:
                await self._reply(response)
        except Exception:  # a handler answers for its own errors; this is a bug, and must not stop the others
            log.exception("a request could not be answered")
            if self.is_started:
                protocol.transport.close()
            else:
                protocol.refuse(b"500 Internal Server Error")
        finally:
            self.request.close()
            del self.request  # it holds this object: no work for the garbage collector
            if self._held:
                protocol.transport.hold(-self._held)
            application.tasks.discard(self.task)
            protocol.answered(self)

    async def _reply(self, response: Response) -> None:
        pieces, size = in_pieces(response.body)
        is_mute = self.request.method == "HEAD"
        length = () if response.status in _NO_BODY else ((b"content-length", b"%d" % size),)
        if self._protocol.is_choked:
            self.hold(weight(response.body))
        if await self._begin(response, *length):
            if not is_mute:
                await self._send(pieces, weight(response.body))
            if response.at_once:
                self._protocol.transport.flush()

    async def _send(self, pieces: Iterable[bytes], held: int) -> None:
        """Send a body as the client takes it; `held`: what is counted when it has to wait."""
        transport = self._protocol.transport
        left = OCTETS_A_TURN
        is_counted = False
        for piece in pieces:
            for start in range(0, len(piece), OCTETS_A_TURN):
                part = piece if len(piece) <= OCTETS_A_TURN else memoryview(piece)[start : start + OCTETS_A_TURN]
                left -= len(part)
                if left < 0:
                    left = OCTETS_A_TURN - len(part)
                    transport.flush()
                    if not self._protocol.is_choked:
                        await asyncio.sleep(0)
                    elif not is_counted:
                        is_counted = True
                        self.hold(held)
                    if not await self._has_room():
                        return
                transport.write(part)

    async def _begin(self, response: Response, *more: Header) -> bool:
        """Send the head; False when nobody is there any more."""
        if (self._protocol.is_choked or self.is_lost) and not await self._has_room():
            return False
        self.is_last = self.is_last or self._is_expecting()  # whether its body still comes, nobody knows
        if self.is_last and response.switch is None:
            more = (*more, (b"connection", b"close"))
        head = reply_head(response.status, response.headers, *more)
        self.is_started = True
        self._protocol.transport.write(head)
        return True

    async def _has_room(self) -> bool:
        """Wait until the client has taken enough of what was sent; False when it has gone."""
        if not self.is_lost:
            await self._protocol.drained()
        return not self.is_lost

    async def _stream(self, response: Response, stream: Streamer) -> None:
        """Send a reply that goes on, as chunks or as what the connection becomes."""
        protocol, transport = self._protocol, self._protocol.transport
        coding = ((b"transfer-encoding", b"chunked"),) if response.switch is None else ()
        await self._begin(response, *coding)
        # for the audit record; no credentials stay in memory of a request that is being answered for an hour
        self.request.headers = [one for one in self.request.headers if one[0] == b"user-agent"]
        if response.switch is None:
            frames = protocol.frames = Frames(transport)
        else:
            self.is_last = True
            frames = response.switch(transport)
            protocol.switched(frames)
        try:
            await stream(frames)
        finally:
            frames.end()
        late = protocol.loop.call_later(END_SECONDS, transport.abort)
        try:
            if isinstance(frames, Switched):
                await frames.leave()
            else:
                protocol.frames = None
                if await self._has_room():
                    transport.write(b"0\r\n\r\n")
        finally:
            late.cancel()
