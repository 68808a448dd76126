"""The feed alone, over a log that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from mooring.errors import StorageError
from mooring.storage import feed
from mooring.storage.contract import Entry, StoredChange
from mooring.storage.feed import INLINE_CHANGES, Feed
from mooring.storage.keyspace import check_key, end_of_prefix


def change(revision: int, key: str = "/a", size: int = 0) -> StoredChange:
    return StoredChange(key, revision, Entry(key, b"x" * size, revision, revision))


class PlainLog:
    """All changes of revisions 2 to `newest`; notes who reads how."""

    def __init__(self, newest: int) -> None:
        self.changes = [change(revision) for revision in range(2, newest + 1)]
        self.reads: list[tuple[str, int]] = []

    def read_now(self, after: int) -> Sequence[StoredChange]:
        self.reads.append(("inline", after))
        return self.changes[after - 1 : after - 1 + INLINE_CHANGES]

    async def read(self, after: int) -> Sequence[StoredChange]:
        self.reads.append(("thread", after))
        await asyncio.sleep(0)
        return self.changes[after - 1 : after - 1 + 500]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(scenario(), 10)

    asyncio.run(whole())


def test_a_long_way_behind_is_read_off_the_loop_and_the_rest_on_it() -> None:
    async def scenario() -> None:
        log = PlainLog(1020)
        watch = Feed(log, 1020).watch("", 1)
        seen = [item.revision for _ in range(3) for item in await anext(watch)]
        assert seen == list(range(2, 1021))
        assert log.reads == [("thread", 1), ("thread", 501), ("inline", 1001)]

    run(scenario)


def test_changes_published_while_a_watch_catches_up_come_once_and_in_order() -> None:
    async def scenario() -> None:
        log = PlainLog(400)
        tip = Feed(log, 400)
        watch = tip.watch("", 1)
        first = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        log.changes.append(change(401))
        tip.publish([log.changes[-1]])
        seen = [item.revision for item in await first]
        while seen[-1] < 401:
            seen += [item.revision for item in await anext(watch)]
        tip.publish([change(401), change(402)])  # the first of them was fed already
        seen += [item.revision for item in await anext(watch)]
        assert seen == list(range(2, 403))

    run(scenario)


@pytest.mark.parametrize(
    "bend",
    [
        lambda changes: changes.clear(),
        lambda changes: changes.pop(0),
        lambda changes: changes.pop(5),
    ],
    ids=["nothing where changes must be", "the first is missing", "one in the middle is missing"],
)
def test_a_hole_in_the_log_is_an_error_and_never_skipped(bend: Callable[[list[StoredChange]], object]) -> None:
    async def scenario() -> None:
        log = PlainLog(20)
        bend(log.changes)
        with pytest.raises(StorageError, match="hole"):
            await anext(Feed(log, 20).watch("", 1))

    run(scenario)


@pytest.mark.parametrize("size", [0, 1000], ids=["by their number", "by their bytes"])
def test_unread_changes_are_held_up_to_a_bound(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_PENDING_CHANGES", 10 if not size else 10_000)
    monkeypatch.setattr(feed, "MAX_PENDING_BYTES", 10_000)

    async def scenario() -> None:
        log = PlainLog(1)
        tip = Feed(log, 1)
        watch = tip.watch("", 1)
        first = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        for revision in range(2, 32):
            log.changes.append(change(revision, size=size))
            tip.publish([log.changes[-1]])
        seen = [item.revision for item in await first]
        while seen[-1] < 31:
            seen += [item.revision for item in await anext(watch)]
        assert seen == list(range(2, 32))
        assert log.reads == [("inline", 1)]

    run(scenario)


def test_skipping_ahead_makes_watches_read_but_not_those_that_begin_later() -> None:
    async def scenario() -> None:
        log = PlainLog(1)
        tip = Feed(log, 1)
        near, far = asyncio.ensure_future(anext(tip.watch("", 1))), asyncio.ensure_future(anext(tip.watch("", 50)))
        await asyncio.sleep(0)
        log.changes += [change(revision) for revision in range(2, 41)]
        tip.skip_to(40)
        tip.skip_to(30)
        assert tip.revision == 40
        assert [item.revision for item in await near] == list(range(2, 41))
        tip.publish([change(revision) for revision in range(41, 61)])
        assert [item.revision for item in await far] == list(range(51, 61))
        assert log.reads == [("inline", 1)]

    run(scenario)


def test_a_watch_given_up_is_forgotten() -> None:
    async def scenario() -> None:
        tip = Feed(PlainLog(1), 1)
        waiting = asyncio.ensure_future(anext(tip.watch("", 1)))
        await asyncio.sleep(0)
        assert tip.watched
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not tip.watched

    run(scenario)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("", None),
        ("/a", "/b"),
        ("/a/", "/a0"),
        ("/\ud7ff", "/\ue000"),
        ("/\U0010ffff", "0"),
        ("\U0010ffff\U0010ffff", None),
    ],
    ids=ascii,
)
def test_the_end_of_a_prefix_is_the_least_text_after_all_that_start_with_it(prefix: str, end: str | None) -> None:
    assert end_of_prefix(prefix) == end


def test_a_refused_key_is_not_repeated() -> None:
    with pytest.raises(StorageError) as caught:
        check_key("/secret-name\udfff")
    assert "secret-name" not in str(caught.value)
    assert caught.value.__suppress_context__
