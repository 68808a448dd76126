"""One suite for every driver, continued: watches (rule 6) and compaction (rule 8)."""

from __future__ import annotations

import asyncio

import pytest

from mooring.storage.contract import Change, CompactedError, Entry, FutureRevisionError, Page, Storage
from tests.support.storagedrivers import Run, closing, keys, take

# ---- rule 6: watch


def test_a_watch_yields_creation_update_and_deletion_with_the_previous_entry(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        async with closing(store.watch("/", after=1)) as watch:
            created = await store.create("/a", b"1")
            updated = await store.update("/a", b"2", expected=2)
            await store.delete("/a", expected=3)
            recreated = await store.create("/a", b"3")
            assert await take(watch, 4) == [
                Change("/a", 2, created, None),
                Change("/a", 3, updated, created),
                Change("/a", 4, None, updated),
                Change("/a", 5, recreated, None),
            ]

    run(scenario)


def test_a_watch_from_the_past_gives_the_same_as_one_that_was_there(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        async with closing(store.watch("/", after=1)) as present:
            waiting = asyncio.create_task(take(present, 6))
            for n in range(3):
                await store.create(f"/{n}", b"1")
            await store.update("/1", b"2", expected=3)
            await store.delete("/0", expected=2)
            await store.create("/0", b"3")
            told = await waiting
        for after in range(7):
            async with closing(store.watch("/", after=after)) as watch:
                wanted = [change for change in told if change.revision > after]
                if wanted:
                    assert await take(watch, len(wanted)) == wanted

    run(scenario)


def test_a_watch_yields_only_its_prefix_and_continues_after_other_keys(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        async with closing(store.watch("/a/", after=1)) as watch:
            first = asyncio.create_task(take(watch, 1))
            await asyncio.sleep(0)
            for name in ("/b/1", "/a", "/a/1"):
                await store.create(name, b"")
            assert [change.key for change in await first] == ["/a/1"]
            for n in range(200):
                await store.create(f"/b/x{n}", b"")
            await store.create("/a/2", b"")
            assert [change.key for change in await take(watch, 1)] == ["/a/2"]

    run(scenario)


def test_a_watch_after_a_future_revision_begins_there(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        async with closing(store.watch("/", after=3)) as watch:
            waiting = asyncio.create_task(take(watch, 1))
            await asyncio.sleep(0)
            for n in range(3):
                await store.create(f"/{n}", b"")
            assert [change.revision for change in await waiting] == [4]

    run(scenario)


def test_many_watches_and_many_writers_agree_on_one_order(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        total = 600

        async def follow(after: int) -> list[int]:
            seen: list[int] = []
            async with closing(store.watch("/", after=after)) as watch:
                async for batch in watch:
                    seen += [change.revision for change in batch]
                    await asyncio.sleep(0)
                    if seen[-1] == total + 1:
                        break
            return seen

        early = [asyncio.create_task(follow(1)) for _ in range(3)]
        await asyncio.gather(*(store.create(f"/{n}", b"v") for n in range(total // 2)))
        late = [asyncio.create_task(follow(1)) for _ in range(3)]
        await asyncio.gather(*(store.create(f"/{n}", b"v") for n in range(total // 2, total)))
        for seen in await asyncio.gather(*early, *late):
            assert seen == list(range(2, total + 2))

    run(scenario)


def test_a_watch_at_the_tip_gets_a_change_before_the_writer_continues(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        told: list[int] = []

        async def follow() -> None:
            async with closing(store.watch("/", after=1)) as watch:
                async for batch in watch:
                    told.extend(change.revision for change in batch)

        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        for n in range(20):
            entry = await store.create(f"/{n}", b"")
            assert told[-1] == entry.revision
        task.cancel()

    run(scenario)


def test_a_slow_watch_holds_little_and_still_misses_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.feed.MAX_PENDING_CHANGES", 10)

    async def scenario(store: Storage) -> None:
        async with closing(store.watch("/", after=1)) as watch:
            waiting = asyncio.create_task(take(watch, 1))
            await asyncio.sleep(0)
            await store.create("/first", b"")
            await waiting
            await asyncio.gather(*(store.create(f"/{n}", b"") for n in range(300)))
            assert [change.revision for change in await take(watch, 300)] == list(range(3, 303))
            await store.create("/last", b"")
            assert [change.key for change in await take(watch, 1)] == ["/last"]

    run(scenario)


def test_closing_the_store_ends_its_watches(store: Storage) -> None:
    async def scenario() -> None:
        await store.open()

        async def follow(after: int) -> list[int]:
            return [change.revision async for batch in store.watch("/", after=after) for change in batch]

        waiting = asyncio.create_task(follow(1))
        idle = asyncio.create_task(follow(50))
        await asyncio.sleep(0)
        await store.create("/a", b"")
        await store.close()
        assert await asyncio.wait_for(waiting, 10) == [2]
        assert await asyncio.wait_for(idle, 10) == []

    asyncio.run(scenario())


# ---- rule 8: compaction


def test_compaction_forgets_the_past_and_keeps_the_present(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", b"1")
        await store.create("/b", b"1")
        await store.update("/a", b"2", expected=2)
        await store.delete("/b", expected=3)
        await store.update("/a", b"3", expected=4)
        await store.compact(5)
        assert await store.compacted() == 5
        assert await store.revision() == 6
        assert await store.get("/a") == Entry("/a", b"3", 6, 2)
        assert await store.get("/b") is None
        assert await store.range("/", revision=5) == Page((Entry("/a", b"2", 4, 2),), 5)
        for call in (store.get("/a", revision=4), store.range("/", revision=4)):
            with pytest.raises(CompactedError) as caught:
                await call
            assert caught.value.oldest == 5

    run(scenario)


def test_a_watch_from_a_compacted_revision_raises(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        for n in range(5):
            await store.create(f"/{n}", b"")
        await store.compact(4)
        for after in (0, 1, 3):
            with pytest.raises(CompactedError) as caught:
                await take(store.watch("/", after=after), 1)
            assert caught.value.oldest == 4
        async with closing(store.watch("/", after=4)) as watch:
            assert [change.revision for change in await take(watch, 2)] == [5, 6]

    run(scenario)


def test_a_watch_too_slow_for_compaction_raises(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.feed.MAX_PENDING_CHANGES", 5)

    async def scenario(store: Storage) -> None:
        async with closing(store.watch("/", after=1)) as watch:
            await store.create("/0", b"")
            await take(watch, 1)
            for n in range(1, 20):
                await store.create(f"/{n}", b"")
            await store.compact(15)
            with pytest.raises(CompactedError):
                await take(watch, 1)

    run(scenario)


def test_compacting_up_to_a_deletion_that_is_the_newest_write_keeps_the_revision(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", b"1")
        gone = await store.delete("/a", expected=2)
        await store.compact(gone)
        assert await store.revision() == gone
        assert await store.range("") == Page((), gone)
        entry = await store.create("/a", b"2")
        assert entry == Entry("/a", b"2", gone + 1, gone + 1)
        async with closing(store.watch("", after=gone)) as watch:
            assert await take(watch, 1) == [Change("/a", gone + 1, entry, None)]
        await store.compact(gone + 1)
        assert await store.range("") == Page((entry,), gone + 1)

    run(scenario)


def test_compacting_twice_or_backwards_changes_nothing_and_beyond_the_newest_is_refused(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", b"1")
        await store.create("/b", b"1")
        await store.compact(2)
        await store.compact(2)
        await store.compact(1)
        assert await store.compacted() == 2
        with pytest.raises(FutureRevisionError) as caught:
            await store.compact(4)
        assert caught.value.current == 3
        assert await store.compacted() == 2
        assert keys(await store.range("", revision=2)) == ["/a"]

    run(scenario)


def test_writes_go_on_while_a_long_history_is_compacted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.sqlite.writer.SWEEP_REVISIONS", 7)

    async def scenario(store: Storage) -> None:
        entry = await store.create("/a", b"")
        for n in range(150):
            entry = await store.update("/a", b"%d" % n, expected=entry.revision)
        compaction = asyncio.create_task(store.compact(100))
        created = await asyncio.gather(*(store.create(f"/x{n}", b"") for n in range(50)))
        await compaction
        assert [item.revision for item in created] == list(range(153, 203))
        assert await store.get("/a") == entry
        assert await store.get("/a", revision=100) == Entry("/a", b"97", 100, 2)
        async with closing(store.watch("", after=100)) as watch:
            assert [change.revision for change in await take(watch, 102)] == list(range(101, 203))

    run(scenario)
