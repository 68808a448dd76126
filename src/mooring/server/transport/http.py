"""HTTP requests, responses and the application that answers them, for HTTP/1.1 and HTTP/2 alike (`http1`, `http2`).

Rules kept here:
* Header bytes, body bytes, the time that headers and bodies may take, and idle time are bounded.
* A handler receives a `Request` and returns a `Response`; it never sees a connection.
* The transport closes every request, so that resources which a handler acquired for a reply are released even when the reply was
  never sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from mooring.apimachinery.codec.json import MAX_BODY, body_too_large
from mooring.errors import BadRequestError, RequestTimeoutError
from mooring.identity import is_text
from mooring.server.transport.httpgrammar import (
    MAX_REMEMBERED_QUERY,
    Header,
    exact_text,
    header_text,
    read_query,
)
from mooring.server.transport.responsewriter import Streamer, UpgradedWriter
from mooring.server.transport.tlsconnection import TlsConnection, TlsTransport

MAX_HEADER_BYTES = 64 << 10
"""Go's default is 1 MiB. The largest real Kubernetes request (a large OIDC token and impersonation) stays below 32 kB."""
MAX_HEADERS = 1000
"""Each header is examined several times. A request that impersonates a user with hundreds of groups still passes."""
FEW_HEADERS = 50
"""Headers that are searched for each name. More are sorted by name first: a proxy may send a thousand names of extra attributes."""
HEADER_SECONDS = 32.0
"""kube-apiserver's ReadHeaderTimeout. For the first request it runs from the TLS handshake, so that silent connections end."""
BODY_SECONDS = 60.0
"""kube-apiserver's default request timeout."""
IDLE_SECONDS = 120
"""Go clients drop idle connections after 90 s. A server that closes later avoids a race with a reused connection."""
KEPT_SECONDS = 2.0
"""Time for which a connection must have been silent before the server closes it while it stops. A client in the middle of its work
sends its next request earlier, and reads in the reply that the connection ends."""
LINGER_SECONDS = 0.5
"""Time from a GOAWAY behind the last reply to the end of the connection, as in Go's server: a client can read both."""


_ENTITY_TAG = re.compile(r'"[^"]*"')
"""The opaque part of an entity tag, which alone counts in a weak comparison (RFC 9110 8.8.3.2)."""
Receive = Callable[[], Awaitable[tuple[bytes, bool] | None]]
"""Function that returns the next piece of a request body and whether more follows, or None when the client is gone."""


class Request:
    """One HTTP request. Header names are lower-case bytes as HTTP carries them."""

    __slots__ = (
        "_body",
        "_first",
        "_headers",
        "_query",
        "_receive",
        "closing",
        "connection",
        "method",
        "path",
        "query_string",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query_string: bytes,
        headers: Sequence[Header],
        connection: TlsConnection,
        receive: Receive,
    ) -> None:
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = headers
        self.connection = connection
        self._receive = receive
        self._body: bytes | None = None
        self._query: dict[str, list[str]] | None = None
        self.closing: Callable[[], None] | None = None
        """Function that releases what the reply holds, such as the subscription of a watch. The transport calls it once the
        exchange has ended, whether or not a reply was sent."""

    @property
    def query(self) -> dict[str, list[str]]:
        """Query parameters in order of appearance. Treat as immutable. Raises BadRequestError for more than 1000."""
        if self._query is None:
            self._query = read_query(self.query_string)
        return self._query

    @property
    def is_query_cheap(self) -> bool:
        """True when `query` is cheap: it is short or was parsed before. A long one takes up to 10 ms."""
        return self._query is not None or len(self.query_string) <= MAX_REMEMBERED_QUERY

    @property
    def uri(self) -> str:
        """Path and query as requested, for the audit record."""
        query, path = self.query_string.decode("latin-1"), self.path
        if not is_text(path):
            path = quote(path.encode("utf-8", "surrogateescape"))
        return f"{path}?{query}" if query else path

    @property
    def headers(self) -> Sequence[Header]:
        """Headers in the order received. Treat as immutable."""
        return self._headers

    @headers.setter
    def headers(self, headers: Sequence[Header]) -> None:
        self._headers = headers
        self._first = dict(reversed(headers))

    def header(self, name: bytes) -> str:
        """Return the first value of a header, or "".

        kube-apiserver reads Accept, Accept-Encoding and Connection so, by Go's `Header.Get`: further lines of them are ignored.
        """
        value = self._first.get(name)
        return header_text(value) if value else ""

    def has_current(self, etag: str) -> bool:
        """Return whether If-None-Match names the ETag: alone, weak, in a list, or by `*` (RFC 9110 13.1.2)."""
        named = self.header_list(b"if-none-match")
        return named == etag or named.strip() == "*" or etag in _ENTITY_TAG.findall(named)

    def exact_header(self, name: bytes) -> bytes:
        """Return the bytes of the first value of a header, or b""."""
        return self._first.get(name, b"")

    def header_values(self, name: bytes) -> list[str]:
        """Return all values of a header, in the order received."""
        if name not in self._first:
            return []
        return [header_text(value) for key, value in self._headers if key == name]

    def header_list(self, name: bytes) -> str:
        """Return a header that is a list, its lines joined in the order received (RFC 9110 5.3); "" without one."""
        return ", ".join(self.header_values(name))

    def header_reader(self) -> Callable[[str], Sequence[str]]:
        """Return a function that reads the values of a header as `exact_text`, in the order received. It goes on reading these
        headers when the request gets others."""
        sent, first = self._headers, self._first
        by_name: dict[bytes, list[str]] = {}
        if len(sent) > FEW_HEADERS:
            for key, value in sent:
                by_name.setdefault(key, []).append(exact_text(value))

        def values(name: str) -> Sequence[str]:
            key = name.encode()
            if by_name:
                return by_name.get(key, ())
            return [exact_text(value) for other, value in sent if other == key] if key in first else ()

        return values

    def close(self) -> None:
        """End the exchange. Idempotent."""
        closing, self.closing = self.closing, None
        if closing is not None:
            closing()

    async def load(self, limit: int = MAX_BODY) -> bool:
        """Receive the whole body, of at most `limit` bytes. Return False for a method that has none. Raises as `body` does."""
        if self.method in ("GET", "HEAD"):
            return False
        if self._body is None:
            self._body = await self._read_body(limit)
        return True

    async def body(self) -> bytes:
        """Return the whole body. Raises RequestEntityTooLargeError beyond the limit, RequestTimeoutError when it does not come,
        and BadRequestError when the client is gone."""
        await self.load()
        return self._body or b""

    async def _read_body(self, limit: int) -> bytes:
        declared = self.header(b"content-length")
        if declared and int(declared) > limit:  # the HTTP parser has checked that it is a number
            raise body_too_large(limit)
        pieces: list[bytes] = []
        total = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    received = await self._receive()
                    if received is None:
                        raise BadRequestError("the connection was closed before the whole body arrived")
                    piece, more = received
                    total += len(piece)
                    # Checked while it arrives: a body in chunks declares no length.
                    if total > limit:
                        raise body_too_large(limit)
                    pieces.append(piece)
                    if not more:
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError as error:
            raise RequestTimeoutError(f"the request body did not arrive within {BODY_SECONDS:.0f} seconds") from error


JSON = (b"content-type", b"application/json")


class Body(Protocol):
    """A long body in pieces, each made when the client has taken those before it: a slow reader of a list of 130 MB holds one piece
    in memory, not all."""

    @property
    def size(self) -> int:
        """Bytes of all pieces together."""

    def __iter__(self) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class Pieces:
    """A body whose pieces are already made."""

    parts: Sequence[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.parts)


def in_pieces(body: bytes | Body) -> tuple[Iterable[bytes], int]:
    """Return the pieces of a body, and its size in bytes."""
    return ((body,), len(body)) if isinstance(body, bytes) else (body, body.size)


KEPT_SHARE = 4
"""A long body counts as held memory with one byte in so many. Its pieces are made of objects that the watch cache keeps anyway;
only objects that are replaced meanwhile are kept for this reader alone."""


def weight(body: bytes | Body) -> int:
    """Return the bytes that count as held while a body waits for its client."""
    return len(body) if isinstance(body, bytes) else body.size // KEPT_SHARE


@dataclass(slots=True)
class Response:
    """A reply: `body` whole or in pieces, or `stream` for a streaming reply.

    With `at_once` it is sent before the event loop does anything else. Otherwise all replies of one turn of the loop are sent in
    the next, which wakes a client with many connections less often.
    """

    status: int
    body: bytes | Body = b""
    headers: tuple[Header, ...] = (JSON,)
    stream: Streamer | None = None
    at_once: bool = False
    closes_http2: bool = False
    """True for a reply to an anonymous client: its HTTP/2 connection accepts no more requests."""
    upgrade: Callable[[TlsTransport], UpgradedWriter] | None = None
    """Writer of the protocol to which the connection is upgraded, when `status` is 101."""


Handler = Callable[[Request], Awaitable[Response]]
Transform = Callable[[Request, Response], Awaitable[Response]]


async def unchanged(request: Request, response: Response) -> Response:
    """Return the reply of the handler."""
    return response


class HttpConnection(Protocol):
    """An open connection of either HTTP version."""

    def leave(self) -> None:
        """Ask the client to use another connection. Requests that it sends before it knows are served."""

    def shutdown(self) -> None:
        """Accept no more requests; close once the accepted ones are answered."""


class Application:
    """A handler with its open connections and running requests. `transform` may change replies that are sent whole."""

    def __init__(self, handler: Handler, transform: Transform = unchanged) -> None:
        self.handler = handler
        self._transform = transform
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """One task for each request that is being answered."""
        self.is_leaving = False
        """True once clients are asked to use other connections."""

    def leave(self) -> None:
        """Ask every client to use another connection, those that are about to connect too."""
        self.is_leaving = True
        for connection in tuple(self.connections):
            connection.leave()

    async def drain(self, seconds: float) -> None:
        """Let every connection answer its requests and close. Return when all have, or after `seconds`."""
        for connection in tuple(self.connections):
            connection.shutdown()
        pending = {task for task in self.tasks if not task.done()}
        if pending:
            await asyncio.wait(pending, timeout=seconds)

    async def answer(self, request: Request) -> Response:
        """Return the reply to one request as it is sent."""
        response = await self.handler(request)
        return response if response.stream is not None else await self._transform(request, response)
