"""Loopback redirect listener: receives the browser at the end of an authorization code grant (RFC 8252 section 7.3).

Rules kept here: it listens on 127.0.0.1 alone, for the time of one login. A request line has a limit. A request that does not
belong to this login gets an error page and does not end the login. The page for the browser repeats nothing of the request. The
person who waits gets few notices, because any page can send a browser here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress

from mooring.errors import ConfigError, MooringError
from mooring.secret import Secret
from mooring.trust.oidc.grants import StrayRedirectError

MAX_LINE = 16 << 10
"""Bytes of a request line that are read at once. Of a longer line twice as many are kept: more than any redirect has."""
MAX_PASSED_OVER = 1 << 20
"""Bytes that are read of a longer line, so that the browser shows the answer and not a broken connection."""
MAX_NOTICES = 3
"""Notices of one login."""
READ_SECONDS = 10.0
"""Seconds for a browser on this machine to send the request line."""
NO_REPLY = b"This does not belong to the login that is waiting. It is still waiting: see its terminal."
_PAGE = b"<!doctype html><meta charset=utf-8><title>mooring</title><p>%b You can close this page.\n"


class Loopback:
    """One listener, on `port`. `read` returns the code in a request target, or None; set it before the browser starts.

    `notify` receives the notices of redirects that do not prove to belong to this login.
    """

    def __init__(self) -> None:
        self.port = 0
        self.read: Callable[[str], Secret | None] = _ignore
        self.notify: Callable[[str], None] = _drop
        self._notices = 0
        self._found: asyncio.Future[Secret] = asyncio.get_running_loop().create_future()

    async def answer(self, seconds: float) -> Secret:
        """Return the code that `read` returned, or raise its error. Raises TimeoutError after `seconds`."""
        async with asyncio.timeout(seconds):
            return await self._found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request on one connection."""
        with (
            closing(writer),
            suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError),
        ):
            async with asyncio.timeout(READ_SECONDS):
                line = (await _request_line(reader)).decode("ascii").split(" ")
            status, text = self._page_for(line[1] if line[0] == "GET" and len(line) > 1 else "")
            page = _PAGE % text
            writer.write(
                b"HTTP/1.1 %b\r\nContent-Type: text/html\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(page), page)
            )
            await writer.drain()

    def _page_for(self, target: str) -> tuple[bytes, bytes]:
        try:
            found = self.read(target)
        except StrayRedirectError as error:
            if self._notices < MAX_NOTICES and not self._found.done():
                self._notices += 1
                self.notify(str(error))
            return b"400 Bad Request", NO_REPLY
        except MooringError as error:
            if not self._found.done():
                self._found.set_exception(error)
            return b"200 OK", b"Login failed."
        if found is None:
            return b"404 Not Found", b"There is nothing here."
        if not self._found.done():
            self._found.set_result(found)
        # the code is redeemed after this page, and the provider or the cluster may still refuse
        return b"200 OK", b"Return to the terminal: it says whether you are logged in."


async def _request_line(reader: asyncio.StreamReader) -> bytes:
    """Return the request line. A line that is too long is cut, and the rest of it passed over."""
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        line, length = b"", 0
        while length < MAX_PASSED_OVER and (piece := await reader.read(MAX_LINE)):
            line, length = (line + piece)[: 2 * MAX_LINE], length + len(piece)
            if b"\n" in piece:
                break
        return line


def _drop(notice: str) -> None:
    """Drop a notice."""


def _ignore(target: str) -> Secret | None:
    return None


@asynccontextmanager
async def listening(port: int = 0) -> AsyncIterator[Loopback]:
    """Yield a listener on `port`, or on a free port for 0. Raises ConfigError when it cannot listen."""
    loopback = Loopback()
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(loopback.serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    try:
        server = await asyncio.start_server(connected, "127.0.0.1", port, limit=MAX_LINE)
    except OSError as error:
        raise ConfigError(f"port {port} of 127.0.0.1 cannot be listened on: {(error.strerror or '').lower()}") from None
    loopback.port = server.sockets[0].getsockname()[1]
    try:
        yield loopback
    finally:
        server.close()
        for task in connections:  # browsers open connections in advance, and send nothing
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()
