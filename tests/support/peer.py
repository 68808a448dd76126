"""A server of a test's own on 127.0.0.1: HTTPS with any certificate, plain HTTP, bytes that are no HTTP, or silence.

Rules kept here: it runs in a thread, sends the test's replies, records each request, and stops when its `with` ends.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.httphandler import HttpHandler
from tests.support.testca import Pair


@dataclass
class ReceivedRequest:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Reply:
    """The response to one request."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)


Answer = Callable[[ReceivedRequest], Reply]


@dataclass
class Peer:
    """A running server."""

    port: int
    requests: list[ReceivedRequest] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.endpoint}"


@contextlib.contextmanager
def http_peer(answer: Answer = lambda asked: Reply(), pair: Pair | None = None) -> Iterator[Peer]:
    """Serve HTTPS with `pair` as certificate, plain HTTP without."""
    peer = Peer(0)

    class Handler(HttpHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            asked = ReceivedRequest(self.command, self.path, dict(self.headers), self.rfile.read(length))
            peer.requests.append(asked)
            reply = answer(asked)
            # The base class adds the Date of now, unless the test has one.
            (self.send_response_only if "Date" in reply.headers else self.send_response)(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the base class looks for these names

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Write no error: tests also close connections early."""

    server = Server(("127.0.0.1", 0), Handler)
    peer.port = server.server_address[1]
    if pair is not None:
        server.socket = server_context(pair).wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield peer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def server_context(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as directory:
        certificate, key = pair.write(Path(directory), "peer")
        context.load_cert_chain(certificate, key)
    return context


@contextlib.contextmanager
def byte_peer(serve: Callable[[socket.socket], None], pair: Pair | None = None) -> Iterator[Peer]:
    """Accept connections and call `serve` with each; TLS with `pair`."""
    listening = socket.create_server(("127.0.0.1", 0))
    peer = Peer(listening.getsockname()[1])
    stopping = threading.Event()
    listening.settimeout(0.02)
    context = server_context(pair) if pair is not None else None

    def run() -> None:
        while not stopping.is_set():
            try:
                accepted, _ = listening.accept()
            except TimeoutError:
                continue
            with accepted, contextlib.suppress(OSError):
                accepted.settimeout(5)
                if context is None:
                    serve(accepted)
                else:
                    with context.wrap_socket(accepted, server_side=True) as wrapped:
                        serve(wrapped)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield peer
    finally:
        stopping.set()
        thread.join()
        listening.close()
