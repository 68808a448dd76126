"""Test watches as streaming replies.

Source: docs/protocol/watch.md, docs/protocol/tables.md.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
import yaml

from mooring.api.kind import Kind
from mooring.api.kinds import KINDS
from mooring.apimachinery.codec.protobuf import MAGIC, decode_envelope, decode_message, encode_watch_frame
from mooring.apimachinery.metav1 import PARTIAL_OBJECT_METADATA, STATUS
from mooring.apimachinery.table import table
from mooring.apimachinery.watchevent import bookmark, event_frame
from mooring.clock import SystemClock
from mooring.identity import MASTERS
from mooring.registry.cache import kindcache
from mooring.registry.cache.events import Event
from mooring.registry.cache.kindcache import Watch
from mooring.server.resources import watches
from mooring.server.transport.responsewriter import MAX_BACKLOG
from tests.support.manualclock import settle
from tests.support.protobufwatch import decode_watch_frame
from tests.support.registryroom import secret
from tests.support.serverroom import Server, Stream, in_server

SECRETS = "/api/v1/namespaces/default/secrets"
WATCH = f"{SECRETS}?watch=1"
LIST = f"{WATCH}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def until(condition: Any) -> None:
    """Wait in real time for what a timer of the loop does; bounded by the test's own timeout."""
    while not condition():
        await asyncio.sleep(0.001)


@in_server
async def test_a_watch_tells_the_present_and_then_what_happens(server: Server) -> None:
    await server.create("secrets", secret("a"))
    watch = await server.follow(WATCH)
    assert (watch.status, watch.headers["content-type"]) == (200, "application/json")
    assert watch.headers["audit-id"]
    await server.create("secrets", secret("b"))
    await server.patch("secrets", "a", {"metadata": {"labels": {"x": "y"}}})
    await server.delete("secrets", "b")
    await server.create("secrets", secret("elsewhere"), namespace="kube-system")
    await settle()
    assert watch.event_names == ["ADDED a", "ADDED b", "MODIFIED a", "DELETED b"]
    assert not watch.ended
    await watch.end()


@in_server
async def test_a_watch_from_a_revision_tells_only_what_came_after(server: Server) -> None:
    first = await server.create("secrets", secret("a"))
    await server.create("secrets", secret("b"))
    watch = await server.follow(f"{WATCH}&resourceVersion={first.revision}")
    assert watch.event_names == ["ADDED b"]
    await watch.end()


@in_server
async def test_a_watch_list_ends_its_initial_events_with_a_bookmark(server: Server) -> None:
    await server.create("secrets", secret("a"))
    watch = await server.follow(LIST)
    assert watch.event_names == ["ADDED a", "BOOKMARK"]
    annotations = watch.events[-1]["object"]["metadata"]["annotations"]
    assert annotations == {"k8s.io/initial-events-end": "true"}
    await server.create("secrets", secret("b"))
    await settle()
    assert watch.event_names[2:] == ["ADDED b"]
    await watch.end()


@in_server
async def test_send_initial_events_without_its_match_is_422(server: Server) -> None:
    answer = await server.get(f"{WATCH}&sendInitialEvents=true")
    assert answer.status == 422


@pytest.mark.parametrize(
    ("query", "status"),
    [
        pytest.param("resourceVersion=999999", 504, id="a revision that has not happened"),
        pytest.param("resourceVersion=1x", 400, id="a revision that is no number"),
    ],
)
@in_server
async def test_what_is_known_to_fail_is_a_plain_error(server: Server, query: str, status: int) -> None:
    asked = asyncio.ensure_future(server.get(f"{WATCH}&{query}"))
    await server.clock.advance(4)
    answer = await asked
    assert (answer.status, answer.obj["kind"]) == (status, "Status")


@in_server
async def test_a_watch_too_far_back_is_told_so_by_an_event(server: Server) -> None:
    server.registry.cache.kinds["secrets"].window.restart(10_000)
    watch = await server.follow(f"{WATCH}&resourceVersion=2")
    assert (watch.status, watch.ended) == (200, True)
    (event,) = watch.events
    told = event["object"]
    assert (event["type"], told["kind"], told["reason"], told["code"]) == ("ERROR", "Status", "Expired", 410)


@in_server
async def test_a_watch_too_far_back_is_told_so_in_protobuf(server: Server) -> None:
    server.registry.cache.kinds["secrets"].window.restart(10_000)
    media = "application/vnd.kubernetes.protobuf"
    watch = await server.follow(f"{WATCH}&resourceVersion=2", headers=[("Accept", media)])
    event_type, body = decode_watch_frame(watch.raw)
    api_version, name, raw = decode_envelope(body)
    assert (event_type, api_version, name) == ("ERROR", "v1", "Status")
    assert decode_message(raw, STATUS)["code"] == 410


@in_server
async def test_drain_ends_every_watch_cleanly_and_new_ones_at_once(server: Server) -> None:
    streams = [await server.follow(WATCH) for _ in range(3)]
    assert server.assembly.http.watches.count == 3
    server.assembly.http.watches.drain()
    await settle()
    assert [stream.ended for stream in streams] == [True] * 3
    assert not any(stream.transport.aborted for stream in streams)
    assert server.assembly.http.watches.count == 0
    late = await server.follow(WATCH)
    assert late.ended


@in_server
async def test_a_client_that_leaves_is_forgotten(server: Server) -> None:
    watch = await server.follow(WATCH)
    assert server.registry.cache.kinds["secrets"].watches == 1
    await watch.end()
    assert server.registry.cache.kinds["secrets"].watches == 0
    assert server.assembly.http.watches.count == 0


@in_server
async def test_a_client_too_far_behind_is_cut_off(server: Server) -> None:
    watch = await server.follow(WATCH)
    watch.transport.waiting = MAX_BACKLOG + 1
    await server.create("secrets", secret("a"))
    await settle()
    assert watch.transport.aborted
    assert watch.ended
    assert server.registry.cache.kinds["secrets"].watches == 0


class Slow:
    """Lets the client of a watch take one slice of its initial state at a time."""

    def __init__(self, stream: Stream) -> None:
        self.taken = asyncio.Event()
        stream.transport.drained = self.drained  # type: ignore[method-assign] # this client

    async def drained(self) -> None:
        await self.taken.wait()
        self.taken.clear()

    async def take(self) -> None:
        self.taken.set()
        await settle()


@in_server
async def test_the_initial_state_goes_out_in_slices_and_changes_wait_for_its_end(server: Server) -> None:
    for name in ("a", "b", "c"):
        await server.create("secrets", secret(name, data={"key": "A" * 400_000}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kindcache, "SLICE_BYTES", 400_000)
        response = await server.response("GET", WATCH)
        watch = Stream(response)
        client = Slow(watch)
        await settle()
        assert watch.event_names == ["ADDED a"]
        await server.update("secrets", secret("b"))
        await server.create("secrets", secret("d"))
        await client.take()
        assert watch.event_names == ["ADDED a", "ADDED b"], "the state of the moment of the request"
        await client.take()
        await client.take()
    assert watch.event_names == ["ADDED a", "ADDED b", "ADDED c", "MODIFIED b", "ADDED d"]
    await server.create("secrets", secret("e"))
    await settle()
    assert watch.event_names[5:] == ["ADDED e"]
    await watch.end()


@in_server
async def test_the_bookmark_that_ends_the_initial_state_names_its_revision(server: Server) -> None:
    first = await server.create("secrets", secret("a"))
    watch = Stream(await server.response("GET", LIST))
    client = Slow(watch)
    await settle()
    await server.create("secrets", secret("b"))
    await client.take()
    assert watch.event_names == ["ADDED a", "BOOKMARK", "ADDED b"]
    assert watch.events[1]["object"]["metadata"]["resourceVersion"] == str(first.revision)
    await watch.end()


@in_server
async def test_a_client_that_leaves_during_the_initial_state_is_forgotten(server: Server) -> None:
    await server.create("secrets", secret("a"))
    watch = Stream(await server.response("GET", WATCH))
    client = Slow(watch)
    await settle()
    watch.frames.lost()
    await client.take()
    assert watch.ended
    assert server.registry.cache.kinds["secrets"].watches == 0


@in_server
async def test_a_client_slower_than_the_cache_remembers_is_told_to_list_again(server: Server) -> None:
    await server.create("secrets", secret("a"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kindcache.Window, "__init__", functools.partialmethod(kindcache.Window.__init__, events=3))
        watch = Stream(await server.response("GET", WATCH))
        client = Slow(watch)
        await settle()
        for number in range(5):
            await server.create("secrets", secret(f"later-{number}"))
        await client.take()
    assert watch.event_names[0] == "ADDED a"
    assert watch.events[-1]["type"] == "ERROR"
    assert watch.events[-1]["object"]["code"] == 410
    assert watch.ended
    assert server.registry.cache.kinds["secrets"].watches == 0


@in_server
async def test_an_event_that_cannot_be_sent_ends_the_watch_and_disturbs_no_other(server: Server) -> None:
    broken, sound = await server.follow(WATCH), await server.follow(WATCH)

    def fail(data: bytes) -> None:
        raise OSError("broken")

    broken.transport.write = fail  # type: ignore[method-assign] # stands for a bug in a connection
    await server.create("secrets", secret("a"))
    await settle()
    assert broken.ended
    assert sound.event_names == ["ADDED a"]
    await sound.end()


@in_server
async def test_a_watch_ends_after_its_timeout_with_a_last_bookmark(server: Server) -> None:
    watch = await server.follow(f"{WATCH}&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion=0")
    watch.transport.sent.clear()
    await until(lambda: watch.ended)
    assert watch.event_names == ["BOOKMARK"]
    assert not watch.transport.aborted


def test_bookmarks_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "BOOKMARK_SECONDS", 0.001)

    @in_server
    async def body(server: Server) -> None:
        allowed = await server.follow(
            f"{WATCH}&allowWatchBookmarks=true&resourceVersion={server.registry.cache.revision}"
        )
        silent = await server.follow(f"{WATCH}&resourceVersion={server.registry.cache.revision}")
        await until(lambda: len(allowed.event_names) >= 3)
        assert set(allowed.event_names) == {"BOOKMARK"}
        assert silent.event_names == []
        revision = allowed.events[0]["object"]["metadata"]
        assert revision == {"resourceVersion": str(server.registry.cache.revision)}
        await allowed.end()
        await silent.end()

    body()


def test_a_bookmark_that_cannot_be_sent_ends_its_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watches, "BOOKMARK_SECONDS", 0.001)

    def broken(watch: Watch) -> Event:
        raise RuntimeError("no bookmark today")

    @in_server
    async def body(server: Server) -> None:
        watch = await server.follow(
            f"{WATCH}&allowWatchBookmarks=true&resourceVersion={server.registry.cache.revision}"
        )
        monkeypatch.setattr(Watch, "bookmark", broken)
        await until(lambda: watch.ended)

    body()
    assert "no bookmark today" in caplog.text


@in_server
async def test_a_selector_makes_entering_added_and_leaving_deleted(server: Server) -> None:
    await server.create("secrets", secret("a"))
    watch = await server.follow(f"{WATCH}&labelSelector=x")
    await server.patch("secrets", "a", {"metadata": {"labels": {"x": "y"}}})
    await server.patch("secrets", "a", {"metadata": {"labels": {"x": None}}})
    await settle()
    assert watch.event_names == ["ADDED a", "DELETED a"]
    await watch.end()


def names(stream: Stream) -> list[str]:
    return [event["object"]["rows"][0]["cells"][0] for event in stream.events]


@in_server
async def test_a_watch_of_tables_has_columns_in_its_first_event_only(server: Server) -> None:
    await server.create("secrets", secret("a"))
    watch = await server.follow(WATCH, headers=[("Accept", TABLE)])
    await server.create("secrets", secret("b"))
    await settle()
    assert names(watch) == ["a", "b"]
    assert [event["object"]["kind"] for event in watch.events] == ["Table", "Table"]
    assert [bool(event["object"].get("columnDefinitions")) for event in watch.events] == [True, False]
    await watch.end()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.virtual], ids=lambda kind: kind.resource.plural)
def test_the_bookmark_of_a_watch_of_tables_is_one_row(kind: Kind) -> None:
    """Every column bears an object with metadata only; upstream's WatchList test reads the annotation from the row."""
    shown = table(kind.resource, [bookmark(kind.resource, 7, initial_end=True)], SystemClock().now())
    (row,) = shown["rows"]
    assert len(row["cells"]) == len(shown["columnDefinitions"])
    assert row["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


@in_server
async def test_a_watch_list_of_tables_ends_its_initial_events_with_a_row(server: Server) -> None:
    await server.create("secrets", secret("a"))
    watch = await server.follow(LIST, headers=[("Accept", TABLE)])
    assert [event["type"] for event in watch.events] == ["ADDED", "BOOKMARK"]
    (row,) = watch.events[-1]["object"]["rows"]
    assert row["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    await watch.end()


@in_server
async def test_a_watch_of_metadata_in_protobuf(server: Server) -> None:
    media = "application/vnd.kubernetes.protobuf"
    await server.create("secrets", secret("a"))
    watch = await server.follow(WATCH, headers=[("Accept", f"{media};as=PartialObjectMetadata;v=v1;g=meta.k8s.io")])
    event_type, body = decode_watch_frame(watch.raw)
    assert event_type == "ADDED"
    api_version, name, raw = decode_envelope(body)
    assert (api_version, name) == ("meta.k8s.io/v1", "PartialObjectMetadata")
    assert decode_message(raw, PARTIAL_OBJECT_METADATA)["metadata"]["name"] == "a"
    await watch.end()


@in_server
async def test_a_watch_of_metadata(server: Server) -> None:
    accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    await server.create("secrets", secret("a"))
    watch = await server.follow(WATCH, headers=[("Accept", accept)])
    assert watch.events[0]["object"]["kind"] == "PartialObjectMetadata"
    assert "data" not in watch.events[0]["object"]
    await watch.end()


@in_server
async def test_a_watch_in_protobuf_is_frames_with_their_length(server: Server) -> None:
    await server.create("secrets", secret("a"))
    media = "application/vnd.kubernetes.protobuf"
    watch = await server.follow(WATCH, headers=[("Accept", f"{media};stream=watch")])
    assert watch.headers["content-type"] == f"{media};stream=watch"
    await server.create("secrets", secret("b"))
    await settle()
    sizes, rest = [], watch.raw
    while rest:
        size = int.from_bytes(rest[:4])
        sizes.append(size)
        assert MAGIC in rest[4 : 4 + size]
        rest = rest[4 + size :]
    assert len(sizes) == 2
    await watch.end()


@in_server
async def test_the_frames_of_two_watchers_are_the_same_bytes(server: Server) -> None:
    one, two = await server.follow(WATCH), await server.follow(WATCH)
    await server.create("secrets", secret("a"))
    await settle()
    assert one.raw == two.raw
    await one.end()
    await two.end()


@in_server
async def test_a_watch_has_no_yaml(server: Server) -> None:
    target = "/api/v1/namespaces/default/configmaps?watch=1"
    answer = await server.response("GET", target, headers=[("Accept", "application/yaml")])
    assert answer.status == 406
    assert isinstance(answer.body, bytes)
    types = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
    assert yaml.safe_load(answer.body)["message"] == f"only the following media types are accepted: {types}"


@pytest.mark.parametrize(
    "accept",
    [
        "application/vnd.kubernetes.protobuf;stream=watch",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    ],
)
def test_watchers_of_one_form_share_its_frames(accept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = 0

    def counted(make: Any) -> Any:
        def encode(*arguments: Any) -> bytes:
            nonlocal encoded
            encoded += 1
            result: bytes = make(*arguments)
            return result

        return encode

    monkeypatch.setattr(watches, "event_frame", counted(event_frame))
    monkeypatch.setattr(watches, "encode_watch_frame", counted(encode_watch_frame))

    @in_server
    async def watch(server: Server) -> None:
        streams = [await server.follow(WATCH, headers=[("accept", accept)]) for _ in range(3)]
        await server.create("secrets", secret("a"))
        await settle()
        assert len({stream.raw for stream in streams}) == 1
        assert streams[0].raw
        for stream in streams:
            await stream.end()

    watch()
    assert encoded == 1


LONG = f"{WATCH}&labelSelector={'%2C'.join(f'!a{number}' for number in range(100))}"


@in_server
async def test_the_requirements_of_the_open_watches_of_one_caller_are_bounded(server: Server) -> None:
    most = watches.MAX_REQUIREMENTS // (100 - watches.FREE_REQUIREMENTS)
    streams = [await server.follow(LONG) for _ in range(most)]
    refused = await server.get(LONG)
    assert (refused.status, refused.obj["reason"]) == (429, "TooManyRequests")
    assert "use shorter selectors" in refused.message
    as_clients = (WATCH, f"{WATCH}&labelSelector=a%2Cb%2Cc%2Cd", f"{WATCH}&fieldSelector=metadata.name%3Da")
    streams += [await server.follow(path) for path in as_clients]
    streams.append(await server.follow(LONG, via=server.user("other", MASTERS)))
    await streams.pop(0).end()
    streams.append(await server.follow(LONG))
    assert {stream.status for stream in streams} == {200}
    for stream in streams:
        await stream.end()


@in_server
async def test_a_watch_that_fails_counts_for_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_REQUIREMENTS", 150)
    server.registry.cache.kinds["secrets"].window.restart(10_000)
    for _ in range(3):
        assert (await server.get(f"{LONG}&fieldSelector=spec.none%3Da")).status == 400
        watch = await server.follow(f"{LONG}&resourceVersion=2")
        assert [event["type"] for event in watch.events] == ["ERROR"]
