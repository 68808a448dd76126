"""Driver for asyncio: performs the requests and waits of exchanges (law 8, `mooring.trust.httpexchange`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse, Reply, Wait

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
