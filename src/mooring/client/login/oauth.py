"""Performs what the generators of `mooring.trust.login.oauth` ask for.

Rules kept here: TLS is verified, under the given CAs or the machine's; no redirect is followed; an answer is read to its limit; a
failure is an answer. One connection serves a whole conversation with one trust.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Generator
from typing import TypeVar
from urllib.parse import urlencode

from mooring.client.http import tls
from mooring.client.http.connection import Ask as HttpAsk
from mooring.client.http.connection import Connection, environment_proxy, transport_errors
from mooring.clock import Clock
from mooring.trust.discovery.exchange import Fetched, FetchFailed, Wait
from mooring.trust.login import oauth

R = TypeVar("R")


async def drive(
    generator: Generator[oauth.Step, oauth.Reply, R],
    issuer: str,
    ca_pem: bytes,
    clock: Clock,
    show: Callable[[oauth.Show], None],
) -> R:
    """Run a generator to its end: its result, or the error it raises. `ca_pem` empty: the machine's roots."""
    context = tls.trusting(ca_pem) if ca_pem else tls.trusting_system_roots()
    connection = Connection(context, environment_proxy(issuer))
    reply: oauth.Reply = None
    try:
        while True:
            try:
                step = generator.send(reply)
            except StopIteration as stop:
                result: R = stop.value
                return result
            reply = None
            if isinstance(step, oauth.Show):
                show(step)
            elif isinstance(step, Wait):
                await clock.sleep(step.seconds)
            else:
                reply = await _exchange(connection, step, clock)
    finally:
        generator.close()
        await connection.close()


async def _exchange(connection: Connection, asked: oauth.Ask, clock: Clock) -> Fetched | FetchFailed:
    headers = [("Accept", "application/json")]
    body = None
    if asked.form is not None:
        body = urlencode(asked.form).encode()
        headers.append(("Content-Type", "application/x-www-form-urlencoded"))
    if asked.basic is not None:
        headers.append(("Authorization", "Basic " + base64.b64encode(asked.basic.reveal()).decode()))
    ask = HttpAsk("POST" if body is not None else "GET", asked.url, tuple(headers), body, timeout=oauth.TIMEOUT)
    try:
        async with asyncio.timeout(2 * oauth.TIMEOUT), connection.stream(ask) as answer:
            return Fetched(answer.status, await answer.read(oauth.MAX_BODY))
    except transport_errors() as error:
        found = tls.finding(error, clock.now(), oauth.TIMEOUT)
        return FetchFailed(found.kind, found.message, found.hint)
