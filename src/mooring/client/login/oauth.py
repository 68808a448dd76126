"""Drives the exchanges of `mooring.trust.login.oauth`.

Rules kept here: TLS is verified, under the given CAs or the machine's; no redirect is followed; a response is read to its limit; a
failure is a reply. One connection serves a whole exchange.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

from mooring.client.http import tls
from mooring.client.http.connection import Ask, Connection, environment_proxy, transport_errors
from mooring.client.http.driver import drive as drive_exchange
from mooring.clock import Clock
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse, Reply, Wait
from mooring.trust.login import oauth

R = TypeVar("R")


async def drive(
    exchange: Generator[oauth.Step, Reply, R],
    issuer: str,
    ca_pem: bytes,
    clock: Clock,
    show: Callable[[oauth.Show], None],
) -> R:
    """Run an exchange to its end and return its result. `ca_pem` empty: the machine's roots."""
    context = tls.trusting(ca_pem) if ca_pem else tls.trusting_system_roots()
    connection = Connection(context, environment_proxy(issuer))

    async def perform(step: oauth.Step) -> Reply:
        if isinstance(step, HttpRequest):
            return await _send(connection, step, clock)
        if isinstance(step, Wait):
            await clock.sleep(step.seconds)
        else:
            show(step)
        return None

    try:
        return await drive_exchange(exchange, perform)
    finally:
        await connection.close()


async def _send(connection: Connection, request: HttpRequest, clock: Clock) -> HttpResponse | HttpFailure:
    ask = Ask(request.method, request.url, request.headers, request.body, timeout=request.timeout)
    try:
        async with asyncio.timeout(2 * request.timeout), connection.stream(ask) as answer:
            return HttpResponse(answer.status, await answer.read(request.max_bytes))
    except transport_errors() as error:
        found = tls.finding(error, clock.now(), request.timeout)
        return HttpFailure(found.kind, found.message, found.hint)
