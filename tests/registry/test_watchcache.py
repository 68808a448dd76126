"""Test the watch cache with a failing store, and with several registries on one store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mooring.api.kind import Kind
from mooring.api.kinds import KINDS
from mooring.clock import SystemClock
from mooring.errors import AlreadyExistsError, InternalServerError, NotFoundError, StorageError
from mooring.registry.cache import events
from mooring.registry.cache.events import encoded
from mooring.registry.cache.watchcache import RETRY_FIRST
from mooring.registry.offload import LONG_BYTES
from mooring.storage.contract import CompactedError, StoredChange
from mooring.storage.memory import MemoryStorage
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support.manualclock import settle
from tests.support.registryroom import NAMESPACES, Room, in_room, kind, open_room, secret


class FragileStorage(MemoryStorage):
    """Memory storage whose watch can be broken, and which can refuse to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self.unreadable = False
        self._broken = asyncio.Event()

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        return self._watch(super().watch(prefix, after=after))

    async def _watch(self, real: AsyncIterator[tuple[StoredChange, ...]]) -> AsyncIterator[tuple[StoredChange, ...]]:
        while True:
            batch = asyncio.ensure_future(anext(real))
            broken = asyncio.ensure_future(self._broken.wait())
            try:
                await asyncio.wait({batch, broken}, return_when=asyncio.FIRST_COMPLETED)
                if self._broken.is_set():
                    self._broken.clear()
                    if self.failure is not None:
                        raise self.failure
                    return
                yield batch.result()
            finally:
                batch.cancel()
                broken.cancel()

    def break_watch(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self._broken.set()

    async def range(self, *args: Any, **kwargs: Any) -> Any:
        if self.unreadable:
            raise StorageError("the disk is gone")
        return await super().range(*args, **kwargs)

    async def revision(self) -> int:
        if self.unreadable:
            raise StorageError("the disk is gone")
        return await super().revision()


@asynccontextmanager
async def fragile_room(storage: FragileStorage) -> AsyncIterator[Room]:
    await storage.open()
    async with open_room(storage) as room:
        await room.create("namespaces", {"metadata": {"name": "default"}})
        for name in ("keep", "change", "gone"):
            await room.create("secrets", secret(name))
        yield room
    await storage.close()


async def write_behind_the_back(storage: FragileStorage) -> None:
    """Write as another process does meanwhile."""
    gone = await storage.get("/registry/secrets/default/gone")
    change = await storage.get("/registry/secrets/default/change")
    assert gone is not None
    assert change is not None
    await storage.update(change.key, change.value.replace(b"dmFsdWU=", b"bmV3"), expected=change.revision)
    await storage.delete(gone.key, expected=gone.revision)
    await storage.create("/registry/secrets/default/new", change.value.replace(b'"change"', b'"new"'))


@pytest.mark.parametrize(
    ("failure", "compacting"),
    [
        (StorageError("connection lost"), False),
        (None, False),
        (CompactedError(9), True),
        (ZeroDivisionError(), False),
    ],
    ids=["connection lost", "the watch just ended", "compacted", "a bug"],
)
def test_a_broken_watch_loses_nothing(
    failure: Exception | None, compacting: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        storage = FragileStorage()
        async with fragile_room(storage) as room:
            start = room.registry.cache.revision
            await room.watch("secrets", resourceVersion=start)
            storage.break_watch(failure)
            await room.settle()
            assert not room.ready()
            await write_behind_the_back(storage)
            if compacting:
                await storage.compact(await storage.revision())
            assert room.seen == []
            await room.clock.advance(RETRY_FIRST)
            assert room.ready()
            assert room.registry.cache.revision == await storage.revision()
            in_turn = ["MODIFIED change", "DELETED gone", "ADDED new"]
            found_by_listing = ["MODIFIED change", "ADDED new", "DELETED gone"]  # when it went is not known any more
            assert room.seen == (
                found_by_listing if isinstance(failure, CompactedError | ZeroDivisionError) else in_turn
            )
            view = room.registry.views["secrets"]
            assert [obj["metadata"]["name"] for obj in view.list("default")] == ["change", "keep", "new"]
            assert view.revision == await storage.revision()
            await room.create("secrets", secret("later"))
            assert room.seen[3:] == ["ADDED later"]
            with pytest.raises(NotFoundError):
                await room.get("secrets", "gone")

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())


def test_a_resync_that_finds_deletions_last_moves_the_view_s_revision() -> None:
    async def scenario() -> None:
        storage = FragileStorage()
        async with fragile_room(storage) as room:
            before = room.registry.views["secrets"].revision
            storage.break_watch(CompactedError(9))
            await room.settle()
            gone = await storage.get("/registry/secrets/default/gone")
            assert gone is not None
            await storage.delete(gone.key, expected=gone.revision)
            await storage.compact(await storage.revision())
            await room.clock.advance(RETRY_FIRST)
            assert room.registry.views["secrets"].revision > before
            assert room.registry.views["secrets"].get("gone", "default") is None

    asyncio.run(scenario())


def test_the_cache_tries_again_with_growing_pauses_until_the_store_can_be_read() -> None:
    async def scenario() -> None:
        storage = FragileStorage()
        async with fragile_room(storage) as room:
            storage.unreadable = True
            storage.break_watch(CompactedError(9))
            await room.clock.advance(30)
            assert not room.ready()
            with pytest.raises(StorageError):
                await room.get("secrets", "keep")
            storage.unreadable = False
            await room.clock.advance(5)
            assert room.ready()
            assert (await room.get("secrets", "keep")).name == "keep"

    asyncio.run(scenario())


def test_start_raises_when_the_store_cannot_be_read() -> None:
    async def scenario() -> None:
        storage = FragileStorage()
        await storage.open()
        storage.unreadable = True
        with pytest.raises(StorageError, match="the disk is gone"):
            async with open_room(storage):
                pass

    asyncio.run(scenario())


def test_a_write_that_was_stored_is_answered_even_if_the_watch_breaks_before_it_is_seen() -> None:
    async def scenario() -> None:
        storage = FragileStorage()
        async with fragile_room(storage) as room:
            real = storage.create

            async def create(key: str, value: bytes, *, ttl: int = 0) -> Any:
                storage.break_watch(StorageError("connection lost"))
                return await real(key, value)

            storage.create = create  # type: ignore[method-assign] # the watch breaks during the write
            stored = await room.create("secrets", secret("a"))
            assert stored.revision == await storage.revision()

    asyncio.run(scenario())


# -- several processes ----------------------------------------------------------------------------------------------


def test_two_registries_over_one_store_see_each_other_s_writes_at_once() -> None:
    async def scenario() -> None:
        storage = MemoryStorage()
        await storage.open()
        async with open_room(storage) as one, open_room(storage, clock=one.clock) as two:
            for name in NAMESPACES:
                await one.create("namespaces", {"metadata": {"name": name}})
            await one.watch("secrets")
            await two.watch("secrets")
            for index in range(20):
                writer, reader = (one, two) if index % 2 else (two, one)
                stored = await writer.create("secrets", secret(f"s{index:02}"))
                assert (await reader.get("secrets", stored.name)).revision == stored.revision
                assert (await reader.list("secrets")).items[-1].name == stored.name
            await one.settle()
            assert one.seen == two.seen == [f"ADDED s{index:02}" for index in range(20)]
        await storage.close()

    asyncio.run(scenario())


def test_many_incrementing_writers_in_two_registries_lose_no_increment() -> None:
    async def scenario() -> None:
        storage = MemoryStorage()
        await storage.open()
        async with open_room(storage) as one, open_room(storage, clock=one.clock) as two:
            await one.create("namespaces", {"metadata": {"name": "default"}})
            await one.create("configmaps", {"metadata": {"name": "n"}, "data": {"n": "0"}})

            async def increment(room: Room) -> None:
                for _ in range(10):
                    await room.patch(
                        "configmaps", "n", lambda obj: {**obj, "data": {"n": str(int(obj["data"]["n"]) + 1)}}
                    )

            await asyncio.gather(increment(one), increment(two))
            assert (await one.get("configmaps", "n")).obj["data"]["n"] == "20"
        await storage.close()

    asyncio.run(scenario())


def test_a_registry_over_the_embedded_store_finds_everything_again_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        storage = SqliteStorage(tmp_path / "state.db", SystemClock())
        await storage.open()
        async with open_room(storage) as room:
            await room.create("namespaces", {"metadata": {"name": "default"}})
            await room.watch("secrets")
            await asyncio.gather(*(room.create("secrets", secret(f"s{index}")) for index in range(9)))
            await room.delete("secrets", "s4")
            assert room.seen[9:] == ["DELETED s4"]
            before = [item.raw for item in (await room.list("secrets")).items]
        await storage.close()
        again = SqliteStorage(tmp_path / "state.db", SystemClock())
        await again.open()
        async with open_room(again) as room:
            assert [item.raw for item in (await room.list("secrets")).items] == before
            assert len(before) == 8
        await again.close()

    asyncio.run(scenario())


# -- what others put into the store ---------------------------------------------------------------------------------


@in_room
async def test_bytes_of_another_writer_are_taken_over_in_our_shape(room: Room) -> None:
    value = b'{"metadata":{"name":"a","namespace":"default"}, "data":{}, "apiVersion":"v1","kind":"Secret"}'
    await room.storage.create("/registry/secrets/default/a", value)
    stored = await room.get("secrets", "a")
    start = b'{"kind":"Secret","apiVersion":"v1","metadata":{"resourceVersion":"%d","name":"a"'
    assert stored.raw.startswith(start % stored.revision)
    assert stored.obj["data"] == {}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"junk",
        b"[]",
        b'{"metadata":{}}',
        b'{"kind":"Secret","apiVersion":"v1"}',
        b'{"kind":"Secret","apiVersion":"v2","metadata":{"name":"a"}}',
        b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","namespace":"default"},"data":{"a":tru}}',
        b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","namespace":"default"},"data":{"a":"\xff"}}',
        b"k8s\0binary",
    ],
)
@in_room
async def test_bytes_that_are_no_object_cannot_be_read_and_stop_nothing(
    room: Room, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await room.create("secrets", secret("b"))
    await room.watch("secrets")
    await room.create("secrets", secret("c"))
    await room.storage.create("/registry/secrets/default/a", value)
    entry = await room.storage.get("/registry/secrets/default/b")
    assert entry is not None
    await room.storage.update(entry.key, value, expected=entry.revision)
    await settle()
    with pytest.raises(InternalServerError, match="a stored object of secrets cannot be read"):
        await room.names("secrets")
    assert (await room.get("secrets", "c")).name == "c"
    view = room.registry.views["secrets"]
    assert [obj["metadata"]["name"] for obj in view.list()] == ["c"]
    assert set(view.unreadable()) == {("default", "a"), ("default", "b")}
    assert room.seen == ["ADDED b", "ADDED c"]
    assert "a stored object of secrets cannot be read" in caplog.text
    assert value not in caplog.text.encode() or not value
    caplog.clear()


@pytest.mark.parametrize("key", ["/registry/widgets/a", "/registry/secrets", "/registry/x/y/z/w", "/registry/nodes/a"])
@in_room
async def test_keys_of_kinds_not_served_are_passed_over(room: Room, key: str) -> None:
    await room.storage.create(key, b'{"kind":"X"}')
    await room.create("secrets", secret("a"))
    assert room.registry.cache.revision == await room.storage.revision()
    assert await room.names("nodes") == []


def test_a_broken_object_with_the_right_beginning_cannot_be_read() -> None:
    async def scenario() -> None:
        async with open_room() as room:
            await room.storage.create(
                "/registry/secrets/default/a", b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"'
            )
            with pytest.raises(InternalServerError, match="not valid JSON"):
                await room.get("secrets", "a")

    asyncio.run(scenario())


@in_room
async def test_waiting_for_revisions_that_never_come_leaves_nothing_behind(room: Room) -> None:
    cache = room.registry.cache
    calls = [asyncio.ensure_future(cache.reach_within(10**9 + index, 3.0)) for index in range(10)]
    await room.settle()
    assert cache.waiting == 10
    await room.clock.advance(3)
    assert await asyncio.gather(*calls) == [False] * 10
    assert cache.waiting == 0
    assert room.clock.sleepers == 0


@in_room
async def test_stop_releases_who_waits_and_may_be_called_twice(room: Room) -> None:
    waiting = asyncio.ensure_future(room.registry.cache.reach(10**9))
    await room.settle()
    await room.registry.stop()
    assert await waiting is False
    await room.registry.stop()


@in_room
async def test_views_are_a_mapping_of_every_stored_kind_and_no_other(room: Room) -> None:
    views = room.registry.views
    assert set(views) == {kind.resource.plural for kind in KINDS if not kind.virtual}
    assert len(views) == len(set(views))
    assert "tokenreviews" not in views
    assert [obj["metadata"]["name"] for obj in views["namespaces"].list()] == sorted(NAMESPACES)
    assert views["namespaces"].get("default") is (await room.get("namespaces", "default")).obj
    assert views["secrets"].revision == 0


@in_room
async def test_a_change_told_twice_counts_once(room: Room) -> None:
    stored = await room.create("secrets", secret("a"))
    await room.watch("secrets", resourceVersion=stored.revision)
    room.registry.cache.apply([StoredChange(stored.key, stored.revision, None)])
    assert room.seen == []
    assert await room.get("secrets", "a") is stored


@in_room
@pytest.mark.parametrize(
    ("size", "kept"), [pytest.param(10, True, id="a small one"), pytest.param(LONG_BYTES, False, id="a large one")]
)
async def test_the_decoded_form_of_a_large_state_goes_with_it(room: Room, size: int, kept: bool) -> None:
    before = await room.create("secrets", secret("a", data={"x": "A" * 4 * size}))
    decoded = before.obj
    await room.update(
        "secrets", {**decoded, "type": "Opaque", "metadata": {**decoded["metadata"], "labels": {"a": "b"}}}
    )
    assert (before.obj is decoded) is kept
    assert before.obj == decoded


@in_room
async def test_fresh_waits_for_writes_of_others(room: Room) -> None:
    assert await room.registry.reader.fresh()
    await room.storage.create(
        "/registry/secrets/default/a",
        b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","namespace":"default"}}',
    )
    assert await room.registry.reader.fresh()
    assert room.registry.views["secrets"].get("a", "default") is not None
    await room.registry.stop()
    await room.storage.create(
        "/registry/secrets/default/b",
        b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"b","namespace":"default"}}',
    )
    assert not await room.registry.reader.fresh()


@in_room
async def test_fresh_does_not_wait_in_vain_when_the_newest_revision_is_of_a_key_outside_of_the_registry(
    room: Room,
) -> None:
    entry = await room.storage.create("/mooring/anything", b"")
    assert await room.registry.reader.fresh()
    assert room.registry.cache.revision == entry.revision


@in_room
async def test_of_several_changes_in_one_revision_none_is_lost(room: Room) -> None:
    await room.watch("secrets")
    stored = [await room.create("secrets", secret(name)) for name in ("a", "b")]
    room.seen.clear()
    gone = room.registry.cache.revision + 1
    room.registry.cache.apply([StoredChange(one.key, gone, None) for one in stored])
    assert room.registry.views["secrets"].list() == []
    assert room.seen == ["DELETED a", "DELETED b"]


@in_room
async def test_a_view_tells_what_changed_since_a_revision_as_far_as_it_remembers(room: Room) -> None:
    view = room.registry.views["secrets"]
    await room.create("secrets", secret("a"))
    start = view.revision
    assert list(view.changed(start) or ()) == []
    await room.create("secrets", secret("b"))
    await room.patch("secrets", "b", {"metadata": {"labels": {"x": "y"}}})
    await room.delete("secrets", "a")
    assert set(view.changed(start) or ()) == {("default", "a"), ("default", "b")}
    cache = room.registry.cache.kinds["secrets"]
    cache.window.restart(view.revision)
    assert view.changed(start) is None


@in_room
async def test_what_this_process_wrote_is_not_decoded_to_see_whether_it_is_whole(room: Room) -> None:
    looked_at = []
    rewritten = events.normalize

    def count(kind: Kind, value: bytes) -> tuple[bytes, bool]:
        looked_at.append(value)
        return rewritten(kind, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "normalize", count)
        node = await room.create("nodes", {"metadata": {"name": "a"}})
        await room.update("nodes", {**node.obj, "spec": {**node.obj["spec"], "podCIDR": "10.0.0.0/24"}})
        await room.delete("nodes", "a")
        assert looked_at == []
        lacking = encoded(kind("nodes").resource, {"metadata": {"name": "b", "uid": "u"}})
        await room.storage.create("/registry/minions/b", lacking)
        await room.registry.reader.fresh()
    assert looked_at == [lacking], "another writer's object"
    seen = await room.get("nodes", "b")
    assert seen.obj["status"]["nodeInfo"]["kubeletVersion"] == ""
    with pytest.raises(AlreadyExistsError):
        await room.create("nodes", {"metadata": {"name": "b"}})
    assert room.registry.cache.pending_writes == 0, "nothing is kept of writes that failed"
