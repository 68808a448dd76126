"""One SQLite store on a file, for tests that look at the file between two runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from mooring.clock import SystemClock
from mooring.storage.sqlite.driver import SqliteStorage

Scenario = Callable[[SqliteStorage], Awaitable[None]]
SECONDS = 300
"""Ends a scenario that hangs. One with hundreds of writes takes a minute where the disk is slow and the machine busy."""


def run(path: Path, scenario: Scenario) -> None:
    """Open the store of a file, run a scenario, and close the store."""

    async def whole() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        try:
            await asyncio.wait_for(scenario(store), SECONDS)
        finally:
            await store.close()

    asyncio.run(whole())


async def nothing(store: SqliteStorage) -> None:
    """Only open and close."""
