"""Drives exchanges: generators that yield HTTP requests and waits (law 8, `mooring.trust.httpexchange`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from mooring.trust.httpexchange import Reply

Step = TypeVar("Step")
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
