"""Tunnel of an HTTP proxy (RFC 9110 9.3.6), whose transport another protocol takes over once it is open.

Rules kept here: only http proxies, because TLS to a proxy could not pass on the end of one direction. The server is named with its
IPv6 address in brackets (RFC 9112 3.2.3). Nothing is read behind the reply of the proxy until the other protocol reads it.
"""

from __future__ import annotations

import asyncio
import base64
import os
from typing import cast
from urllib.parse import unquote, urlsplit

from mooring.trust.httpproxy import Proxy, ProxySettingError

HTTP_PORT = 80
"""RFC 9110 section 4.2.1."""
MAX_HEAD = 1 << 14
"""Octets of a reply: proxies send a few hundred."""


class TunnelError(OSError):
    """The proxy opened no tunnel. The message names it."""


class _Reply(asyncio.Protocol):
    """Reads the head of the reply, and nothing after it."""

    def __init__(self) -> None:
        self.head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.head.done() or (b"\r\n\r\n" not in self._received and len(self._received) <= MAX_HEAD):
            return
        self._transport.pause_reading()
        self.head.set_result(bytes(self._received))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.head.done():
            self.head.set_exception(ConnectionResetError("it closed the connection"))


def check_proxy(proxy: Proxy) -> None:
    """Raise ProxySettingError for a proxy that opens no tunnel here."""
    if urlsplit(proxy.url).scheme != "http":
        raise ProxySettingError(f"{proxy}: the load balancer uses http proxies only")


async def connect(proxy: Proxy, address: str, protocol: asyncio.BaseProtocol) -> None:
    """Connect `protocol` to the server at `address` (host:port) through `proxy`. Raises TunnelError, ProxySettingError."""
    check_proxy(proxy)
    parts = urlsplit(proxy.url)
    loop = asyncio.get_running_loop()
    try:
        transport, reply = await loop.create_connection(_Reply, str(parts.hostname), parts.port or HTTP_PORT)
    except OSError as error:
        raise TunnelError(f"{proxy} does not connect: {_reason(error)}") from error
    try:
        transport.write(_request(proxy, address))
        head = await reply.head
        status_line = head.partition(b"\r\n")[0].decode("ascii", "replace")
        version, _, status = status_line.partition(" ")
        if not version.startswith("HTTP/1.") or not head.endswith(b"\r\n\r\n"):
            raise TunnelError(f"{proxy} does not connect: the answer is not that of a proxy")
        if not status.startswith("2"):
            raise TunnelError(proxy.refusal(status))
    except TunnelError:
        transport.abort()
        raise
    except OSError as error:
        transport.abort()
        raise TunnelError(f"{proxy} does not connect: {_reason(error)}") from error
    except BaseException:
        transport.abort()
        raise
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if not transport.is_closing():
        transport.resume_reading()


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def _request(proxy: Proxy, address: str) -> bytes:
    parts = urlsplit(proxy.url)
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(credentials).decode()}")
    return "\r\n".join([*lines, "", ""]).encode()
