"""Test watches through the registry.

Source: docs/protocol/watch.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from mooring.errors import ExpiredError
from mooring.registry.cache.events import Event, Transition
from mooring.registry.cache.kindcache import Window
from tests.support.registryroom import Room, in_room, open_room, secret

LABELS = {"labels": {"app": "x"}}


@in_room
async def test_events_after_the_given_revision_come_live_in_order(room: Room) -> None:
    old = await room.create("secrets", secret("a"))
    await room.watch("secrets", resourceVersion=old.revision)
    await room.create("secrets", secret("b"))
    await room.patch("secrets", "a", {"data": {"k": "dg=="}})
    await room.delete("secrets", "b")
    await room.create("configmaps", {"metadata": {"name": "other-kind"}})
    assert room.seen == ["ADDED b", "MODIFIED a", "DELETED b"]


@in_room
async def test_a_watch_from_the_past_is_told_the_past_first(room: Room) -> None:
    old = await room.create("secrets", secret("a"))
    await room.create("secrets", secret("b"))
    await room.patch("secrets", "a", {"data": {"k": "dg=="}})
    await room.watch("secrets", resourceVersion=old.revision)
    assert room.seen == ["ADDED b", "MODIFIED a"]
    await room.delete("secrets", "a")
    assert room.seen == ["ADDED b", "MODIFIED a", "DELETED a"]


@pytest.mark.parametrize("version", ["", "0"])
@in_room
async def test_without_a_revision_the_present_comes_as_added_then_live(room: Room, version: str) -> None:
    await room.create("secrets", secret("b"))
    await room.create("secrets", secret("a"))
    await room.watch("secrets", resourceVersion=version)
    assert room.seen == ["ADDED a", "ADDED b"]
    await room.delete("secrets", "a")
    assert room.seen[2:] == ["DELETED a"]


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ({}, ["ADDED a", "BOOKMARK end"]),
        ({"resourceVersion": "0"}, ["ADDED a", "BOOKMARK end"]),
        ({"resourceVersion": "2"}, ["ADDED a", "BOOKMARK end"]),
        ({"allowWatchBookmarks": "false"}, ["ADDED a"]),
        ({"sendInitialEvents": "false"}, []),
        ({"sendInitialEvents": "false", "resourceVersion": "0"}, []),
        ({"sendInitialEvents": "false", "resourceVersion": "2"}, ["ADDED a"]),
    ],
    ids=[
        "newest: state, then the marked bookmark",
        "any: state, then the marked bookmark",
        "not older than: state, then the marked bookmark",
        "no bookmarks allowed: state only",
        "no initial events: nothing",
        "no initial events from anywhere: nothing",
        "no initial events from a revision: what happened since",
    ],
)
def test_watch_list(query: dict[str, Any], seen: list[str]) -> None:
    asked = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        **query,
    }

    async def scenario() -> None:
        async with open_room(namespaces=["default"]) as room:
            await room.create("secrets", secret("a"))
            await room.watch("secrets", **asked)
            assert room.seen == seen
            await room.create("secrets", secret("b"))
            assert room.seen == [*seen, "ADDED b"]

    asyncio.run(scenario())


@in_room
async def test_bookmarks_carry_the_revision_up_to_which_all_was_delivered(room: Room) -> None:
    events: list[Event] = []
    watch = await room.watch("secrets", sink=events.append, resourceVersion=room.registry.cache.revision)
    await room.create("configmaps", {"metadata": {"name": "other-kind"}})
    bookmark = watch.bookmark()
    assert bookmark.revision == room.registry.cache.revision
    assert events == []
    assert bookmark.obj == {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": str(room.registry.cache.revision)},
    }
    assert json.loads(bookmark.frame()) == {"type": "BOOKMARK", "object": bookmark.obj}
    assert json.loads(watch.bookmark(initial_end=True).frame())["object"]["metadata"]["annotations"] == {
        "k8s.io/initial-events-end": "true"
    }


# -- selectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [{"labelSelector": "app=x"}, {"fieldSelector": "type=Opaque", "labelSelector": "app"}],
    ids=["by label", "by label and field"],
)
@in_room
async def test_entering_a_selector_is_added_and_leaving_it_deleted(room: Room, query: dict[str, Any]) -> None:
    events: list[Event] = []
    await room.create("secrets", secret("a"))
    await room.watch("secrets", sink=events.append, resourceVersion=room.registry.cache.revision, **query)
    await room.patch("secrets", "a", {"metadata": {"labels": {"app": "x"}}, "data": {"n": "MQ=="}})
    await room.patch("secrets", "a", {"data": {"n": "Mg=="}})
    last = await room.patch("secrets", "a", {"metadata": {"labels": None}, "data": {"n": "Mw=="}})
    await room.patch("secrets", "a", {"data": {"n": "NA=="}})
    await room.delete("secrets", "a")
    assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    departed = events[2].obj
    assert departed["data"]["n"] == "Mg=="
    assert departed["metadata"]["labels"] == {"app": "x"}
    assert departed["metadata"]["resourceVersion"] == str(last.revision) == str(events[2].revision)


@pytest.mark.parametrize(
    ("namespace", "query"),
    [
        ("default", {"fieldSelector": "metadata.name=a"}),
        ("", {"fieldSelector": "metadata.name=a,metadata.namespace=default"}),
        ("default", {"labelSelector": "app=x"}),
    ],
    ids=["by name in a namespace", "by name and namespace", "by label in a namespace"],
)
@in_room
async def test_others_are_not_heard_of(room: Room, namespace: str, query: dict[str, Any]) -> None:
    watch = await room.watch("secrets", namespace, resourceVersion=room.registry.cache.revision, **query)
    await room.create("secrets", secret("a", metadata=LABELS), "kube-system")
    await room.create("secrets", secret("b"))
    await room.create("secrets", secret("a", metadata=LABELS))
    assert room.seen == ["ADDED a"]
    assert room.registry.cache.kinds["secrets"].watches == 1
    watch.close()
    watch.close()
    assert room.registry.cache.kinds["secrets"].watches == 0
    await room.delete("secrets", "a")
    assert room.seen == ["ADDED a"]


# -- deletion, sharing, order ---------------------------------------------------------------------------------------


@in_room
async def test_a_deleted_event_is_the_last_state_at_the_revision_of_the_deletion(room: Room) -> None:
    events: list[Event] = []
    old = await room.create("secrets", secret("a"))
    await room.watch("secrets", sink=events.append, resourceVersion=old.revision)
    deleted = await room.delete("secrets", "a")
    (event,) = events
    assert event.revision == deleted.stored.revision
    assert event.obj == {**old.obj, "metadata": {**old.obj["metadata"], "resourceVersion": str(event.revision)}}
    assert json.loads(event.frame()) == {"type": "DELETED", "object": event.obj}


@in_room
async def test_one_frame_is_built_for_all_watchers(room: Room) -> None:
    frames: list[bytes] = []
    for _ in range(50):
        await room.watch("secrets", sink=lambda event: frames.append(event.frame()))
    stored = await room.create("secrets", secret("a"))
    assert len(frames) == 50
    assert all(frame is frames[0] for frame in frames)
    assert frames[0] == b'{"type":"ADDED","object":%b}\n' % stored.raw


@in_room
async def test_views_show_the_event_when_a_watcher_hears_of_it(room: Room) -> None:
    shown: list[Any] = []

    def look(event: Event) -> None:
        assert event.stored is not None
        view = room.registry.views["secrets"]
        shown.append(
            (view.get(event.stored.name, "default"), view.revision, room.registry.cache.revision >= event.revision)
        )

    await room.watch("secrets", sink=look)
    stored = await room.create("secrets", secret("a"))
    deleted = await room.delete("secrets", "a")
    assert shown == [(stored.obj, stored.revision, True), (None, deleted.stored.revision, True)]


@in_room
async def test_a_broken_sink_is_closed_and_the_others_do_not_notice(room: Room) -> None:
    def broken(event: Event) -> None:
        raise ConnectionResetError

    watch = await room.watch("secrets", sink=broken)
    await room.watch("secrets")
    await room.create("secrets", secret("a"))
    await room.create("secrets", secret("b"))
    assert watch.closed
    assert room.seen == ["ADDED a", "ADDED b"]


@in_room
async def test_a_sink_may_close_its_watch_at_any_event(room: Room) -> None:
    for name in "abc":
        await room.create("secrets", secret(name))
    seen: list[str] = []

    def sink(event: Event) -> None:
        seen.append(event.type)
        raise ConnectionResetError

    await room.watch("secrets", sink=sink, allowWatchBookmarks=True)
    await room.watch("secrets", sink=sink, resourceVersion=room.registry.cache.revision - 2)
    assert seen == ["ADDED", "ADDED"]
    assert room.registry.cache.kinds["secrets"].watches == 0


@in_room
async def test_concurrent_writers_are_heard_in_revision_order_by_every_watcher(room: Room) -> None:
    heard: list[list[tuple[int, str]]] = [[] for _ in range(3)]

    def into(place: list[tuple[int, str]]) -> Callable[[Event], None]:
        return lambda event: place.append((event.revision, event.type))

    for place in heard:
        await room.watch("secrets", sink=into(place))

    async def life(name: str) -> None:
        await room.create("secrets", secret(name))
        await room.patch("secrets", name, {"data": {"k": "dg=="}})
        await room.delete("secrets", name)

    await asyncio.gather(*(life(f"s{index}") for index in range(20)))
    assert len(heard[0]) == 60
    assert heard[0] == heard[1] == heard[2] == sorted(heard[0])


# -- the bounded past -----------------------------------------------------------------------------------------------


def test_a_start_older_than_the_window_is_410() -> None:
    async def scenario() -> None:
        async with open_room() as room:
            cache = room.registry.cache.kinds["secrets"]
            cache.window = Window(events=2)
            cache.window.restart(room.registry.cache.revision)
            start = room.registry.cache.revision
            for name in "abc":
                await room.create("secrets", secret(name))
            with pytest.raises(ExpiredError, match=rf"^too old resource version: {start} \({start + 1}\)$"):
                await room.watch("secrets", resourceVersion=start)
            assert room.registry.cache.kinds["secrets"].watches == 0
            await room.watch("secrets", resourceVersion=start + 1)
            assert room.seen == ["ADDED b", "ADDED c"]

    asyncio.run(scenario())


@in_room
async def test_the_window_is_bounded_by_bytes_too(room: Room) -> None:
    stored = await room.create("secrets", secret("a"))
    transition = Transition(stored.revision, stored, None)
    window = Window(events=1000, size=3 * transition.size)
    for _ in range(10):
        window.append(transition)
    assert len(window) == 3
    assert window.floor == stored.revision
