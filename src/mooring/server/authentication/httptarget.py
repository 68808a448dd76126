"""A target of the second stage that is reached over HTTPS: a key server, a directory, an identity service.

Rules kept here: TLS is verified under exactly the given trust. There is no redirect, no cookie, and no proxy from the
environment. A response that is longer than the request allows is a failure. The text of a failure holds nothing of what was sent.
"""

from __future__ import annotations

import ssl

from mooring.client.http import tls
from mooring.client.http.connection import Ask, Connection, transport_errors
from mooring.clock import Clock
from mooring.trust.httpexchange import TOO_LONG, HttpFailure, HttpRequest, HttpResponse


class HttpTarget:
    """One server under one trust. `url` serves requests that name none."""

    def __init__(self, url: str, context: ssl.SSLContext, clock: Clock, proxy_url: str = "") -> None:
        self._url = url
        self._connection = Connection(context, proxy_url)
        self._clock = clock

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Send one request and return the reply."""
        ask = Ask(request.method, request.url or self._url, request.headers, request.body, timeout=request.timeout)
        return await send_over(self._connection, ask, request.max_bytes, self._clock)

    async def close(self) -> None:
        await self._connection.close()


async def send_over(connection: Connection, ask: Ask, max_bytes: int, clock: Clock) -> HttpResponse | HttpFailure:
    """Send one request over `connection` and return the reply."""
    try:
        async with connection.stream(ask) as stream:
            body = await stream.read(max_bytes)
            headers = {name.lower(): value for name, value in stream.headers.items()}
    except transport_errors() as error:
        found = tls.finding(error, clock.now(), ask.timeout)
        return HttpFailure(found.kind, found.message, found.hint, broken=tls.broke_off(error))
    if len(body) > max_bytes:
        return HttpFailure(TOO_LONG, f"the answer is longer than {max_bytes} bytes")
    return HttpResponse(stream.status, body, headers)
