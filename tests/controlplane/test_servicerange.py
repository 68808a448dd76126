"""The range of the addresses of Services stays with the cluster (networking.k8s.io/v1 ServiceCIDR)."""

from __future__ import annotations

import asyncio
import json
from ipaddress import ip_network

import pytest

from mooring.controlplane.parts.foundation import KEY, record_or_check
from mooring.errors import ConfigError
from mooring.storage.memory import MemoryStorage
from tests.support.manualclock import ManualClock
from tests.support.registryroom import counting_entropy

NOW = ManualClock().now()


async def kept(storage: MemoryStorage, services: str) -> None:
    await record_or_check(storage, ip_network(services), NOW, counting_entropy())


def test_the_first_start_writes_it_and_the_next_ones_agree() -> None:
    async def body() -> None:
        storage = MemoryStorage()
        await storage.open()
        await asyncio.gather(kept(storage, "10.43.0.0/16"), kept(storage, "10.43.0.0/16"))
        entry = await storage.get(KEY)
        assert entry is not None
        assert json.loads(entry.value)["spec"] == {"cidrs": ["10.43.0.0/16"]}
        revision = entry.revision
        await kept(storage, "10.43.0.0/16")
        assert await storage.revision() == revision
        with pytest.raises(
            ConfigError, match=r"10\.43\.0\.0/16, not of 10\.96\.0\.0/12; start with --service-cluster-ip"
        ):
            await kept(storage, "10.96.0.0/12")

    asyncio.run(body())


@pytest.mark.parametrize("value", [b"x", b"[]", b"{}", b'{"spec":{"cidrs":[]}}', b'{"spec":3}'])
def test_what_is_no_range_is_told(value: bytes) -> None:
    async def body() -> None:
        storage = MemoryStorage()
        await storage.open()
        await storage.create(KEY, value)
        with pytest.raises(ConfigError, match="is no ServiceCIDR"):
            await kept(storage, "10.96.0.0/12")

    asyncio.run(body())


def test_of_two_first_starts_with_different_ranges_one_is_refused() -> None:
    class Slow(MemoryStorage):
        async def get(self, key: str, *, revision: int = 0) -> None:
            return None

    async def body() -> None:
        storage = Slow()
        await storage.open()
        await kept(storage, "10.43.0.0/16")
        with pytest.raises(ConfigError, match="start with --service-cluster-ip-range"):
            await kept(storage, "10.96.0.0/12")

    asyncio.run(body())
