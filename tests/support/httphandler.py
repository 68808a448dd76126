"""The base of handlers of simulated HTTP servers: HTTP/1.1, without lines of a log."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler


class HttpHandler(BaseHTTPRequestHandler):
    """Answer in HTTP/1.1, at once: with Nagle's algorithm a body waits 40 ms for the client to acknowledge the header."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Write no log line."""
