"""`Request` and `Response`: what handlers see of HTTP, whichever version carries it (`http1`, `http2`).

Rules kept here:
* Bounded: header bytes, body bytes, the time headers and bodies may take, idle time. Each limit is named with its reason.
* A handler gets a `Request` and returns a `Response`; it never sees a connection.
* Every request is closed by its transport, so that what a handler acquired for a reply is given back even if that reply was
  never sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

from httptools import HttpParserInvalidURLError, parse_url

from mooring.apimachinery.codec.limits import MAX_BODY
from mooring.errors import BadRequestError, RequestEntityTooLargeError
from mooring.server.transport.frames import Streamer, Switched
from mooring.server.transport.listener import Connection, TlsTransport

MAX_HEADER_BYTES = 64 << 10
"""Go's default is 1 MiB; the largest real Kubernetes request (a fat OIDC token and impersonation) stays below 32 kB."""
MAX_HEADERS = 1000
"""Each is looked at several times; a user impersonated with hundreds of groups still passes."""
HEADER_SECONDS = 32.0
"""kube-apiserver's ReadHeaderTimeout; for the first request it runs from the handshake, so that silence holds no place."""
BODY_SECONDS = 60.0
"""kube-apiserver's default request timeout."""
IDLE_SECONDS = 120
"""Go clients drop idle connections after 90 s; being later than them avoids the race on a reused connection."""
LINGER_SECONDS = 0.5
"""Then the connection is cut: as long as Go's server waits, so that a client that is still sending comes to see the answer."""


MAX_REMEMBERED_QUERY = 512
"""Longer query strings are parsed each time: strangers must not fill memory through a cache."""


_NO_QUERY: dict[str, list[str]] = {}


@lru_cache(maxsize=4096)
def _remembered_query(raw: bytes) -> dict[str, list[str]]:
    return parse_query(raw)


def parse_query(raw: bytes) -> dict[str, list[str]]:
    """Values by name, in order of appearance. Raises BadRequestError for an absurd number."""
    try:
        pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=1000)
    except ValueError as error:
        raise BadRequestError("the query string has too many parameters") from error
    parsed: dict[str, list[str]] = {}
    for key, value in pairs:
        parsed.setdefault(key, []).append(value)
    return parsed


def header_text(value: bytes) -> str:
    """A header's value: UTF-8, as Go clients write the names of users; what is not becomes U+FFFD, as in Go's JSON."""
    return value.decode("utf-8", "replace")


Header = tuple[bytes, bytes]


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
        connection: Connection,
        receive: Callable[[], Awaitable[Any]],
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
        """Gives back what the reply holds, such as the subscription of a watch. The transport calls it once the exchange has
        ended, whether or not a reply was sent."""

    @property
    def query(self) -> dict[str, list[str]]:
        """Query parameters in order of appearance. Treat as immutable. Raises BadRequestError for an absurd number."""
        if self._query is None:
            raw = self.query_string
            if not raw:
                self._query = _NO_QUERY
            else:
                self._query = _remembered_query(raw) if len(raw) <= MAX_REMEMBERED_QUERY else parse_query(raw)
        return self._query

    @property
    def is_query_cheap(self) -> bool:
        """Whether `query` costs little: it is short or was parsed before. A long one takes up to 10 ms."""
        return self._query is not None or len(self.query_string) <= MAX_REMEMBERED_QUERY

    @property
    def uri(self) -> str:
        """Path and query as requested, for the audit record."""
        query = self.query_string.decode("latin-1")
        return f"{self.path}?{query}" if query else self.path

    @property
    def headers(self) -> Sequence[Header]:
        """In the order received. Treat as immutable."""
        return self._headers

    @headers.setter
    def headers(self, headers: Sequence[Header]) -> None:
        self._headers = headers
        self._first = dict(reversed(headers))

    def header(self, name: bytes) -> str:
        """First value of a header, or ""."""
        value = self._first.get(name)
        return header_text(value) if value else ""

    def header_values(self, name: bytes) -> list[str]:
        """All values of a header, in the order received."""
        if name not in self._first:
            return []
        return [header_text(value) for key, value in self._headers if key == name]

    def close(self) -> None:
        """End the exchange. Idempotent."""
        closing, self.closing = self.closing, None
        if closing is not None:
            closing()

    async def load(self, limit: int = MAX_BODY) -> bool:
        """Receive the whole body now; False for a method that has none. Raises what `body` raises.

        `limit`: the bytes that a body may have.
        """
        if self.method in ("GET", "HEAD"):
            return False
        if self._body is None:
            self._body = await self._received(limit)
        return True

    async def body(self) -> bytes:
        """The whole body. Raises RequestEntityTooLargeError beyond the limit, BadRequestError when the client went away."""
        await self.load()
        return self._body or b""

    async def _received(self, limit: int) -> bytes:
        declared = self.header(b"content-length")
        if declared and int(declared) > limit:  # httptools has checked that it is a number
            raise RequestEntityTooLargeError(f"the request body is larger than the limit of {limit} bytes")
        pieces: list[bytes] = []
        total = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise BadRequestError("the connection was closed before the whole body arrived")
                    piece: bytes = message["body"]
                    total += len(piece)
                    if total > limit:
                        raise RequestEntityTooLargeError(f"the request body is larger than the limit of {limit} bytes")
                    pieces.append(piece)
                    if not message["more_body"]:
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError as error:
            raise BadRequestError(f"the request body did not arrive within {BODY_SECONDS:.0f} seconds") from error


JSON = (b"content-type", b"application/json")


class Body(Protocol):
    """A long body in pieces, which are made when the client has taken those before: a slow reader of a list of 130 MB holds one of
    them, not all."""

    @property
    def size(self) -> int:
        """Bytes of all pieces together."""

    def __iter__(self) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class Pieces:
    """A body whose pieces are there."""

    parts: Sequence[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.parts)


def in_pieces(body: bytes | Body) -> tuple[Iterable[bytes], int]:
    """The pieces of a body, and its size in bytes."""
    return ((body,), len(body)) if isinstance(body, bytes) else (body, body.size)


SHARED = 4
"""One in so many octets of a long body counts for whoever reads it slowly. Its pieces are made of objects that the server keeps
anyway; only those that are replaced meanwhile stay for this reader alone."""


def weight(body: bytes | Body) -> int:
    """Octets that count as held while a body waits for its client."""
    return len(body) if isinstance(body, bytes) else body.size // SHARED


@dataclass(slots=True)
class Response:
    """A reply: `body` whole, or in pieces, or `stream` for replies that go on.

    `at_once`: it leaves before the loop does anything else. Otherwise it leaves in the next turn with all others of this one,
    which wakes a client of many connections less often.
    """

    status: int
    body: bytes | Body = b""
    headers: tuple[Header, ...] = (JSON,)
    stream: Streamer | None = None
    at_once: bool = False
    farewell: bool = False
    """It went to nobody in particular: an HTTP/2 connection takes no more requests after it."""
    switch: Callable[[TlsTransport], Switched] | None = None
    """What the connection becomes when `status` is 101 and `stream` goes on in another protocol."""


Handler = Callable[[Request], Awaitable[Response]]
Finish = Callable[[Request, Response], Awaitable[Response]]


async def as_it_is(request: Request, response: Response) -> Response:
    """The reply that the handler made."""
    return response


Target = tuple[str, bytes]
"""Path, decoded once, and query."""


def read_target(target: bytes) -> Target | None:
    """What a request line or `:path` asks for; None when it is no path."""
    try:
        url = parse_url(target)
        path = url.path.decode("ascii")
    except (HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):  # without a path it is None
        return None
    return unquote(path) if "%" in path else path, url.query or b""


class Open(Protocol):
    """A connection, of either version."""

    def shutdown(self) -> None:
        """Take no more requests; close when those there are have been answered."""


class Application:
    """A `Handler`, and what is going on with it; `finish` has the last word on a reply that is sent whole."""

    def __init__(self, handler: Handler, finish: Finish = as_it_is) -> None:
        self._handler = handler
        self._finish = finish
        self.connections: set[Open] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each request that is being answered."""

    @property
    def in_flight(self) -> int:
        return len(self.tasks)

    async def drain(self, seconds: float) -> None:
        """Ask every connection to finish its request and close; return when all have, or after `seconds`."""
        for connection in tuple(self.connections):
            connection.shutdown()
        pending = {task for task in self.tasks if not task.done()}
        if pending:
            await asyncio.wait(pending, timeout=seconds)

    async def answer(self, request: Request) -> Response:
        """The reply to one request, as it is sent."""
        response = await self._handler(request)
        return response if response.stream is not None else await self._finish(request, response)
