"""Waits of background work for an event, or for a time at which it acts without one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def wait_for_event(event: asyncio.Event, timer: Coroutine[Any, Any, None]) -> bool:
    """Return when `event` is set or `timer` has ended, whichever comes first. Return whether `event` is set; it stays set."""
    waiting = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(timer)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return event.is_set()
