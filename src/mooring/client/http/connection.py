"""HTTP connections to servers, directly or by a proxy. Only `transport` beside it uses the HTTP client library, too.

Rules kept here:
* No redirects and no cookies. No compression is requested, and that of an answer is undone in pieces.
* Every connection asks one function for its proxy: the `proxy-url` of a kubeconfig, else Go's rule for the environment
  (`mooring.trust.httpproxy`), by the URL of each request. A failure names the proxy, and the variable or field that named it.
* The name that TLS sends and verifies is derived from the host that is dialled (`tls_name`).

The library is httpx2 and not lightkube, which uses it too: lightkube 1.0 does not run exec plugins of the v1 API, supports neither
`proxy-url` nor `tls-server-name` nor impersonation, and writes client keys into temporary files.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from mooring.client.http import tls
from mooring.trust.httpexchange import PROXY, HttpFailure, HttpRequest, Trust
from mooring.trust.httpproxy import Proxy, ProxySettingError, environment_proxy, k3s_proxy, named_proxy
from mooring.trust.httpsurl import dialled_host, is_address, is_sent_by_tls, tls_name
from mooring.trust.kubeconfig import Cluster

if TYPE_CHECKING:
    import httpx2

MAX_CONNECTIONS = 64
"""Connections of one client: more than any command or controller uses at a time."""
ENCODINGS = ("gzip", "x-gzip", "deflate")
"""Encodings of an answer that are read. Go requests and reads gzip."""
PIECE = 1 << 16
"""Bytes of a body that are unpacked at once."""
_EITHER = 32
"""Makes zlib read the header of gzip or of zlib, whichever is there."""
IDLE_SECONDS = 60.0
"""Shorter than servers and load balancers keep an idle connection, so that the client closes it first."""
RESOLVE_SECONDS = 1.0
"""Seconds for the addresses of a name, which are only for an error message."""
_TUNNEL_EVENTS = frozenset({"proxy.start_tls.started", "socks.start_tls.started"})
"""Steps of the library that follow when a proxy has connected the server."""


Proxies = Callable[[str], Proxy | None]
"""Returns the proxy for a URL; None without one. Raises ProxySettingError."""


def environment_proxies(url: str) -> Proxy | None:
    """Return the proxy for `url` in HTTPS_PROXY, HTTP_PROXY and NO_PROXY, by Go's rule. Raises ProxySettingError."""
    return environment_proxy(url, os.environ)


def k3s_proxies(url: str) -> Proxy | None:
    """Return the proxy for a server of k3s's way: none unless the environment allows it. Raises ProxySettingError."""
    return k3s_proxy(url, os.environ)


def no_proxies(url: str) -> Proxy | None:
    """Return None: connect directly."""
    return None


def proxies_for(place: Cluster | Trust) -> Proxies:
    """Return the proxies for the servers of a kubeconfig's cluster: its own `proxy-url`, else those of the environment.

    Raises ProxySettingError.
    """
    if place.proxy_url:
        named = f'the proxy-url of cluster "{place.name}"' if isinstance(place, Cluster) and place.name else "proxy-url"
        proxy = named_proxy(place.proxy_url, named)
        return lambda url: proxy
    if place.is_k3s:
        return k3s_proxies
    return environment_proxies


class Way:
    """The way of one request: the proxy, and how far the connection came. It explains a failure."""

    def __init__(self, on_sent: Callable[[], None] = lambda: None) -> None:
        """`on_sent` is called when the request was sent, to a proxy or to the server."""
        self.host = ""
        self.proxy: Proxy | None = None
        self._dials = False
        self._has_tunnel = False
        self._peer = ""
        """Address that accepted the connection."""
        self._stream: Any = None
        """Stream of the library, once TCP is connected."""
        self._on_sent = on_sent

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by the library at each of its steps (its extension `trace`)."""
        if event.endswith(".connect_tcp.started"):
            self._dials = True
        elif event.endswith(".connect_tcp.complete"):
            self._stream = info["return_value"]
            self._peer = str((self._stream.get_extra_info("server_addr") or ("",))[0])
        elif event in _TUNNEL_EVENTS:
            self._has_tunnel = True
        elif event.endswith(".start_tls.failed") and self._stream is not None:
            # The library leaves the connection open when the request is cancelled during the TLS handshake.
            await self._stream.aclose()
        elif event.endswith(".receive_response_headers.started"):
            self._on_sent()

    async def explain(self, error: BaseException, now: datetime, seconds: float) -> HttpFailure:
        """Return the reason for a failed request. `seconds` is the time that it had."""
        failure = replace(tls.explain(error, now, seconds), unsent=not_sent(error))
        if self.proxy is None:
            unresolved = failure.message.startswith(tls.UNRESOLVED)
            return failure if unresolved else replace(failure, message=failure.message + await self._addresses())
        if type(error).__name__ == "ProxyError":
            return replace(failure, kind=PROXY, message=self.proxy.refusal(str(error)), hint="")
        if self._dials and not self._has_tunnel:
            return replace(
                failure, kind=PROXY, message=f"{self.proxy} does not connect: {failure.message}", unsent=True
            )
        return replace(failure, message=f"{failure.message}, by {self.proxy}")

    async def _addresses(self) -> str:
        """Return the address that was connected, else the addresses of the name in the URL; "" without a name."""
        if not self._dials or is_address(self.host):
            return ""
        if self._peer:
            return f", at {self._peer}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await loop.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return ""
        return f", at {', '.join(dict.fromkeys(str(address[0]) for *_, address in found))}"


class ResponseStream:
    """A response whose body is still being received."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body in pieces, unpacked. Raises httpx2.DecodingError."""
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            async for chunk in self._response.aiter_raw():
                yield chunk
        else:
            async for chunk in self._unpacked(encoding):
                yield chunk

    async def _unpacked(self, encoding: str) -> AsyncGenerator[bytes]:
        """Yield a body that was compressed, as buckets and gateways do although they are asked not to."""
        import httpx2

        if encoding not in ENCODINGS:
            raise httpx2.DecodingError(f"the answer is compressed by {encoding[:20]!a}, which was not requested")
        stream = zlib.decompressobj(zlib.MAX_WBITS | _EITHER)
        is_whole = True
        async for chunk in self._response.aiter_raw():
            rest = chunk
            while rest:
                try:
                    # At most PIECE bytes, so that a reader with a limit stops before a bomb has unfolded.
                    piece = stream.decompress(rest, PIECE)
                except zlib.error:
                    raise httpx2.DecodingError(f"the answer is not what its content-encoding {encoding} says") from None
                if stream.unused_data:
                    raise httpx2.DecodingError(f"the answer has more than one stream of {encoding}")
                rest, is_whole = stream.unconsumed_tail, stream.eof
                if piece:
                    yield piece
        if not is_whole:
            raise httpx2.DecodingError(f"the answer by {encoding} ends too early")

    async def read(self, limit: int) -> bytes:
        """Return the body, or its first `limit` + 1 bytes when it is longer. Raises httpx2.DecodingError."""
        body = bytearray()
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > limit:
                    break
        return bytes(body[: limit + 1])


class ConnectionPool:
    """Connections with one TLS context, by default to the server of each URL or to its proxy in the environment."""

    def __init__(
        self, context: ssl.SSLContext, tls_server_name: str = "", proxies: Proxies = environment_proxies
    ) -> None:
        self._context = context
        self._tls_server_name = tls_server_name
        self._proxies = proxies
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._clients: dict[Proxy | None, httpx2.AsyncClient] = {}

    def _client(self, proxy: Proxy | None) -> httpx2.AsyncClient:
        """Return the connections to `proxy`, or those without one."""
        if proxy not in self._clients:
            import httpx2

            from mooring.client.http.transport import Transport

            limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=IDLE_SECONDS)
            try:
                transport = Transport(self._context, limits, proxy.url if proxy is not None else "")
            except ImportError:
                raise ProxySettingError(
                    f"{proxy}: a socks5 proxy needs the package socksio: install httpx2[socks]"
                ) from None
            self._clients[proxy] = httpx2.AsyncClient(
                transport=transport,
                # It would take CA files and ~/.netrc from the environment.
                trust_env=False,
                # A credential goes only to the server that it is for.
                follow_redirects=False,
                cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
                headers={"Accept-Encoding": "identity", "User-Agent": "mooring"},
            )
        return self._clients[proxy]

    @asynccontextmanager
    async def stream(
        self, request: HttpRequest, read_timeout: float | None = None, way: Way | None = None
    ) -> AsyncIterator[ResponseStream]:
        """Send a request and open its response. Raises one of `transport_errors`, which `way` explains, or ProxySettingError.

        The request's timeout bounds connecting, and each wait for bytes unless `read_timeout` does. Both are in seconds.
        """
        import httpx2

        way = way or Way()
        try:
            url, host = library_url(request.url)
        except ValueError as error:
            raise httpx2.InvalidURL(f"the URL cannot be read: {error}") from None
        way.host, way.proxy = host, self._proxies(request.url)
        name = tls_name(self._tls_server_name or host)
        if not is_sent_by_tls(name):
            raise tls.certificate_error(f"no certificate has the name {name!r}")
        client = self._client(way.proxy)
        headers = list(request.headers)
        if request.authorization is not None:
            headers.append(("Authorization", request.authorization.reveal().decode()))
        headers += [(name, value.reveal().decode()) for name, value in request.secret_headers]
        timeout = httpx2.Timeout(request.timeout, read=read_timeout or request.timeout)
        self._open += 1
        self._idle.clear()
        try:
            async with client.stream(
                request.method,
                url,
                headers=headers,
                content=request.body,
                timeout=timeout,
                extensions={
                    "sni_hostname": name,
                    "dialled_host": host,
                    "secret_target": request.secret_target,
                    "trace": way.trace,
                },
            ) as response:
                yield ResponseStream(response)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def close_when_idle(self, seconds: float) -> None:
        """Close after the requests under way have ended, or after `seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        await self.close()


def library_url(url: str) -> tuple[str, str]:
    """Return a URL as the library and the Host header have it, without the zone of an address, and the host to connect to.

    Raises ValueError for a text that is not a URL.
    """
    parts = urlsplit(url)
    host, port = dialled_host(parts), "" if parts.port is None else f":{parts.port}"
    if "%" not in host:
        return url, host
    return urlunsplit(parts._replace(netloc=f"[{tls_name(host)}]{port}")), host


def transport_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that `ConnectionPool.stream` raises when there is no whole response.

    UnicodeError is that of a host or a name with no form in the DNS.
    """
    import httpx2

    return (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ExceptionGroup, UnicodeError)


def not_sent(error: BaseException) -> bool:
    """Return True when no connection was established, so that no server can have received the request."""
    import httpx2

    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError)
