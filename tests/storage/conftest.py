"""Every test that asks for `store` or `run` runs once on each driver."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mooring.storage.contract import Storage
from tests.support.storagedrivers import MAKERS, Run, Scenario


@pytest.fixture(params=MAKERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MAKERS[request.param](tmp_path)


@pytest.fixture
def run(store: Storage) -> Run:
    """Open the store, run the scenario, close the store."""

    async def whole(scenario: Scenario) -> None:
        await store.open()
        try:
            await asyncio.wait_for(scenario(store), timeout=30)
        finally:
            await store.close()

    return lambda scenario: asyncio.run(whole(scenario))
