"""Somebody the second stage of authentication may ask over HTTPS: a key server, a directory, an identity service.

Rules kept here: TLS is verified under exactly the trust given; no redirect, no cookie, no proxy from the environment; an answer
longer than asked for is no answer; a failure comes back in words for the operator, without what was sent.
"""

from __future__ import annotations

import ssl

from mooring.authn.verdict import Answer, Call, CallFailed
from mooring.client.http import tls
from mooring.client.http.connection import Ask, Connection, transport_errors
from mooring.clock import Clock


class HttpTarget:
    """One server under one trust; `url` is where a Call without a URL goes."""

    def __init__(self, url: str, context: ssl.SSLContext, clock: Clock, proxy_url: str = "") -> None:
        self._url = url
        self._connection = Connection(context, proxy_url)
        self._clock = clock

    async def exchange(self, call: Call) -> Answer | CallFailed:
        """One request and its answer."""
        ask = Ask(call.method, call.url or self._url, call.headers, call.body, timeout=call.timeout)
        return await exchanged(self._connection, ask, call.max_bytes, self._clock)

    async def close(self) -> None:
        await self._connection.close()


async def exchanged(connection: Connection, ask: Ask, max_bytes: int, clock: Clock) -> Answer | CallFailed:
    """One request over `connection` and its answer, or why there is none."""
    try:
        async with connection.stream(ask) as stream:
            body = await stream.read(max_bytes)
            headers = {name.lower(): value for name, value in stream.headers.items()}
    except transport_errors() as error:
        found = tls.finding(error, clock.now(), ask.timeout)
        why = f"{found.message}; {found.hint}" if found.hint else found.message
        return CallFailed(why, broken=tls.broke_off(error))
    if len(body) > max_bytes:
        return CallFailed(f"the answer is longer than {max_bytes} bytes")
    return Answer(stream.status, headers, body)
