"""Encryption at rest above the store: stale values are written again, and an unreadable object hides no other."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import KINDS
from mooring.api.view import ViewFollower
from mooring.apimachinery.schema import Obj
from mooring.controlplane.encryption import stored_resources
from mooring.errors import AlreadyExistsError, ConflictError, InternalServerError, InvalidError
from mooring.identity import UserInfo
from mooring.registry.cache.events import encoded
from mooring.registry.cache.watchcache import WatchCache
from mooring.registry.write.writer import WRITE_TRIES
from mooring.storage.contract import Entry, Page, Storage
from mooring.storage.encryption.providers import Providers
from mooring.storage.encryption.storage import EncryptedStorage
from mooring.storage.memory import MemoryStorage
from mooring.trust.encryption.configuration import NOTHING, parse
from tests.support.encryption import IDENTITY, entry, file, local
from tests.support.manualclock import ManualClock, settle
from tests.support.registryroom import Room, counting_entropy, kind, open_room, secret
from tests.support.storagedrivers import MAKERS

KEY = "/registry/secrets/default/a"


class Plane:
    """A registry over an encrypting store, and the bytes below."""

    def __init__(self, room: Room, inner: Storage, providers: Providers) -> None:
        self.room = room
        self.inner = inner
        self.providers = providers

    async def raw(self, key: str = KEY) -> bytes:
        found = await self.inner.get(key)
        assert found is not None
        return found.value

    async def use(self, *providers: Obj, resources: str = "secrets") -> None:
        """Bring another configuration into force."""
        await self.providers.replace(parse(file(entry(resources, *providers)), "f") if providers else NOTHING)
        for _ in range(3):
            await self.room.clock.advance(1)
            await settle()

    async def problem(self, verb: Awaitable[Any]) -> str:
        with pytest.raises(InternalServerError) as caught:
            await verb
        return caught.value.message


@asynccontextmanager
async def open_plane(inner: Storage | None = None) -> AsyncIterator[Plane]:
    clock, inner = ManualClock(), inner or MemoryStorage()
    providers = Providers(NOTHING, clock, counting_entropy())
    storage = EncryptedStorage(inner, providers, stored_resources())
    await storage.open()
    async with open_room(storage, clock=clock) as room:
        providers.subscribe(room.registry.relist_soon)
        for name in ("default", "other"):
            await room.create("namespaces", {"metadata": {"name": name}})
        yield Plane(room, inner, providers)
    await storage.close()


def in_plane(test: Callable[[Plane], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        async def body() -> None:
            async with open_plane() as plane:
                await test(plane)

        asyncio.run(body())

    del run.__wrapped__  # pytest would see the plane as a fixture
    return run


@in_plane
async def test_only_configured_resources_are_encrypted_and_every_reader_sees_plain_objects(plane: Plane) -> None:
    await plane.use(local("aesgcm", "one"))
    await plane.room.create("secrets", secret("a"))
    await plane.room.create("configmaps", {"metadata": {"name": "a"}})
    assert (await plane.raw()).startswith(b"k8s:enc:aesgcm:v1:one:")
    assert (await plane.raw("/registry/configmaps/default/a")).startswith(b'{"kind":"ConfigMap"')
    assert (await plane.room.get("secrets", "a")).obj["data"] == {"key": "dmFsdWU="}
    assert await plane.room.names("secrets") == ["a"]


@in_plane
async def test_an_update_that_changes_nothing_is_stored_only_when_the_value_is_stale(plane: Plane) -> None:
    first = await plane.room.create("secrets", secret("a"))
    assert (await plane.room.patch("secrets", "a", {})).revision == first.revision
    await plane.use(local("secretbox", "one"), IDENTITY)
    second = await plane.room.patch("secrets", "a", {})
    assert second.revision > first.revision
    assert (await plane.raw()).startswith(b"k8s:enc:secretbox:v1:one:")
    assert (await plane.room.patch("secrets", "a", {})).revision == second.revision
    await plane.use(local("secretbox", "two", "one"))
    updated, _ = await plane.room.update("secrets", dict((await plane.room.get("secrets", "a")).obj))
    assert updated.revision > second.revision
    assert (await plane.raw()).startswith(b"k8s:enc:secretbox:v1:two:")


@in_plane
async def test_a_dry_run_stores_nothing_again(plane: Plane) -> None:
    first = await plane.room.create("secrets", secret("a"))
    await plane.use(local("secretbox", "one"), IDENTITY)
    await plane.room.update("secrets", dict(first.obj), dry_run=True)
    assert (await plane.raw()).startswith(b"{")


UNREADABLE = (
    f'Internal error occurred: unable to transform key "{KEY}": it was encrypted by aesgcm lost, which is not configured '
    "for this resource"
)

UNREADABLE_LIST = UNREADABLE.replace("Internal error occurred", "failed to read one or more secrets from the storage")


async def lose_the_key(plane: Plane) -> None:
    """Write one Secret with a key, and another without one; restart the cache without the key."""
    await plane.use(local("aesgcm", "lost"), IDENTITY)
    await plane.room.create("secrets", secret("a"))
    await plane.use(IDENTITY)
    await plane.room.create("secrets", secret("b"))
    await plane.room.create("secrets", secret("c"), namespace="other")


@in_plane
async def test_an_object_that_no_key_decrypts_hides_no_other(plane: Plane) -> None:
    await lose_the_key(plane)
    async with open_room(plane.room.storage, clock=plane.room.clock) as restarted:
        assert await plane.problem(restarted.get("secrets", "a")) == UNREADABLE
        assert await plane.problem(restarted.get("secrets", "a", resource_version="0")) == UNREADABLE
        for selection in ({}, {"fieldSelector": "metadata.name=a", "namespace": "default"}, {"limit": 2}):
            assert await plane.problem(restarted.list("secrets", **selection)) == UNREADABLE_LIST
        first = await restarted.list("secrets", "other", limit=1)
        assert (
            await plane.problem(
                restarted.list("secrets", resourceVersionMatch="Exact", resourceVersion=str(first.revision))
            )
            == UNREADABLE_LIST
        )
        assert await plane.problem(restarted.watch("secrets")) == UNREADABLE_LIST
        assert await plane.problem(restarted.delete("secrets", "a")) == UNREADABLE
        assert (await restarted.get("secrets", "b")).name == "b"
        assert await restarted.names("secrets", "other") == ["c"]
        with pytest.raises(AlreadyExistsError):
            await restarted.create("secrets", secret("a"))


@pytest.mark.parametrize("driver", ["memory", "sqlite", "etcd"])
def test_an_unsafe_delete_removes_what_cannot_be_read_and_nothing_else(driver: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_plane(MAKERS[driver](tmp_path)) as plane:
            await unsafe_delete_removes_what_cannot_be_read_and_nothing_else(plane)

    asyncio.run(run())


async def unsafe_delete_removes_what_cannot_be_read_and_nothing_else(plane: Plane) -> None:
    await lose_the_key(plane)
    await plane.inner.create("/registry/secrets/default/garbage", b"no object")
    async with open_room(plane.room.storage, clock=plane.room.clock) as restarted:
        registry, secrets = restarted.registry, kind("secrets")
        change = Change(UserInfo("jane"), restarted.clock.now())
        for name in ("b", "missing"):
            with pytest.raises(InvalidError, match="is exclusively used to delete corrupt object"):
                await registry.writer.delete_unreadable(secrets, "default", name, change, dry_run=False)
        for name in ("a", "garbage"):
            await registry.writer.delete_unreadable(secrets, "default", name, change, dry_run=False)
            assert await plane.inner.get(f"/registry/secrets/default/{name}") is None
        assert await restarted.names("secrets") == ["b", "c"]
        await restarted.watch("secrets", "default")
        await restarted.create("secrets", secret("a"))
        assert restarted.seen == ["ADDED b", "ADDED a"]
    assert await plane.room.names("secrets", "default") == ["a", "b"], "the other server has followed"


@in_plane
async def test_an_unsafe_delete_judges_the_value_that_it_removes(plane: Plane) -> None:
    """Test with an object that another server writes between the read and the delete: each time, and once as a readable one."""
    await lose_the_key(plane)
    read, writes = plane.room.storage.get, [b"k8s:enc:aesgcm:v1:lost:again"] * WRITE_TRIES

    async def read_and_lose(key: str, *, revision: int = 0) -> Entry | None:
        found = await read(key, revision=revision)
        if found is not None and writes:
            await plane.inner.update(key, writes.pop(), expected=found.revision)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plane.room.storage, "get", read_and_lose)
        change = Change(UserInfo("jane"), plane.room.clock.now())
        with pytest.raises(ConflictError, match="has been modified"):
            await plane.room.registry.writer.delete_unreadable(kind("secrets"), "default", "a", change, dry_run=False)
        writes.append(encoded(kind("secrets").resource, secret("a", metadata={"namespace": "default"})))
        with pytest.raises(InvalidError, match="exclusively"):
            await plane.room.registry.writer.delete_unreadable(kind("secrets"), "default", "a", change, dry_run=False)
    await settle()
    assert await plane.room.names("secrets", "default") == ["a", "b"]


@in_plane
async def test_the_key_that_comes_back_makes_the_object_readable_again(plane: Plane) -> None:
    await lose_the_key(plane)
    async with open_room(plane.room.storage, clock=plane.room.clock) as restarted:
        plane.providers.subscribe(restarted.registry.relist_soon)
        await restarted.watch("secrets", "other")
        await plane.use(IDENTITY, local("aesgcm", "lost"))
        assert restarted.registry.cache.ready
        assert await restarted.names("secrets") == ["a", "b", "c"]
        await restarted.create("secrets", secret("d"), namespace="other")
        assert restarted.seen == ["ADDED c", "ADDED d"]


@in_plane
async def test_an_object_that_becomes_unreadable_is_absent_from_views_and_its_watches_see_no_deletion(
    plane: Plane,
) -> None:
    await lose_the_key(plane)
    await plane.room.watch("secrets", resourceVersion=str(plane.room.registry.cache.revision))
    found = await plane.inner.get(KEY)
    assert found is not None
    await plane.inner.update(KEY, b"k8s:enc:aesgcm:v1:lost:damaged", expected=found.revision)
    await settle()
    assert plane.room.seen == []
    assert await plane.problem(plane.room.get("secrets", "a")) == UNREADABLE
    view = plane.room.registry.views["secrets"]
    assert view.get("a", "default") is None
    assert "a" not in [obj["metadata"]["name"] for obj in view.list("default")]
    assert view.problem("a", "default") == UNREADABLE.partition(f'"{KEY}": ')[2]
    assert list(view.unreadable()) == list(view.unreadable("default")) == [("default", "a")]
    assert not view.unreadable("other")
    changed = await plane.inner.get(KEY)
    assert changed is not None
    await plane.inner.delete(KEY, expected=changed.revision)
    await settle()
    assert plane.room.seen == ["DELETED a"]
    assert await plane.room.names("secrets", "default") == ["b"]


@in_plane
async def test_a_state_that_was_read_stays_readable_while_the_store_has_no_newer_one(plane: Plane) -> None:
    await plane.use(local("aesgcm", "lost"), IDENTITY)
    await plane.room.create("secrets", secret("a"))
    await plane.use(IDENTITY)
    await plane.inner.create("/registry/secrets/default/b", b"junk")
    await settle()
    await plane.use(local("aesgcm", "other"), IDENTITY)  # everything is read again
    assert list(plane.room.registry.cache.unreadable) == ["/registry/secrets/default/b"]
    assert (await plane.room.get("secrets", "a")).obj["data"] == {"key": "dmFsdWU="}


@in_plane
async def test_followers_of_a_view_see_what_can_be_read_again(plane: Plane) -> None:
    await lose_the_key(plane)
    async with open_room(plane.room.storage, clock=plane.room.clock) as restarted:
        plane.providers.subscribe(restarted.registry.relist_soon)
        view, follower = restarted.registry.views["secrets"], ViewFollower()
        assert follower.changes(view) is not None
        await plane.use(IDENTITY, local("aesgcm", "lost"))  # the store has no newer revision
        found = follower.changes(view)
        assert found is not None
        assert (("default", "a"), True) in [(key, obj is not None) for key, obj in found[1]]


@in_plane
async def test_a_key_that_comes_back_while_the_state_is_read_is_used_at_once(plane: Plane) -> None:
    await lose_the_key(plane)
    cache = WatchCache(plane.room.storage, KINDS, plane.room.clock)
    read, pages = plane.room.storage.range, []

    async def reading(*arguments: Any, **options: Any) -> Page:
        pages.append(await read(*arguments, **options))
        if len(pages) == 1:
            await plane.providers.replace(parse(file(entry("secrets", IDENTITY, local("aesgcm", "lost"))), "f"))
            await cache.relist()  # as its subscriber does
        return pages[-1]

    with patch.object(plane.room.storage, "range", reading):
        await cache.start()
    await cache.stop()
    assert len(pages) == 2
    assert cache.unreadable == {}


@pytest.mark.parametrize("cipher", ["aescbc", "secretbox", "aesgcm"])
def test_a_value_that_is_copied_over_another_is_not_served_under_its_name(cipher: str) -> None:
    async def body() -> None:
        async with open_plane() as plane:
            await copied_over_another(plane, cipher)

    asyncio.run(body())


async def copied_over_another(plane: Plane, cipher: str) -> None:
    await plane.use(local(cipher, "one"), IDENTITY)
    await plane.room.create("secrets", secret("a"))
    await plane.room.create("secrets", secret("b"))
    await plane.room.create("secrets", secret("a"), namespace="other")
    copied = await plane.raw("/registry/secrets/default/b")
    for key in (KEY, "/registry/secrets/other/a"):
        found = await plane.inner.get(key)
        assert found is not None
        await plane.inner.update(key, copied, expected=found.revision)
    await settle()
    for namespace in ("default", "other"):
        assert "unable to transform key" in await plane.problem(plane.room.get("secrets", "a", namespace=namespace))
    assert (await plane.room.get("secrets", "b")).obj["metadata"]["name"] == "b"


@in_plane
async def test_usage_counts_values_by_key(plane: Plane) -> None:
    await lose_the_key(plane)
    await plane.use(local("secretbox", "new"), IDENTITY)
    await plane.room.patch("secrets", "b", {})
    (usage,) = await plane.room.storage.usage()  # type: ignore[attr-defined]  # an EncryptedStorage
    assert (str(usage.resource), usage.writes) == ("secrets", "secretbox new")
    assert usage.values == {"aesgcm lost": 1, "secretbox new": 1, "identity": 1}
    assert (usage.stale, usage.unreadable) == (1, 1)
