"""HTTP connections to one server. No other file of this room uses the HTTP client library.

Rules kept here: no redirects, because a credential goes only to the server that it is for; no cookies; no settings from the
environment, from which `trust_env` would read proxies, CA files and ~/.netrc; no compression, because the size of a response is
limited.

The library is httpx2 and not lightkube, which uses it too: lightkube 1.0 does not run exec plugins of the v1 API, supports neither
`proxy-url` nor `tls-server-name` nor impersonation, and writes client keys into temporary files.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from mooring.errors import ConfigError
from mooring.trust.httpexchange import HttpRequest
from mooring.trust.kubeconfig.model import PROXY_SCHEMES

if TYPE_CHECKING:
    import httpx2

MAX_CONNECTIONS = 64
"""Connections of one client: more than any command or controller uses at a time."""
IDLE_SECONDS = 60.0
"""Shorter than servers and load balancers keep an idle connection, so that the client closes it first."""


class _Opening:
    """A connection that a request opens. The library leaves it open when the request is cancelled during the TLS handshake."""

    def __init__(self) -> None:
        self._stream: Any = None
        """Stream of the library, once TCP is connected."""

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by the library at each of its steps (its extension `trace`)."""
        if event.endswith(".connect_tcp.complete"):
            self._stream = info["return_value"]
        elif event.endswith(".start_tls.failed") and self._stream is not None:
            await self._stream.aclose()


class ResponseStream:
    """A response whose body is still being received."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body in pieces."""
        async for chunk in self._response.aiter_raw():
            yield chunk

    async def read(self, limit: int) -> bytes:
        """Return the body, or its first `limit` + 1 bytes when it is longer."""
        body = bytearray()
        async for chunk in self._response.aiter_raw():
            body += chunk
            if len(body) > limit:
                break
        return bytes(body[: limit + 1])


class ConnectionPool:
    """Connections to one server with one TLS context."""

    def __init__(self, context: ssl.SSLContext, proxy_url: str = "", tls_server_name: str = "") -> None:
        import httpx2

        if proxy_url and not proxy_url.startswith(PROXY_SCHEMES):
            raise ConfigError("the proxy is not an http, https or socks5 URL")
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._extensions = {"sni_hostname": tls_server_name} if tls_server_name else {}
        try:
            self._client = httpx2.AsyncClient(
                verify=context,
                proxy=proxy_url or None,
                trust_env=False,
                follow_redirects=False,
                cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
                limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=IDLE_SECONDS),
                headers={"Accept-Encoding": "identity", "User-Agent": "mooring"},
            )
        except ImportError:
            raise ConfigError("a socks5 proxy needs the package socksio: install httpx2[socks]") from None

    @asynccontextmanager
    async def stream(self, request: HttpRequest, read_timeout: float | None = None) -> AsyncIterator[ResponseStream]:
        """Send a request and open its response. Raises one of `transport_errors`, which `tls.explain` reads.

        The request's timeout bounds connecting, and each wait for bytes unless `read_timeout` does. Both are in seconds.
        """
        import httpx2

        headers = list(request.headers)
        if request.authorization is not None:
            headers.append(("Authorization", request.authorization.reveal().decode()))
        headers += [(name, value.reveal().decode()) for name, value in request.secret_headers]
        timeout = httpx2.Timeout(request.timeout, read=read_timeout or request.timeout)
        self._open += 1
        self._idle.clear()
        try:
            async with self._client.stream(
                request.method,
                request.url,
                headers=headers,
                content=request.body,
                timeout=timeout,
                extensions={**self._extensions, "trace": _Opening().trace},
            ) as response:
                yield ResponseStream(response)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def close(self) -> None:
        await self._client.aclose()

    async def close_when_idle(self, seconds: float) -> None:
        """Close after the requests under way have ended, or after `seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        await self.close()


def transport_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that `ConnectionPool.stream` raises when there is no whole response."""
    import httpx2

    return (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ExceptionGroup)


def not_sent(error: Exception) -> bool:
    """Return True when no connection was established, so that no server can have received the request."""
    import httpx2

    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError)


def environment_proxy(url: str) -> str:
    """Return the proxy for `url` in HTTPS_PROXY, HTTP_PROXY and NO_PROXY; none for this machine itself, as in Go."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(parts.netloc):
        return ""
    return getproxies_environment().get(parts.scheme, "")
