"""One suite for every driver, continued: watches (rule 6) and compaction (rule 8)."""

from __future__ import annotations

import asyncio

import pytest

from mooring.storage.contract import CompactedError, Entry, FutureRevisionError, Page, Storage, StoredChange
from mooring.storage.etcd.driver import EtcdStorage
from tests.support.storagedrivers import Run, closing, keys, take

# ---- rule 6: watch


def test_a_watch_yields_creation_update_and_deletion(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        async with closing(store.watch("/", after=1)) as watch:
            created = await store.create("/a", b"1")
            updated = await store.update("/a", b"2", expected=2)
            await store.delete("/a", expected=3)
            recreated = await store.create("/a", b"3")
            assert await take(watch, 4) == [
                StoredChange("/a", 2, created),
                StoredChange("/a", 3, updated),
                StoredChange("/a", 4, None),
                StoredChange("/a", 5, recreated),
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


def test_a_watch_tells_its_progress_when_the_newest_revisions_belong_to_other_keys(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a/1", b"")
        async with closing(store.watch("/a/", after=1)) as watch:
            assert [change.key for change in await take(watch, 1)] == ["/a/1"]
            await store.create("/b/1", b"")
            newest = await store.revision()
            (progress,) = await asyncio.wait_for(anext(watch), 10)
            assert (progress.is_progress, progress.revision) == (True, newest)
        async with closing(store.watch("/c/", after=1)) as watch:
            (progress,) = await asyncio.wait_for(anext(watch), 10)
            assert (progress.is_progress, progress.revision) == (True, newest)

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
        if isinstance(store, EtcdStorage):
            pytest.skip("etcd sends answers and changes over separate streams; the registry waits for its own writes")
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

        async def follow(after: int, seen: list[int]) -> None:
            async for batch in store.watch("/", after=after):
                seen += [change.revision for change in batch]

        busy: list[int] = []
        idle: list[int] = []
        watches = [asyncio.create_task(follow(1, busy)), asyncio.create_task(follow(50, idle))]
        await asyncio.sleep(0)
        await store.create("/a", b"")
        async with asyncio.timeout(10):
            while not busy:
                await asyncio.sleep(0.001)
        await store.close()
        await asyncio.wait_for(asyncio.gather(*watches), 10)
        assert (busy, idle) == ([2], [])

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
            assert await take(watch, 1) == [StoredChange("/a", gone + 1, entry)]
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
    monkeypatch.setattr("mooring.storage.sqlite.connection.SWEEP_REVISIONS", 7)

    async def scenario(store: Storage) -> None:
        entry = await store.create("/a", b"")
        for n in range(150):
            entry = await store.update("/a", b"%d" % n, expected=entry.revision)
        compaction = asyncio.create_task(store.compact(100))
        created = await asyncio.gather(*(store.create(f"/x{n}", b"") for n in range(50)))
        await compaction
        revisions = sorted({item.revision for item in created})
        assert (entry.revision, len(revisions)) == (152, 50)
        assert revisions[0] > entry.revision  # on etcd the compaction takes a revision, too
        assert await store.get("/a") == entry
        assert await store.get("/a", revision=100) == Entry("/a", b"97", 100, 2)
        async with closing(store.watch("", after=100)) as watch:
            assert [change.revision for change in await take(watch, 102)] == [*range(101, 153), *revisions]

    run(scenario)


# ---- rule 10: advance


def test_after_an_advance_every_write_has_a_greater_revision(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", b"1")
        await store.advance(5_000_000_000)
        newest = await store.revision()
        assert newest >= 5_000_000_000
        page = await store.range("")
        assert (keys(page), page.revision) == (["/a"], newest)
        created = await store.create("/b", b"1")
        assert created == Entry("/b", b"1", newest + 1, newest + 1)
        assert await store.get("/b", revision=newest) is None
        kept = await store.get("/a")
        assert kept is not None
        updated = await store.update("/a", b"2", expected=kept.revision)
        assert updated.revision == newest + 2
        async with closing(store.watch("", after=newest)) as watch:
            assert [change.revision for change in await take(watch, 2)] == [newest + 1, newest + 2]
        await store.compact(newest + 2)
        assert (await store.range("", revision=newest + 2)).entries == (updated, created)

    run(scenario)


def test_after_an_advance_older_revisions_are_compacted(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", b"1")
        async with closing(store.watch("", after=2)) as early:
            waiting = asyncio.ensure_future(take(early, 1))
            await asyncio.sleep(0)
            await store.advance(1000)
            with pytest.raises(CompactedError):
                await waiting
        for revision in (1, 2, 999):
            async with closing(store.watch("", after=revision)) as watch:
                with pytest.raises(CompactedError):
                    await take(watch, 1)
            with pytest.raises(CompactedError):
                await store.range("", revision=revision)
        assert await store.compacted() >= 1000

    run(scenario)


def test_an_advance_to_a_revision_that_is_reached_only_compacts(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        for n in range(5):
            await store.create(f"/{n}", b"")
        await store.advance(4)
        assert (await store.revision(), await store.compacted()) == (6, 4)
        await store.advance(100)
        newest = await store.revision()
        await store.advance(100)
        assert await store.revision() == newest
        assert (await store.create("/b", b"")).revision == newest + 1

    run(scenario)


def test_entries_beyond_the_limit_are_counted_only_on_demand(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        for n in range(5):
            await store.create(f"/{n}", b"")
        for revision in (0, 4):
            page = await store.range("", limit=2, revision=revision, counted=False)
            assert (keys(page), page.more, page.remaining) == (["/0", "/1"], True, 0)

    run(scenario)
