"""Drivers and helpers that the scenarios of the storage conformance suite share.

A driver joins the suite by one row of `MAKERS`; `tests/storage/conftest.py` runs every scenario on each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from mooring.clock import SystemClock
from mooring.storage.contract import Change, Page, Storage
from mooring.storage.memory import MemoryStorage
from mooring.storage.sqlite.driver import SqliteStorage

MAKERS: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda directory: MemoryStorage(),
    "sqlite": lambda directory: SqliteStorage(directory / "mooring.db", SystemClock()),
}
Scenario = Callable[[Storage], Awaitable[None]]
Run = Callable[[Scenario], None]


async def take(watch: AsyncIterator[tuple[Change, ...]], count: int) -> list[Change]:
    """Return the next `count` changes; more than that in the same batch fails."""
    found: list[Change] = []
    while len(found) < count:
        found += await asyncio.wait_for(anext(watch), timeout=10)
    assert len(found) == count
    return found


def closing(watch: AsyncIterator[tuple[Change, ...]]) -> aclosing[Any]:
    return aclosing(cast("Any", watch))


def keys(page: Page) -> list[str]:
    return [entry.key for entry in page.entries]
