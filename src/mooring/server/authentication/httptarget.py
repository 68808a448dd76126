"""A target of the second stage that is reached over HTTPS: a key server, a directory, an identity service.

Rules kept here: TLS is verified under exactly the given trust. There is no redirect, no cookie, and no proxy from the
environment. The text of a failure holds nothing of what was sent.
"""

from __future__ import annotations

import ssl
from dataclasses import replace

from mooring.client.http.connection import ConnectionPool
from mooring.client.http.requests import send_over
from mooring.clock import Clock
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse


class HttpTarget:
    """One server under one trust. `url` serves requests that name none."""

    def __init__(self, url: str, context: ssl.SSLContext, clock: Clock, proxy_url: str = "") -> None:
        self._url = url
        self._context = context  # kept alive for other targets under the same CA
        self._connection = ConnectionPool(context, proxy_url)
        self._clock = clock

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Send one request and return the reply."""
        return await send_over(self._connection, replace(request, url=request.url or self._url), self._clock)

    async def close(self) -> None:
        await self._connection.close()
