"""The commit of a write: whoever lost the right meanwhile writes nothing, although another server was told so.

Source: docs/adr/0058-credentials-are-judged-at-the-commit.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from mooring.api.kind import Change
from mooring.apimachinery.options import DeleteOptions, WriteOptions
from mooring.errors import ServiceUnavailableError, UnauthorizedError
from mooring.registry.reader import FRESH_WITHIN
from mooring.registry.write.commit import grants
from mooring.storage.contract import Storage, StoredChange
from mooring.storage.memory import MemoryStorage
from tests.support.manualclock import settle
from tests.support.registryroom import Room, kind, open_room, secret

ENTRY = {"metadata": {"name": "key-" + "0" * 64}, "spec": {"publicKey": "sha256:" + "0" * 64}}
ROLE = {"metadata": {"name": "r"}, "rules": []}


class Late:
    """A store whose watch hands out nothing until `open` is set."""

    def __init__(self, inner: MemoryStorage) -> None:
        self._inner = inner
        self.open = asyncio.Event()
        self.open.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        async for changes in self._inner.watch(prefix, after=after):
            await self.open.wait()
            yield changes


class Denylist:
    """A gate that refuses once the view has a revocation."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def prepare(self) -> None:
        return None

    def check(self) -> None:
        if list(self._room.registry.views["certificaterevocations"].list()):
            raise UnauthorizedError()


async def created(room: Room, change: Change) -> Any:
    return await room.registry.writer.create(kind("clusterroles"), "", ROLE, change, WriteOptions())


async def updated(room: Room, change: Change) -> Any:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    return await room.registry.writer.update(
        kind("clusterroles"), "", "old", {"metadata": {"name": "old"}, "rules": rules}, change, WriteOptions()
    )


async def deleted(room: Room, change: Change) -> Any:
    return await room.registry.writer.delete(kind("clusterroles"), "", "old", DeleteOptions(), change)


Write = Callable[[Room, Change], Awaitable[Any]]
WRITES = (created, updated, deleted)


def on_two_servers(test: Callable[[Room, Room, Late], Awaitable[None]]) -> None:
    """Run a test with two servers on one store, of which the second reads through `Late`."""

    async def run() -> None:
        inner = MemoryStorage()
        await inner.open()
        late = Late(inner)
        store = cast(Storage, late)
        async with open_room(inner) as first, open_room(store, clock=first.clock) as second:
            await first.create("namespaces", {"metadata": {"name": "default"}})
            await first.create("clusterroles", {"metadata": {"name": "old"}, "rules": []})
            await settle()
            await test(first, second, late)

    asyncio.run(run())


@pytest.mark.parametrize("write", WRITES)
def test_a_grant_waits_for_the_revocation_that_another_server_has_stored(write: Write) -> None:
    async def test(first: Room, second: Room, late: Late) -> None:
        late.open.clear()
        await first.create("certificaterevocations", ENTRY)
        change = replace(second.change(), gate=Denylist(second))
        granting = asyncio.ensure_future(write(second, change))
        await settle()
        assert not granting.done(), "its views lack the revocation"
        late.open.set()
        with pytest.raises(UnauthorizedError):
            await granting
        assert await first.names("clusterroles") == ["old"]
        assert (await first.get("clusterroles", "old")).obj["rules"] == []

    on_two_servers(test)


@pytest.mark.parametrize("write", WRITES)
def test_a_grant_is_refused_while_the_views_stay_behind(write: Write) -> None:
    async def test(first: Room, second: Room, late: Late) -> None:
        late.open.clear()
        await first.create("certificaterevocations", ENTRY)
        granting = asyncio.ensure_future(write(second, replace(second.change(), gate=Denylist(second))))
        for _ in range(3):
            await settle()
            await second.clock.advance(FRESH_WITHIN)
        with pytest.raises(ServiceUnavailableError) as refusal:
            await granting
        assert refusal.value.details.retry_after == 1
        assert (await first.get("clusterroles", "old")).obj["rules"] == []
        late.open.set()

    on_two_servers(test)


OLD = {"metadata": {"name": "old"}, "rules": []}
DRY = WriteOptions(dry_run=True)


async def created_dry(room: Room, change: Change) -> Any:
    return await room.registry.writer.create(kind("clusterroles"), "", ROLE, change, DRY)


async def updated_dry(room: Room, change: Change) -> Any:
    return await room.registry.writer.update(
        kind("clusterroles"), "", "old", {**OLD, "metadata": {"name": "old", "labels": {"a": "b"}}}, change, DRY
    )


async def updated_without_a_change(room: Room, change: Change) -> Any:
    return await room.registry.writer.update(kind("clusterroles"), "", "old", OLD, change, WriteOptions())


async def deleted_dry(room: Room, change: Change) -> Any:
    return await room.registry.writer.delete(kind("clusterroles"), "", "old", DeleteOptions(dry_run=True), change)


async def deleted_unreadable_dry(room: Room, change: Change) -> Any:
    key = "/registry/clusterroles/old"
    entry = await room.storage.get(key)
    assert entry is not None
    await room.storage.update(key, b"damaged", expected=entry.revision)
    return await room.registry.writer.delete_unreadable(kind("clusterroles"), "", "old", change, dry_run=True)


@pytest.mark.parametrize(
    "write", [created_dry, updated_dry, updated_without_a_change, deleted_dry, deleted_unreadable_dry]
)
def test_a_write_that_stores_nothing_shows_nothing_to_a_credential_that_ended(write: Write) -> None:
    async def test(first: Room, second: Room, late: Late) -> None:
        late.open.clear()
        await first.create("certificaterevocations", ENTRY)
        answer = asyncio.ensure_future(write(second, replace(second.change(), gate=Denylist(second))))
        await settle()
        late.open.set()
        with pytest.raises(UnauthorizedError):
            await answer

    on_two_servers(test)


GRANTING = {
    "clusterroles": True,
    "rolebindings": True,
    "certificatesigningrequests": True,
    "certificaterevocations": True,
    "nodeidentities": True,
    "secrets": True,
    "serviceaccounts": True,
    "nodes": True,
    "configmaps": False,
    "leases": False,
    "pods": False,
}


def test_which_kinds_grant_a_right_or_end_one() -> None:
    assert {plural: grants(kind(plural)) for plural in GRANTING} == GRANTING


def test_a_refused_service_gives_its_address_back() -> None:
    async def test(first: Room, second: Room, late: Late) -> None:
        await first.create("certificaterevocations", ENTRY)
        await settle()
        service = {"metadata": {"name": "s"}, "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}]}}
        change = replace(second.change(), gate=Denylist(second))
        with pytest.raises(UnauthorizedError):
            await second.registry.writer.create(kind("services"), "default", service, change, WriteOptions())
        await first.create("services", {**service, "metadata": {"name": "other"}})

    on_two_servers(test)


def test_a_write_of_the_server_itself_needs_no_credential() -> None:
    async def test(first: Room, second: Room, late: Late) -> None:
        await first.create("certificaterevocations", ENTRY)
        assert (await second.create("secrets", secret("s"))).obj["metadata"]["name"] == "s"

    on_two_servers(test)
