"""Driver for asyncio: performs the requests and waits of exchanges (law 8, `mooring.trust.httpexchange`)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Generator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from mooring.client.http import tls
from mooring.client.http.connection import ConnectionPool, ResponseStream, Way, proxies_for, transport_errors
from mooring.client.http.credentials import ClientCredentials, Presented
from mooring.clock import Clock
from mooring.trust.discovery.clusterinfo import PATH as CLUSTER_INFO
from mooring.trust.httpexchange import PROXY, TOO_LONG, HttpFailure, HttpRequest, HttpResponse, Reply, Trust, Wait
from mooring.trust.httpproxy import ProxySettingError
from mooring.trust.kubeconfig import Cluster

Step = TypeVar("Step")
N = TypeVar("N")
R = TypeVar("R")


async def drive(exchange: Generator[Step, Reply, R], perform: Callable[[Step], Awaitable[Reply]]) -> R:
    """Run `exchange` to its end and return its result. `perform` carries out one step and returns the reply to it.

    Errors of the exchange and of `perform` are raised. The exchange is closed in every case.
    """
    reply: Reply = None
    try:
        while True:
            try:
                step = exchange.send(reply)
            except StopIteration as stop:
                result: R = stop.value
                return result
            reply = await perform(step)
    finally:
        exchange.close()


def ignore(notice: object) -> None:
    """Drop a notice."""


async def drive_notifying(
    exchange: Generator[HttpRequest | Wait | N, Reply, R],
    send: Callable[[HttpRequest], Awaitable[HttpResponse | HttpFailure]],
    sleep: Callable[[float], Awaitable[None]],
    notify: Callable[[N], None] = ignore,
) -> R:
    """Run `exchange` to its end: requests go to `send`, waits to `sleep` without jitter, and notices to `notify`."""

    async def perform(step: HttpRequest | Wait | N) -> Reply:
        if isinstance(step, HttpRequest):
            return await send(step)
        if isinstance(step, Wait):
            await sleep(step.seconds)
        else:
            notify(step)
        return None

    return await drive(exchange, perform)


# Requests of exchanges over the network: over an open connection, or over one of their own.
#
# Rules kept here (docs/protocol/discovery-and-join.md):
# * `fetch` opens a connection for one request, under exactly the trust of that request. Credentials are sent over verified TLS
#   only.
# * The timeout applies to each of connecting, the TLS handshake and the whole response, not to each byte. A client of large answers
#   gives the body a time of its own.
# * A failure is a reply (`HttpFailure`): the exchange decides what it means.

PHASES = 3
"""Connecting, handshake, response."""
PROGRESS = 1024
"""Bytes of a large answer that must come in the time of a silence: 0.8 kbit/s where that is 10 s."""


async def drive_fetching(
    exchange: Generator[HttpRequest | Wait | N, Reply, R], clock: Clock, notify: Callable[[N], None] = ignore
) -> R:
    """Run an exchange whose requests name their trust, each over a connection of its own."""
    return await drive_notifying(exchange, partial(fetch, clock=clock), clock.sleep, notify)


async def send_over(
    connection: ConnectionPool,
    request: HttpRequest,
    clock: Clock,
    *,
    silence: float | None = None,
    body_seconds: float | None = None,
) -> HttpResponse | HttpFailure:
    """Send one request over a connection, whose trust applies.

    `silence` is the longest wait for the next bytes, and for the head of the response, `body_seconds` the time for the whole body;
    both are by default the timeout of the request. Times are in seconds.
    """
    started, now = clock.monotonic(), asyncio.get_running_loop().time
    end, awaited = now() + min(request.within, PHASES * request.timeout), silence or request.timeout

    def sent() -> None:
        # The time of the response begins when the request was sent.
        limit.reschedule(min(end, now() + awaited))

    way, status = Way(sent), 0
    try:
        async with (
            asyncio.timeout_at(end) as limit,
            connection.stream(request, silence, way) as stream,
        ):
            status = stream.status
            if body_seconds is None:
                body = await stream.read(request.max_bytes)
            else:
                limit.reschedule(now() + body_seconds)
                body = await read_steadily(stream, request.max_bytes, awaited)
            headers = {name.lower(): value for name, value in stream.headers.items()}
    except transport_errors() as error:
        failure = await way.explain(error, clock.now(), min(awaited, request.within))
        return replace(failure, elapsed=clock.monotonic() - started, status=status)
    elapsed = clock.monotonic() - started
    if len(body) > request.max_bytes:
        return HttpFailure(
            TOO_LONG, f"the answer is longer than {request.max_bytes} bytes", elapsed=elapsed, status=status
        )
    return HttpResponse(status, body, headers, elapsed)


async def read_steadily(stream: ResponseStream, limit: int, seconds: float) -> bytes:
    """Return the body, or its beginning when it has more than `limit` bytes. Raises TimeoutError when it drips."""
    body, now = bytearray(), asyncio.get_running_loop().time
    mark = 0
    async with asyncio.timeout(seconds) as pause, aclosing(stream.chunks()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                break
            # Bytes that drip are silence: a server could keep the client waiting with one byte at a time.
            if len(body) - mark >= PROGRESS:
                mark = len(body)
                pause.reschedule(now() + seconds)
    return bytes(body)


async def fetch(request: HttpRequest, clock: Clock) -> HttpResponse | HttpFailure:
    """Send one request over a connection of its own. Raises ConfigError when its credentials, its CA or the
    proxy of the environment cannot be used. An unusable proxy that the way of the request names fails that way alone.
    """
    trust = request.target
    if not isinstance(trust, Trust):
        raise ValueError(f"the trust of the target {trust} is not known here")
    presented = await _presented(request, trust, clock)
    try:
        return await _fetch(request, trust, presented, clock)
    except ProxySettingError as error:
        if not trust.proxy_url:
            raise
        return HttpFailure(PROXY, str(error), unsent=True)


async def _fetch(request: HttpRequest, trust: Trust, presented: Presented, clock: Clock) -> HttpResponse | HttpFailure:
    connection = ConnectionPool(_context(trust, presented), trust.tls_server_name, proxies_for(trust))
    request = replace(
        request,
        headers=(*request.headers, *presented.impersonation),
        authorization=presented.authorization or request.authorization,
    )
    try:
        return await send_over(connection, request, clock)
    finally:
        await connection.close()


async def _presented(request: HttpRequest, trust: Trust, clock: Clock) -> Presented:
    # `HttpRequest` refuses credentials without verification at construction. Checked again where they would be read.
    if request.credentials is None or not trust.verify:
        return Presented()
    server = request.url.removesuffix(CLUSTER_INFO)
    # The cluster that a plugin gets in its variable.
    cluster = Cluster("", server, trust.ca_pem, tls_server_name=trust.tls_server_name, proxy_url=trust.proxy_url)
    return await ClientCredentials(request.credentials, cluster, clock.now).present()


def _context(trust: Trust, presented: Presented) -> ssl.SSLContext:
    if not trust.verify:
        return tls.not_verifying()
    context = tls.for_api_server(trust.ca_pem)
    if presented.key is not None:
        tls.present(context, presented.certificate_pem, presented.key)
    return context
