"""A simulated token webhook over real TLS, in threads of the test; it records every request.

Rules kept here: TokenReviews are answered from `users`. Entries of `script`, one for each request, take precedence. The end of
`with` closes every connection, also those that a client keeps.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from mooring.apimachinery.schema import Obj
from tests.support.httphandler import HttpHandler
from tests.support.testca import ThrowawayCA

PATIENCE = 30.0


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as received."""

    path: str
    headers: dict[str, str]
    review: Any
    peer: str
    """The common name of the client's certificate."""


Behaviour = Callable[["_Handler"], None]


@dataclass
class SimulatedWebhook(AbstractContextManager["SimulatedWebhook"]):
    """The webhook; `with` runs it. `hosts` are the names of its certificate; clients may present certificates of `ca`."""

    ca: ThrowawayCA
    directory: Path
    hosts: tuple[str, ...] = ("127.0.0.1",)
    users: dict[str, Obj] = field(default_factory=dict)
    audiences: list[str] | None = None
    script: list[Behaviour] = field(default_factory=list)
    always: Behaviour | None = None
    requests: list[ReceivedRequest] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    """Event that `waits` waits for."""

    def __enter__(self) -> SimulatedWebhook:
        self.gate.clear()
        self._server = _Server(self, self._context())
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="token webhook")
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join(PATIENCE)
        self._server.end()

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.ca.server(*self.hosts).write(self.directory, "webhook"))
        context.load_verify_locations(cadata=self.ca.certificate_pem.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/authenticate"

    @property
    def tokens(self) -> list[str]:
        """Tokens of the reviews received, in order."""
        return [one.review["spec"]["token"] for one in self.requests]

    def kubeconfig(self, cluster: Obj | None = None, user: Obj | None = None) -> Path:
        """Write the kubeconfig file of this webhook. Return its path."""
        (self.directory / "webhook-ca.crt").write_bytes(self.ca.certificate_pem)
        described = {"server": self.url, "certificate-authority": "webhook-ca.crt", **(cluster or {})}
        return kubeconfig(self.directory / "webhook.yaml", described, user or {})


def kubeconfig(path: Path, cluster: Obj, user: Obj) -> Path:
    """Write a kubeconfig with one context. Return its path."""
    config = {
        "kind": "Config",
        "apiVersion": "v1",
        "clusters": [{"name": "service", "cluster": cluster}],
        "users": [{"name": "server", "user": user}],
        "contexts": [{"name": "webhook", "context": {"cluster": "service", "user": "server"}}],
        "current-context": "webhook",
    }
    path.write_text(json.dumps(config))
    return path


def answers(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    """Answer with this status and body."""
    return lambda handler: handler.answer(
        status, body, ((name.replace("_", "-"), value) for name, value in headers.items())
    )


def resets(handler: _Handler) -> None:
    """Reset the connection before the response is complete."""
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    socket.socket(fileno=handler.connection.detach()).close()


def waits(handler: _Handler) -> None:
    """Delay the answer until the gate is open."""
    handler.webhook.gate.wait(PATIENCE)
    handler.judge()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, webhook: SimulatedWebhook, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.webhook = webhook
        self._context = context
        self._open: set[ssl.SSLSocket] = set()
        self._handling: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def get_request(self) -> tuple[socket.socket, Any]:
        raw, address = super().get_request()
        raw.settimeout(PATIENCE)
        connection = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._open.add(connection)
        return connection, address

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._handling.add(threading.current_thread())
        super().process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, address: Any) -> None:
        """Write no error: tests fail handshakes and close connections early."""

    def end(self) -> None:
        with self._lock:
            left, threads = tuple(self._open), tuple(self._handling)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(PATIENCE)
        self.server_close()


class _Handler(HttpHandler):
    connection: ssl.SSLSocket
    server: _Server

    @property
    def webhook(self) -> SimulatedWebhook:
        return self.server.webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        self.review = json.loads(body)
        subject = cast("Any", self.connection.getpeercert() or {}).get("subject", ())
        names = [value for part in subject for key, value in part if key == "commonName"]
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.webhook.requests.append(ReceivedRequest(self.path, headers, self.review, "".join(names)))
        script = self.webhook.script
        behaviour = script.pop(0) if script else self.webhook.always
        if behaviour is None:
            self.judge()
        else:
            behaviour(self)

    def judge(self) -> None:
        """Answer a TokenReview from `users`."""
        user = self.webhook.users.get(self.review["spec"]["token"])
        status: Obj = {"authenticated": user is not None}
        if user is not None:
            status["user"] = user
            if self.webhook.audiences is not None:
                status["audiences"] = self.webhook.audiences
        self.answer(200, json.dumps({**self.review, "status": status}).encode(), ())

    def answer(self, status: int, body: bytes, headers: Iterable[tuple[str, str]]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("content-type", "application/json"), ("content-length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
