"""Drives discovery exchanges: performs the fetches of `mooring.trust.discovery` (law 8).

Rules kept here (docs/protocol/discovery-and-join.md):
* Each Fetch has a connection of its own under exactly the trust it names. Credentials go out only over verified TLS; a Fetch
  without verification cannot carry any (`exchange.Fetch` refuses to be made, and this file looks again).
* No redirect, no proxy but the one the Fetch names, no cookies; at most `max_bytes` and one byte more are read.
* `timeout` is for each of connecting, the TLS handshake and the answer, not for each byte: who drips is cut off.
* A failure is an answer (`HttpFailure`): the generator decides what it means.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Generator
from typing import TypeVar

from mooring.client.http import tls
from mooring.client.http.connection import Ask, Connection, transport_errors
from mooring.client.http.credentials import Credentials, Shown
from mooring.client.http.driver import drive as drive_exchange
from mooring.clock import Clock
from mooring.trust.discovery.exchange import SYSTEM_ROOTS, Fetch, Step, Told
from mooring.trust.httpexchange import HttpFailure, HttpResponse, Reply, Wait
from mooring.trust.kubeconfig.model import Cluster

R = TypeVar("R")
PHASES = 3
"""Connecting, handshake, answer. The library bounds the first two itself: cancelling it there would leak the socket."""


async def fetch(request: Fetch, clock: Clock) -> HttpResponse | HttpFailure:
    """One exchange. Raises ConfigError when the credentials or the CA it names cannot be used."""
    started = clock.monotonic()
    shown = await _shown(request, clock)
    connection = Connection(_context(request, shown), request.proxy_url, request.tls_server_name)
    headers = [("Accept", "application/json, */*")]
    if shown.authorization is not None:
        headers.append(("Authorization", shown.authorization.reveal().decode()))
    ask = Ask("GET", request.url, (*headers, *shown.impersonation), timeout=request.timeout)
    try:
        async with asyncio.timeout(PHASES * request.timeout), connection.stream(ask) as answer:
            async with asyncio.timeout(request.timeout):
                body = await answer.read(request.max_bytes)
            return HttpResponse(answer.status, body, elapsed=clock.monotonic() - started)
    except transport_errors() as error:
        found = tls.finding(error, clock.now(), request.timeout)
        return HttpFailure(found.kind, found.message, found.hint, clock.monotonic() - started)
    finally:
        await connection.close()


async def _shown(request: Fetch, clock: Clock) -> Shown:
    if request.credentials is None or not request.verified:
        return Shown()
    cluster = Cluster("", request.url, request.ca_pem or b"", tls_server_name=request.tls_server_name)
    return await Credentials(request.credentials, cluster, clock.now).shown()


def _context(request: Fetch, shown: Shown) -> ssl.SSLContext:
    if request.ca_pem is not None:
        context = tls.trusting(request.ca_pem)
    elif request.roots == SYSTEM_ROOTS:
        context = tls.trusting_system_roots()
    else:
        return tls.not_verifying()
    if shown.key is not None:
        tls.present(context, shown.certificate_pem, shown.key)
    return context


async def drive(
    exchange: Generator[Step, Reply, R], clock: Clock, on_told: Callable[[Told], None] = lambda told: None
) -> R:
    """Run a discovery exchange to its end and return its result. Errors of the exchange are raised."""

    async def perform(step: Step) -> Reply:
        if isinstance(step, Fetch):
            return await fetch(step, clock)
        if isinstance(step, Wait):
            await clock.sleep(step.seconds)
        else:
            on_told(step)
        return None

    return await drive_exchange(exchange, perform)
