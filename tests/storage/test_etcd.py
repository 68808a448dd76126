"""The etcd driver alone, on the shared member: sharing of round trips, other prefixes, leases, compaction, words of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mooring.clock import SystemClock
from mooring.errors import StorageError
from mooring.settings.storage import StorageSettings
from mooring.storage.contract import CompactedError, Entry
from mooring.storage.etcd import messages, watching
from mooring.storage.etcd.driver import EtcdStorage
from mooring.storage.etcd.keyspace import Keyspace
from mooring.storage.etcd.watching import tells_progress
from mooring.storage.keyspace import RESTORES
from mooring.storage.restores import read_restores
from tests.support import etcd
from tests.support.storagedrivers import closing, open_etcd, take

pytestmark = pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING)


def on_etcd(test: Callable[[EtcdStorage], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on a store of its own in the shared member."""

    def run() -> None:
        async def whole() -> None:
            store = open_etcd(etcd.shared(), etcd.fresh_prefix())
            await store.open()
            try:
                await asyncio.wait_for(test(store), 30)
            finally:
                await store.close()

        asyncio.run(whole())

    run.__name__ = test.__name__
    return run


@on_etcd
async def test_callers_that_wait_for_the_revision_share_round_trips_that_begin_after_they_asked(
    store: EtcdStorage,
) -> None:
    began: list[int] = []
    real = store._connection.call

    async def call(method: str, *rest: Any, **more: Any) -> Any:
        began.append(len(asked))
        return await real(method, *rest, **more)

    store._connection.call = call  # type: ignore[method-assign] # counts the round trips
    asked: list[int] = []

    async def ask(n: int) -> None:
        asked.append(n)
        await store.revision()

    await asyncio.gather(*(ask(n) for n in range(50)))
    assert began == [50]
    first = asyncio.create_task(ask(50))
    while len(began) < 2:
        await asyncio.sleep(0)
    await asyncio.gather(first, *(ask(n) for n in range(51, 60)))  # the trip of the first is under way
    assert began == [50, 51, 60]


@on_etcd
async def test_a_caller_that_gives_up_takes_no_answer_from_the_others(store: EtcdStorage) -> None:
    tasks = [asyncio.create_task(store.revision()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert [await task for task in tasks[1:]] == [1, 1]


@on_etcd
async def test_a_key_with_a_ttl_goes_with_its_lease_and_many_share_one(store: EtcdStorage) -> None:
    for n in range(3):
        await store.create(f"/registry/events/{n}", b"", ttl=3600)
    await store.create("/registry/events/other", b"", ttl=60)
    leases = etcd.shared().control("lease", "list").split()[3:]
    mine = [lease for lease in leases if f"{store._keys._front}/registry/events" in _keys_of(lease)]
    assert len(mine) == 2
    async with closing(store.watch("/registry/events/", after=await store.revision())) as watch:
        for lease in mine:
            etcd.shared().control("lease", "revoke", lease)
        gone = await take(watch, 4)
    assert {change.entry for change in gone} == {None}
    assert len({change.revision for change in gone}) == 2
    await store.create("/registry/events/again", b"", ttl=60)


def _keys_of(lease: str) -> str:
    return etcd.shared().control("lease", "timetolive", lease, "--keys")


@on_etcd
async def test_of_several_servers_one_compacts_in_each_interval(store: EtcdStorage) -> None:
    other = EtcdStorage(store._servers, store._settings, SystemClock())
    await other.open()
    revision = (await store.create("/a", b"")).revision
    assert await store.claim_compaction(revision)
    assert await other.claim_compaction(revision)  # its first: it knows no earlier one
    assert not await store.claim_compaction(revision)
    assert await store.claim_compaction(revision)
    assert not await other.claim_compaction(revision)
    await other.close()


@on_etcd
async def test_what_another_process_compacted_is_known_exactly(store: EtcdStorage) -> None:
    revisions = [(await store.create(f"/{n}", b"")).revision for n in range(5)]
    assert await store.compacted() == 1
    etcd.shared().control("compaction", str(revisions[2] - store._offset))
    assert await store.compacted() == revisions[2]
    with pytest.raises(CompactedError):
        await store.get("/0", revision=revisions[1])


@on_etcd
async def test_a_long_range_comes_in_pages_of_one_revision(store: EtcdStorage) -> None:
    created: list[Entry] = []
    for begin in range(
        0, 2500, 250
    ):  # a request has a deadline, and with a slow disk 2500 at once would wait beyond it
        created += await asyncio.gather(*(store.create(f"/registry/x/{n:05}", b"") for n in range(begin, begin + 250)))
    newest = await store.revision()
    page = await store.range("/registry/")
    assert (len(page.entries), page.revision, page.more) == (2500, newest, False)
    assert list(page.entries) == list(created)
    cut = await store.range("/registry/", limit=1700)
    assert (len(cut.entries), cut.more, cut.remaining) == (1700, True, 800)


@on_etcd
async def test_refusals_are_told_in_words_without_keys_and_values(store: EtcdStorage) -> None:
    with pytest.raises(StorageError, match="larger than etcd accepts") as caught:
        await store.create("/secret-name", b"secret-value" * 1_000_000)
    assert "secret" not in str(caught.value)


def test_a_prefix_that_kube_apiserver_takes_maps_its_layout_and_keeps_other_keys_beside_it() -> None:
    plain, other, deep = Keyspace("/registry"), Keyspace("/one"), Keyspace("/one/registry")
    assert plain.encode("/registry/pods/a") == b"/registry/pods/a"
    assert plain.encode("/mooring/x") == b"/mooring/x"
    assert other.encode("/registry/pods/a") == b"/one/pods/a"
    assert other.encode("/mooring/x") == b"/one:/mooring/x"
    assert deep.encode("/registry/pods/a") == b"/one/registry/pods/a"
    assert deep.encode("/mooring/x") == b"/one/mooring/x"
    for keyspace in (plain, other, deep):
        for key in ("/registry/pods/a", "/registry/é", "/mooring/x"):
            assert keyspace.decode(keyspace.encode(key)) == key
    assert other.span("/registry/") == (b"/one/", b"/one0")
    assert other.span("/registry/pods/", after="/registry/pods/a") == (b"/one/pods/a\0", b"/one/pods0")
    assert plain.span("") == (b"\0", b"\0")
    assert len({keyspace.offset_key for keyspace in (plain, other, deep)}) == 3
    with pytest.raises(StorageError, match="not of both"):
        other.span("/")


def test_a_store_with_a_plain_prefix_reads_and_watches_it() -> None:
    async def scenario() -> None:
        settings = StorageSettings(etcd_prefix=etcd.prefix().replace("registry", "objects"))
        store = EtcdStorage(etcd.shared().endpoints.split(","), settings, SystemClock())
        await store.open()
        entry = await store.create("/registry/pods/a", b"1")
        assert (await store.range("/registry/")).entries == (entry,)
        async with closing(store.watch("/registry/", after=entry.revision - 1)) as watch:
            (change,) = await take(watch, 1)
        assert change.entry == Entry("/registry/pods/a", b"1", entry.revision, entry.revision)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ((3, 4, 23), False),
        ((3, 4, 25), True),
        ((3, 5, 0), False),
        ((3, 5, 7), False),
        ((3, 5, 8), True),
        ((3, 6, 1), True),
    ],
    ids=str,
)
def test_progress_is_asked_only_of_versions_that_answer_in_order(version: tuple[int, ...], told: bool) -> None:
    assert tells_progress(version) is told


def test_a_version_that_tells_progress_is_asked_for_it_and_sends_no_keys_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the member of the tests may be older; while its watches are current it answers in order, too
    monkeypatch.setattr(watching, "tells_progress", lambda version: True)

    async def scenario() -> None:
        store = open_etcd(etcd.shared(), etcd.fresh_prefix())
        await store.open()
        async with closing(store.watch("/a/", after=1)) as watch:
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.05)
            await store.create("/b/1", b"")
            done, _ = await asyncio.wait([waiting], timeout=0.05)
            assert not done, "nobody waits for the revision: nothing is sent"
            newest = await store.revision()
            (progress,) = await asyncio.wait_for(waiting, 10)
            assert (progress.is_progress, progress.revision) == (True, newest)
            entry = await store.create("/a/1", b"")
            assert [change.entry for change in await take(watch, 1)] == [entry]
        await store.close()

    asyncio.run(scenario())


@on_etcd
async def test_fragments_of_a_response_are_one_batch(store: EtcdStorage) -> None:
    watcher = store._watcher((b"\0", b"\0"), 1)
    front = store._keys._front.encode()
    events = [
        messages.CLASSES["Event"](kv=messages.KeyValue(key=front + b"/%d" % n, mod_revision=7, create_revision=7))
        for n in range(3)
    ]
    watcher.push(events[:2], True)
    assert watcher.seen == 1
    watcher.push(events[2:], False)
    assert [change.key for change in await watcher.take(store._offset)] == ["/0", "/1", "/2"]


@on_etcd
async def test_after_a_restore_all_revisions_are_greater_than_those_shown_before(store: EtcdStorage) -> None:
    before = [await store.create(f"/{n}", b"") for n in range(5)]
    async with closing(store.watch("/", after=before[-1].revision)) as watch:
        waiting = asyncio.ensure_future(take(watch, 10))  # it may see the record of the restore before it ends
        await asyncio.sleep(0.05)
        store._newest += 1_000_000  # the store has seen a future that etcd has lost
        shown = store._newest + store._offset
        assert await store.revision() > shown
        with pytest.raises(CompactedError):
            await waiting
    page = await store.range("/")
    assert [entry.key for entry in page.entries] == [*(f"/{n}" for n in range(5)), RESTORES]
    assert all(entry.revision > shown for entry in page.entries)
    (restore,) = await read_restores(store)
    assert (restore.saved < shown, restore.floor) == (True, shown)
    created = await store.create("/new", b"")
    assert created.revision > page.revision
    other = EtcdStorage(store._servers, store._settings, SystemClock())
    await other.open()
    assert await other.get("/new") == created
    await other.close()
