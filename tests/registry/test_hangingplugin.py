"""A KMS plugin that hangs holds back the values that need it, and nothing else that the watch of the store delivers.

Source: docs/adr/0079-a-view-that-judges-has-a-maximum-age.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mooring.controlplane.encryption import stored_resources
from mooring.errors import InternalServerError
from mooring.registry.cache.views import MAX_AGE_SECONDS
from mooring.registry.cache.watchcache import RETRY_LAST
from mooring.storage.encryption.providers import Providers
from mooring.storage.encryption.storage import LATE, PATIENCE_SECONDS, EncryptedStorage
from mooring.storage.memory import MemoryStorage
from mooring.trust.encryption.configuration import parse
from tests.support.encryption import IDENTITY, entry, file, kms
from tests.support.kmsplugin import SimulatedPlugin, serving
from tests.support.manualclock import ManualClock, settle
from tests.support.registryroom import Room, counting_entropy, kind, open_room, options, secret

ENTRY = {"metadata": {"name": "key-" + "0" * 64}, "spec": {"publicKey": "sha256:" + "0" * 64}}


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[SimulatedPlugin]:
    with serving(SimulatedPlugin(tmp_path / "kms.sock")) as plugin:
        yield plugin


@asynccontextmanager
async def worker(inner: MemoryStorage, plugin: SimulatedPlugin, clock: ManualClock) -> AsyncIterator[Room]:
    """One of several workers on a store, with a seed of its own."""
    configuration = parse(file(entry("secrets", kms(plugin.endpoint, timeout="20s"), IDENTITY)), "f")
    providers = Providers(configuration, clock, counting_entropy())
    storage = EncryptedStorage(inner, providers, stored_resources())
    await storage.open()
    async with open_room(storage, clock=clock) as room:
        providers.subscribe(room.registry.relist_soon)
        yield room
    await storage.close()


def on_two_workers(plugin: SimulatedPlugin, test: Callable[[Room, Room], Awaitable[None]]) -> None:
    async def body() -> None:
        inner, clock = MemoryStorage(), ManualClock()
        await inner.open()
        async with worker(inner, plugin, clock) as first, worker(inner, plugin, clock) as second:
            await first.create("namespaces", {"metadata": {"name": "default"}})
            await settle()
            try:
                await test(first, second)
            finally:
                plugin.answers.set()

    asyncio.run(asyncio.wait_for(body(), 30))


async def until_readable(room: Room, name: str) -> None:
    """Return once the view has the Secret; `on_two_workers` bounds the wait."""
    while room.registry.views["secrets"].get(name, "default") is None:
        await asyncio.sleep(0.005)
        await room.clock.advance(RETRY_LAST)


def test_a_revocation_passes_a_value_that_the_plugin_does_not_decrypt(plugin: SimulatedPlugin) -> None:
    async def test(first: Room, second: Room) -> None:
        plugin.answers.clear()
        await first.create("secrets", secret("a"))
        await first.create("certificaterevocations", ENTRY)
        await settle()
        revocations, secrets = second.registry.views["certificaterevocations"], second.registry.views["secrets"]
        assert list(revocations.list()) == [], "a plugin that is only slow is waited for"
        await second.clock.advance(PATIENCE_SECONDS)
        assert len(list(revocations.list())) == 1
        assert secrets.problem("a", "default") == LATE
        await first.create("secrets", secret("b"))
        await first.create("configmaps", {"metadata": {"name": "later"}})
        await settle()
        assert await second.names("configmaps") == ["later"], "no second value is waited for meanwhile"
        with pytest.raises(InternalServerError, match=LATE):
            await second.get("secrets", "b")
        assert await second.registry.reader.fresh()
        assert not second.registry.cache.is_late
        plugin.answers.set()
        await until_readable(second, "a")
        assert await second.names("secrets") == ["a", "b"]

    assert PATIENCE_SECONDS < MAX_AGE_SECONDS
    on_two_workers(plugin, test)


def test_what_is_late_never_comes_after_a_newer_change(plugin: SimulatedPlugin) -> None:
    async def test(first: Room, second: Room) -> None:
        events: list[str] = []
        watch = await second.registry.reader.watch(
            kind("secrets"), "default", options(), lambda event: events.append(f"{event.type} {event.obj['data']}")
        )
        await watch.replay()
        plugin.answers.clear()
        for name in ("deleted", "changed"):
            await first.create("secrets", secret(name))
        await settle()
        await second.clock.advance(PATIENCE_SECONDS)
        await first.update("secrets", secret("changed", data={"key": "bmV3"}))
        await first.delete("secrets", "deleted")
        await settle()
        assert events == []
        plugin.answers.set()
        await until_readable(second, "changed")
        assert events == ["ADDED {'key': 'bmV3'}"]
        assert await second.names("secrets") == ["changed"]

    on_two_workers(plugin, test)
