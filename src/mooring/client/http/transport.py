"""Transport of the HTTP client library that connects to the host that it is told, which the URL cannot always say.

The library drops the brackets of an IPv6 address where it asks a proxy for a tunnel, against RFC 9112 3.2.3, and knows no zones.
Its transport takes the host to connect to from `raw_host` of the URL of a request; here that is the extension `dialled_host`, in
brackets for an HTTP proxy.

The library logs the URL of each request, and errors have it. A path and a query that are secret are put in here, where only the
connection sees them.
"""

from __future__ import annotations

import ssl

import httpx2


class _DialledUrl(httpx2.URL):
    """The URL of a request with another host to connect to."""

    dialled = b""

    @property
    def raw_host(self) -> bytes:
        return self.dialled


class Transport(httpx2.AsyncHTTPTransport):
    """Connections to servers, or to servers through one proxy. Raises ImportError for a socks5 proxy without its package."""

    def __init__(self, context: ssl.SSLContext, limits: httpx2.Limits, proxy_url: str = "") -> None:
        super().__init__(verify=context, trust_env=False, limits=limits, proxy=proxy_url or None)
        self._is_proxied = bool(proxy_url)
        self._asks_http = proxy_url.lower().startswith("http")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (target := request.extensions["secret_target"]) is not None:
            # Another request: the library logs the URL of the one that it was given.
            request = httpx2.Request(
                request.method,
                request.url.copy_with(raw_path=target.reveal()),
                headers=request.headers,
                stream=request.stream,
                extensions=request.extensions,
            )
        host: str = request.extensions["dialled_host"]
        if ":" in host:
            address = host.partition("%")[0] if self._is_proxied else host
            url = _DialledUrl(request.url)
            url.dialled = (f"[{address}]" if self._asks_http else address).encode()
            request.url = url
        return await super().handle_async_request(request)
