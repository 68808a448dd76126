"""A real TLS listener on loopback in a thread of its own, and a blocking client beside it.

Rules kept here: the server side is Mooring's own `Listener`; the client side is Python's `ssl`, another implementation of TLS.
Tests wait for events, bounded by socket timeouts.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mooring.server.transport.http import Application, Handler, Transform, unchanged
from mooring.server.transport.http1 import Http1Connection
from mooring.server.transport.http2 import Http2Server
from mooring.server.transport.listener import Listener
from mooring.server.transport.tls import DEFAULT_PROFILE, server_context
from mooring.settings.serving import TlsProfile
from tests.support.testca import Pair, ThrowawayCA

PATIENCE = 20.0
"""Seconds after which a test that waits for the other side fails."""


class Served:
    """A listener with an application behind it."""

    def __init__(
        self,
        ca: ThrowawayCA,
        handler: Handler,
        transform: Transform = unchanged,
        profile: TlsProfile = DEFAULT_PROFILE,
        **limits: Any,
    ) -> None:
        self.ca = ca
        serving = ca.server()
        self.application = Application(handler, transform)
        context = server_context([serving.certificate], serving.key, [ca.certificate], http2=True, profile=profile)
        self.http2 = Http2Server(self.application)
        self.listener = Listener(
            lambda: context, partial(Http1Connection, self.application), make_http2=self.http2.protocol, **limits
        )
        self.loop = asyncio.new_event_loop()
        self.port = 0

    def run(self, step: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine on the server's loop and wait for its result."""

        async def call() -> Any:
            return await step()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE)

    def ask(self, question: Callable[[], Any]) -> Any:
        """Evaluate something on the server's loop."""

        async def answer() -> Any:
            return question()

        return self.run(answer)

    def client(
        self,
        directory: Path,
        identity: Pair | None = None,
        *more: Pair,
        version: ssl.TLSVersion | None = None,
        session: ssl.SSLSession | None = None,
        context: ssl.SSLContext | None = None,
    ) -> ssl.SSLSocket:
        """Connect a TLS socket and finish its handshake; `more`: certificates sent after the leaf."""
        context = context or self.context(directory, identity, *more, version=version)
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        try:
            return context.wrap_socket(raw, server_hostname="localhost", session=session)
        except BaseException:
            raw.close()
            raise

    def context(
        self, directory: Path, identity: Pair | None = None, *more: Pair, version: ssl.TLSVersion | None = None
    ) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca.certificate_pem.decode())
        if version is not None:
            context.minimum_version = context.maximum_version = version
        if identity is not None:
            certificate, key = identity.write(directory, "client")
            certificate.write_bytes(b"".join(pair.certificate_pem for pair in (identity, *more)))
            context.load_cert_chain(certificate, key)
        return context

    def plain(self) -> socket.socket:
        """Connect a TCP socket without TLS."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)


@contextlib.contextmanager
def serving(ca: ThrowawayCA, handler: Handler, **limits: Any) -> Iterator[Served]:
    served = Served(ca, handler, **limits)
    thread = threading.Thread(target=served.loop.run_forever, name="listener under test")
    thread.start()
    try:
        served.port = served.run(lambda: served.listener.start("127.0.0.1", 0))
        yield served
    finally:

        async def stop() -> None:
            served.listener.stop_accepting()
            await served.application.drain(1)
            served.listener.abort_all()
            while served.listener.connections:
                await asyncio.sleep(0)
            for _ in range(3):  # a refused connection is in no list, and closes its socket in a later turn of the loop
                await asyncio.sleep(0)

        served.run(stop)
        served.loop.call_soon_threadsafe(served.loop.stop)
        thread.join(PATIENCE)
        served.loop.close()


def request(target: str = "/", method: str = "GET", headers: tuple[str, ...] = (), body: bytes = b"") -> bytes:
    """Return one HTTP/1.1 request as bytes."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def reply(peer: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one reply with a Content-Length. Return status, headers and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(peer)
    head, _, rest_of_data = data.partition(b"\r\n\r\n")
    body = bytearray(rest_of_data)
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        body += _some(peer)
    assert len(body) == length, "more than one reply: read them with `replies`"
    return int(first.split()[1]), headers, bytes(body)


def rest(peer: socket.socket) -> bytes:
    """Return everything until the other side closes or resets."""
    data = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while piece := peer.recv(1 << 16):
            data += piece
    return data


def _some(peer: socket.socket) -> bytes:
    data = peer.recv(1 << 16)
    if not data:
        raise ConnectionError("the server closed before the reply was whole")
    return data
