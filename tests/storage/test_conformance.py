"""One suite for every driver: each numbered rule of `mooring.storage.contract`, as sentences; here writes, reads, life.

Watches and compaction are in `test_conformance_watch.py`. What only an engine with a file can show (durability, several processes,
broken disks) is in `test_crash_live.py`, `test_processes_live.py` and `test_sqlite_faults.py`; that any sequence of calls agrees
with the reference driver is in `test_agreement.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from mooring.errors import StorageError
from mooring.storage.contract import Entry, FutureRevisionError, KeyExistsError, Page, RevisionMismatchError, Storage
from mooring.storage.drivers import DRIVERS
from tests.support.storagedrivers import MAKERS, Run, closing, keys, take


def test_every_driver_of_the_table_is_in_this_suite() -> None:
    assert set(MAKERS) == {*DRIVERS, "encrypted"}


# ---- rule 1: one global, ever-increasing revision


def test_a_fresh_store_is_at_revision_one_and_knows_that_empty_state(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        assert await store.revision() == 1
        assert await store.compacted() == 1
        assert await store.range("") == Page((), 1)
        assert await store.range("", revision=1) == Page((), 1)

    run(scenario)


def test_each_write_takes_exactly_one_revision_and_refusals_take_none(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        assert (await store.create("/a", b"1")).revision == 2
        with pytest.raises(KeyExistsError):
            await store.create("/a", b"2")
        with pytest.raises(RevisionMismatchError):
            await store.update("/a", b"2", expected=1)
        with pytest.raises(RevisionMismatchError):
            await store.delete("/b", expected=1)
        await store.get("/a")
        assert await store.revision() == 2
        assert (await store.update("/a", b"2", expected=2)).revision == 3
        assert await store.delete("/a", expected=3) == 4
        assert await store.revision() == 4

    run(scenario)


def test_concurrent_writes_get_all_revisions_without_gap_or_repetition(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        entries = await asyncio.gather(*(store.create(f"/{n}", b"") for n in range(500)))
        assert sorted(entry.revision for entry in entries) == list(range(2, 502))
        assert await store.revision() == 501

    run(scenario)


# ---- rule 3: compare and swap


def test_create_returns_the_entry_and_get_gives_it_back(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        entry = await store.create("/a", b"value")
        assert entry == Entry("/a", b"value", 2, 2)
        assert await store.get("/a") == entry
        assert await store.get("/a/") is None
        assert await store.get("/") is None

    run(scenario)


def test_create_of_a_present_key_fails_and_carries_the_current_entry(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        entry = await store.create("/a", b"1")
        with pytest.raises(KeyExistsError) as caught:
            await store.create("/a", b"2")
        assert caught.value.current == entry
        assert await store.get("/a") == entry

    run(scenario)


def test_update_keeps_the_revision_of_creation(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", b"1")
        await store.create("/b", b"1")
        assert await store.update("/a", b"2", expected=2) == Entry("/a", b"2", 4, 2)
        assert await store.get("/a") == Entry("/a", b"2", 4, 2)

    run(scenario)


@pytest.mark.parametrize("expected", [0, 1, 3, 99], ids=lambda n: f"expecting revision {n} of an entry at 2")
def test_update_and_delete_need_the_current_revision_and_carry_the_current_entry(run: Run, expected: int) -> None:
    async def scenario(store: Storage) -> None:
        entry = await store.create("/a", b"1")
        with pytest.raises(RevisionMismatchError) as caught:
            await store.update("/a", b"2", expected=expected)
        assert caught.value.current == entry
        with pytest.raises(RevisionMismatchError) as caught:
            await store.delete("/a", expected=expected)
        assert caught.value.current == entry
        assert await store.range("") == Page((entry,), 2)

    run(scenario)


def test_update_and_delete_of_an_absent_or_deleted_key_carry_no_entry(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", b"1")
        gone = await store.delete("/a", expected=2)
        for key, expected in (("/never", 0), ("/a", 2), ("/a", gone)):
            with pytest.raises(RevisionMismatchError) as caught:
                await store.update(key, b"2", expected=expected)
            assert caught.value.current is None
            with pytest.raises(RevisionMismatchError) as caught:
                await store.delete(key, expected=expected)
            assert caught.value.current is None

    run(scenario)


def test_a_deleted_key_can_be_created_again_and_is_then_new(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", b"1")
        await store.delete("/a", expected=2)
        assert await store.get("/a") is None
        assert await store.create("/a", b"2") == Entry("/a", b"2", 4, 4)

    run(scenario)


def test_of_writes_racing_for_one_key_exactly_one_wins(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        outcomes = await asyncio.gather(*(store.create("/a", b"%d" % n) for n in range(50)), return_exceptions=True)
        (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Entry)]
        losers = [outcome for outcome in outcomes if isinstance(outcome, KeyExistsError)]
        assert [loser.current for loser in losers] == [winner] * 49
        updates = await asyncio.gather(
            *(store.update("/a", b"%d" % n, expected=winner.revision) for n in range(50)), return_exceptions=True
        )
        assert sum(isinstance(outcome, Entry) for outcome in updates) == 1
        assert await store.revision() == 3

    run(scenario)


VALUES = {"empty": b"", "zero bytes": b"\0\0", "not text": bytes(range(256)), "large": b"x" * 3_000_000}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_are_opaque_bytes(run: Run, value: bytes) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", value)
        assert await store.get("/a") == Entry("/a", value, 2, 2)
        await store.update("/a", b"other", expected=2)
        assert await store.get("/a", revision=2) == Entry("/a", value, 2, 2)
        async with closing(store.watch("/", after=1)) as watch:
            created, updated = await take(watch, 2)
        assert updated.revision == 3
        assert created.entry == Entry("/a", value, 2, 2)

    run(scenario)


@pytest.mark.parametrize("key", ["", "/\ud800"], ids=["an empty key", "a key that is no Unicode text"])
def test_what_cannot_be_a_key_is_refused_without_being_repeated(run: Run, key: str) -> None:
    async def scenario(store: Storage) -> None:
        for call in (
            store.get(key),
            store.create(key, b""),
            store.update(key, b"", expected=1),
            store.delete(key, expected=1),
        ):
            with pytest.raises(StorageError, match="a key must") as caught:
                await call
            assert caught.value.__cause__ is None
        assert await store.revision() == 1

    run(scenario)


# ---- rule 4: reads, linearizable or of one revision; rule 5: order; limits


def test_get_and_range_at_a_revision_see_exactly_that_state(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        first = await store.create("/a", b"1")
        second = await store.update("/a", b"2", expected=2)
        other = await store.create("/b", b"1")
        await store.delete("/a", expected=3)
        again = await store.create("/a", b"3")
        states: dict[int, tuple[Entry, ...]] = {
            1: (),
            2: (first,),
            3: (second,),
            4: (second, other),
            5: (other,),
            6: (again, other),
        }
        for revision, state in states.items():
            assert await store.range("/", revision=revision) == Page(state, revision)
            for key in ("/a", "/b", "/c"):
                expected = next((entry for entry in state if entry.key == key), None)
                assert await store.get(key, revision=revision) == expected
        assert await store.range("/") == Page(states[6], 6)

    run(scenario)


def test_reading_at_a_future_revision_raises_with_the_newest_one(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        await store.create("/a", b"1")
        for call in (store.get("/a", revision=3), store.range("/", revision=3)):
            with pytest.raises(FutureRevisionError) as caught:
                await call
            assert caught.value.current == 2

    run(scenario)


def test_keys_are_ordered_by_their_utf8_bytes(run: Run) -> None:
    names = [
        "/a",
        "/a/b",
        "/a-b",
        "/a\0",
        "/Z",
        "/é",
        "/\uffff",
        "/\ue000",
        "/\U00010000",
        "/\U0010ffff",
        "/z",
        "/a/\u0301",
        "/ß",
    ]

    async def scenario(store: Storage) -> None:
        for name in names:
            await store.create(name, b"")
        assert keys(await store.range("/")) == sorted(names, key=str.encode)
        assert keys(await store.range("/", revision=await store.revision() - 1)) == sorted(names[:-1], key=str.encode)

    run(scenario)


PREFIXES = ["", "/", "/a", "/a/", "/a/b", "/a0", "/b", "/\ud7ff", "/\U0010ffff", "\U0010ffff", "\U0010ffff\U0010ffff"]


@pytest.mark.parametrize("prefix", PREFIXES, ids=lambda text: f"prefix {text!a}")
def test_a_range_holds_exactly_the_keys_with_the_prefix(run: Run, prefix: str) -> None:
    names = [
        "/a", "/a/", "/a/b", "/a/b/c", "/a0", "/ab", "/b", "/\ud7ff", "/\ud7ffx", "/\ue000", "/\U0010ffff", "/\U0010ffffx",
        "0", "\U0010ffff", "\U0010ffffx", "\U0010ffff\U0010ffff", "\U0010ffff\U0010ffffx",
    ]  # fmt: skip

    async def scenario(store: Storage) -> None:
        for name in names:
            await store.create(name, b"")
        wanted = sorted(name for name in names if name.startswith(prefix))
        assert keys(await store.range(prefix)) == wanted
        await store.create("zzz", b"")
        assert keys(await store.range(prefix, revision=1 + len(names))) == wanted

    run(scenario)


@pytest.mark.parametrize("at_revision", [False, True], ids=["now", "at a revision of the past"])
def test_pages_cut_by_a_limit_join_into_the_whole_and_count_what_remains(run: Run, at_revision: bool) -> None:
    async def scenario(store: Storage) -> None:
        for n in range(25):
            await store.create(f"/x/{n:02}", b"%d" % n)
        await store.create("/y", b"")
        revision = 0
        if at_revision:
            revision = await store.revision()
            for n in range(0, 25, 3):
                await store.delete(f"/x/{n:02}", expected=n + 2)
            await store.update("/x/01", b"later", expected=3)
            await store.create("/x/30", b"")
        found: list[Entry] = []
        after = ""
        while True:
            page = await store.range("/x/", after=after, limit=10, revision=revision)
            found += page.entries
            assert page.remaining == 25 - len(found)
            assert page.more == (page.remaining > 0)
            assert page.revision == (revision or 27)
            if not page.more:
                break
            after = page.entries[-1].key
        assert found == [Entry(f"/x/{n:02}", b"%d" % n, n + 2, n + 2) for n in range(25)]
        exact = await store.range("/x/", limit=25, revision=revision)
        assert (len(exact.entries), exact.more, exact.remaining) == (25, False, 0)

    run(scenario)


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ("", ["/b", "/b/1", "/b/2"]),
        ("/a", ["/b", "/b/1", "/b/2"]),
        ("/b", ["/b/1", "/b/2"]),
        ("/b/1", ["/b/2"]),
        ("/c", []),
    ],
)
def test_after_is_exclusive_and_may_lie_outside_the_prefix(run: Run, after: str, wanted: list[str]) -> None:
    async def scenario(store: Storage) -> None:
        for name in ("/a", "/b", "/b/1", "/b/2", "/c"):
            await store.create(name, b"")
        assert keys(await store.range("/b", after=after)) == wanted

    run(scenario)


# ---- rule 7: revision()


def test_revision_has_every_acknowledged_write(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        for n in range(50):
            entry = await store.create(f"/{n}", b"")
            assert await store.revision() == entry.revision

    run(scenario)


# ---- life


def test_a_closed_store_raises_and_may_be_closed_twice(store: Storage) -> None:
    async def scenario() -> None:
        await store.close()
        await store.open()
        await store.open()
        await store.create("/a", b"")
        await store.close()
        await store.close()
        calls: list[Awaitable[object]] = [
            store.get("/a"), store.range("/"), store.create("/b", b""), store.update("/a", b"", expected=2),
            store.delete("/a", expected=2), store.revision(), store.compacted(), store.compact(1),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(StorageError, match="closed"):
                await call
        with pytest.raises(StorageError, match="closed"):
            await anext(store.watch("/", after=1))

    asyncio.run(scenario())


def test_closing_finishes_the_writes_under_way(store: Storage) -> None:
    async def scenario() -> None:
        await store.open()
        writes = [asyncio.create_task(store.create(f"/{n}", b"")) for n in range(300)]
        await asyncio.sleep(0)
        await store.close()
        assert sorted(entry.revision for entry in await asyncio.gather(*writes)) == list(range(2, 302))
        await store.open()
        assert await store.revision() == 301
        assert len((await store.range("/")).entries) == 300
        await store.close()

    asyncio.run(scenario())


def test_a_write_cancelled_by_its_caller_is_whole_or_absent_and_affects_no_other(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        given_up = [asyncio.create_task(store.create(f"/gone/{n}", b"v")) for n in range(20)]
        kept = [asyncio.create_task(store.create(f"/kept/{n}", b"v")) for n in range(20)]
        await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        await asyncio.gather(*kept)
        assert len((await store.range("/kept/")).entries) == 20
        assert await store.revision() == 1 + len((await store.range("")).entries)

    run(scenario)


def test_verification_of_a_sound_store_finds_nothing_and_changes_nothing(run: Run) -> None:
    async def scenario(store: Storage) -> None:
        created = await store.create("/a", b"v")
        for _ in range(5):
            await store.verify()
        assert (store.counters.damaged, store.counters.checkpoint_failures) == (0, 0)
        assert (store.problem, store.alarm, store.refuses_writes, store.failed.is_set()) == ("", "", False, False)
        assert await store.get("/a") == created

    run(scenario)


def test_a_closed_store_is_not_verified(store: Storage) -> None:
    async def scenario() -> None:
        await store.open()
        await store.close()
        with pytest.raises(StorageError, match="closed"):
            await store.verify()

    asyncio.run(scenario())
