"""Somebody the second stage of authentication may ask over HTTPS: a key server, a directory, an identity service.

Rules kept here: TLS is verified under exactly the trust given; no redirect, no cookie, no proxy from the environment; an answer
longer than asked for is no answer; a failure comes back in words for the operator, without what was sent.
"""

from __future__ import annotations

import ssl

from mooring.authn.verdict import Answer, Call, CallFailed
from mooring.client import tls
from mooring.client.connection import Ask, Connection, transport_errors
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
        try:
            async with self._connection.stream(ask) as stream:
                body = await stream.read(call.max_bytes)
                headers = {name.lower(): value for name, value in stream.headers.items()}
        except transport_errors() as error:
            found = tls.finding(error, self._clock.now(), call.timeout)
            return CallFailed(f"{found.message}; {found.hint}" if found.hint else found.message)
        if len(body) > call.max_bytes:
            return CallFailed(f"the answer is longer than {call.max_bytes} bytes")
        return Answer(stream.status, headers, body)

    async def close(self) -> None:
        await self._connection.close()
