"""Health and metrics of a process without an API server, over plain HTTP.

Rules kept here:
* GET of `/healthz`, `/livez` and `/readyz` answers 200 or 500 with one line for each check, and `/metrics` the metrics. Nothing
  else is served, and nothing secret.
* `/livez` has the checks that a restart of the process can mend. An API server that is away is none: the process waits for it.
* One request a connection. A request has 5 s and 8 KiB; the 33rd connection at a time is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from mooring.listensockets import bound_port, listen

MAX_HEAD = 8 << 10
"""Bytes of a request: probes and scrapers send a tenth of this."""
SECONDS = 5.0
"""Time of one request."""
MAX_CONNECTIONS = 32
"""Connections at a time; a kubelet and a few scrapers use one each."""
LIVE_PATH = "/livez"
HEALTH_PATHS = ("/healthz", LIVE_PATH, "/readyz")

Checks = Mapping[str, Callable[[], str]]
"""Checks by name. Each returns the reason of its failure, or ""."""


class HealthServer:
    """Serves checks and metrics at one address."""

    def __init__(self, live: Checks, ready: Checks, metrics: Callable[[], bytes]) -> None:
        """`live` are the checks of every path, `ready` those of the others than /livez. `metrics` returns Prometheus text."""
        self._live = live
        self._every = {**live, **ready}
        self._metrics = metrics
        self._connections = 0
        self._servers: list[asyncio.Server] = []

    async def start(self, address: str, port: int) -> int:
        """Listen at an IP address, and return the port. Raises ListenError."""
        sockets = listen(address, port)
        bound = bound_port(sockets)
        for listening in sockets:
            self._servers.append(await asyncio.start_server(self._serve, sock=listening, limit=MAX_HEAD))
        return bound

    async def stop(self) -> None:
        """Close the listening sockets; responses that are being sent may end."""
        while self._servers:
            self._servers.pop().close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= MAX_CONNECTIONS:
                async with asyncio.timeout(SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(head))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, too slow, or sends no request
        finally:
            self._connections -= 1
            writer.close()

    def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        status, body, media_type = "404 Not Found", b"not found\n", "text/plain"
        if method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed", b"only GET\n"
        elif path in HEALTH_PATHS:
            checks = self._live if path == LIVE_PATH else self._every
            failures = {name: failure for name, check in checks.items() if (failure := check())}
            lines = [f"[-]{name} failed: {failures[name]}" if name in failures else f"[+]{name} ok" for name in checks]
            status = "500 Internal Server Error" if failures else "200 OK"
            body = "\n".join((*lines, "")).encode()
        elif path == "/metrics":
            status, body, media_type = "200 OK", self._metrics(), "text/plain; version=0.0.4; charset=utf-8"
        header = f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return header.encode() + (b"" if method == b"HEAD" else body)
