"""Test get and list: freshness, exact revisions, pages, selectors.

Source: docs/protocol/lists.md, docs/protocol/selectors.md.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mooring.apimachinery.options import decode_continue, encode_continue
from mooring.errors import AlreadyExistsError, BadRequestError, ExpiredError, NotFoundError, RequestTimeoutError
from mooring.registry import reader
from mooring.registry.reader import ContinueExpiredError
from tests.support.registryroom import Room, in_room, open_room, secret

ALL = ["a", "b", "c", "d", "e"]


async def fill(room: Room, names: list[str] = ALL, namespace: str = "default") -> None:
    for index, name in enumerate(names):
        await room.create("secrets", secret(name, metadata={"labels": {"odd": str(index % 2)}}), namespace)


@in_room
async def test_lists_are_in_key_order_over_namespaces_and_within_one(room: Room) -> None:
    await room.create("namespaces", {"metadata": {"name": "default-2"}})
    await fill(room, ["b", "a"], "kube-system")
    await fill(room, ["c"], "default-2")
    await fill(room, ["z", "d"])
    assert await room.names("secrets") == ["c", "d", "z", "a", "b"]  # "default-2/" sorts before "default/"
    assert await room.names("secrets", "default") == ["d", "z"]
    assert await room.names("secrets", "nowhere") == []


@in_room
async def test_a_list_carries_the_newest_revision_even_when_empty(room: Room) -> None:
    listed = await room.list("secrets")
    assert (list(listed.items), listed.revision) == ([], await room.storage.revision())
    assert (listed.continue_token, listed.remaining) == ("", None)


@in_room
async def test_a_plain_list_hands_out_the_kept_objects_without_decoding_them(room: Room) -> None:
    await fill(room)
    for item in (await room.list("secrets", "default")).items:
        assert item is await room.get("secrets", item.name)


@in_room
async def test_pages_show_one_snapshot_though_the_world_moves_on(room: Room) -> None:
    await fill(room)
    first = await room.list("secrets", "default", limit=2)
    assert ([item.name for item in first.items], first.remaining) == (["a", "b"], 3)
    await room.delete("secrets", "c")
    await room.create("secrets", secret("bb"))
    await room.patch("secrets", "d", {"metadata": {"labels": {"new": "x"}}})
    second = await room.list("secrets", "default", limit=2, continue_=first.continue_token)
    assert ([item.name for item in second.items], second.remaining) == (["c", "d"], 1)
    assert "new" not in second.items[1].labels
    assert second.revision == first.revision
    last = await room.list("secrets", "default", limit=2, continue_=second.continue_token)
    assert [item.name for item in last.items] == ["e"]
    assert (last.continue_token, last.remaining) == ("", None)


@in_room
async def test_pages_of_an_unchanged_kind_come_from_memory(room: Room) -> None:
    await fill(room)
    first = await room.list("secrets", limit=2)
    await room.create("configmaps", {"metadata": {"name": "x"}})

    async def unreachable(*args: object, **kwargs: object) -> None:
        raise AssertionError("the store was read")

    room.storage.range = unreachable  # type: ignore[method-assign,assignment] # reading it would be a mistake
    second = await room.list("secrets", limit=2, continue_=first.continue_token)
    assert [item.name for item in second.items] == ["c", "d"]
    assert second.revision == first.revision


@pytest.mark.parametrize("changed", [False, True], ids=["from memory", "from the store"])
@in_room
async def test_pages_with_a_selector_are_full_and_do_not_tell_how_many_remain(room: Room, changed: bool) -> None:
    await fill(room)
    first = await room.list("secrets", "default", limit=1, labelSelector="odd=0")
    if changed:
        await room.create("secrets", secret("zz", metadata={"labels": {"odd": "0"}}))
    pages = [first]
    while pages[-1].continue_token:
        pages.append(
            await room.list("secrets", "default", limit=1, labelSelector="odd=0", continue_=pages[-1].continue_token)
        )
    assert [[item.name for item in page.items] for page in pages if page.items] == [["a"], ["c"], ["e"]]
    assert all(page.remaining is None for page in pages)


def test_a_selector_looks_through_the_past_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SELECT_CHUNK", 2)

    async def scenario() -> None:
        async with open_room() as room:
            await fill(room)
            then = room.registry.cache.revision
            await room.create("secrets", secret("f", metadata={"labels": {"odd": "1"}}))
            page = await room.list("secrets", resourceVersion=then, limit=2, labelSelector="odd=1")
            assert [item.name for item in page.items] == ["b", "d"]
            assert page.revision == then
            rest = await room.list("secrets", limit=2, labelSelector="odd=1", continue_=page.continue_token)
            assert (list(rest.items), rest.continue_token) == ([], "")

    asyncio.run(scenario())


@in_room
async def test_an_expired_continue_is_410_with_a_token_that_goes_on_inconsistently(room: Room) -> None:
    await fill(room)
    first = await room.list("secrets", "default", limit=2)
    await room.create("secrets", secret("cc"))
    await room.storage.compact(await room.storage.revision())
    with pytest.raises(ContinueExpiredError) as caught:
        await room.list("secrets", "default", limit=2, continue_=first.continue_token)
    token = caught.value.continue_token
    assert decode_continue(token)[1] == -1
    rest = await room.list("secrets", "default", limit=2, continue_=token)
    assert [item.name for item in rest.items] == ["c", "cc"]
    assert rest.revision == room.registry.cache.revision
    assert [item.name for item in (await room.list("secrets", "default", continue_=rest.continue_token)).items] == [
        "d",
        "e",
    ]


@in_room
async def test_what_is_compacted_is_gone_also_for_a_kind_that_did_not_change(room: Room) -> None:
    """Test that a token expires for an unchanged kind, too, as Kubernetes' e2e test expects."""
    await fill(room)
    first = await room.list("secrets", "default", limit=2)
    await room.create("configmaps", {"metadata": {"name": "other"}})
    await room.storage.compact(first.revision)
    second = await room.list("secrets", "default", limit=2, continue_=first.continue_token)
    assert [item.name for item in second.items] == ["c", "d"], "the oldest revision that is left can be read"
    await room.storage.compact(first.revision + 1)
    with pytest.raises(ContinueExpiredError) as caught:
        await room.list("secrets", "default", limit=2, continue_=first.continue_token)
    rest = await room.list("secrets", "default", limit=2, continue_=caught.value.continue_token)
    assert ([item.name for item in rest.items], rest.remaining) == (["c", "d"], 1)
    assert rest.revision > first.revision
    with pytest.raises(ExpiredError):
        await room.list("secrets", resourceVersion=str(first.revision), limit=10)


@pytest.mark.parametrize(
    "query",
    [{"resourceVersionMatch": "Exact"}, {"limit": 10}],
    ids=["match Exact", "a limit and no match"],
)
@in_room
async def test_an_exact_list_shows_the_past(room: Room, query: dict[str, Any]) -> None:
    await fill(room, ["a", "b"])
    then = room.registry.cache.revision
    await room.delete("secrets", "a")
    listed = await room.list("secrets", resourceVersion=then, **query)
    assert ([item.name for item in listed.items], listed.revision) == (["a", "b"], then)
    await room.storage.compact(await room.storage.revision())
    with pytest.raises(ExpiredError):
        await room.list("secrets", resourceVersion=then, **query)


@pytest.mark.parametrize(
    "query",
    [{}, {"resourceVersionMatch": "NotOlderThan"}, {"resourceVersionMatch": "NotOlderThan", "limit": 10}],
    ids=["no limit and no match", "match NotOlderThan", "match NotOlderThan with a limit"],
)
@in_room
async def test_a_list_not_older_than_the_past_shows_the_present(room: Room, query: dict[str, Any]) -> None:
    await fill(room, ["a", "b"])
    then = room.registry.cache.revision
    await room.delete("secrets", "a")
    listed = await room.list("secrets", resourceVersion=then, **query)
    assert ([item.name for item in listed.items], listed.revision) == (["b"], room.registry.cache.revision)


@in_room
async def test_resource_version_zero_ignores_the_limit(room: Room) -> None:
    await fill(room)
    assert await room.names("secrets", limit=2, resourceVersion="0") == ALL


@pytest.mark.parametrize("verb", ["get", "list", "exact list", "watch"])
@in_room
async def test_a_future_revision_is_waited_for_and_then_504(room: Room, verb: str) -> None:
    future = str(room.registry.cache.revision + 1)
    calls = {
        "get": lambda: room.get("namespaces", "default", resource_version=future),
        "list": lambda: room.list("secrets", resourceVersion=future),
        "exact list": lambda: room.list("secrets", resourceVersion=future, resourceVersionMatch="Exact"),
        "watch": lambda: room.watch("secrets", resourceVersion=future),
    }
    call = asyncio.ensure_future(calls[verb]())  # type: ignore[no-untyped-call] # each returns its own coroutine
    await room.settle()
    assert not call.done()
    await room.clock.advance(3.1)
    with pytest.raises(RequestTimeoutError) as caught:
        await call
    assert (
        caught.value.message
        == f"Timeout: Too large resource version: {future}, current: {room.registry.cache.revision}"
    )
    assert [cause.reason for cause in caught.value.details.causes] == ["ResourceVersionTooLarge"]
    assert caught.value.details.retry_after == 1
    again = asyncio.ensure_future(calls[verb]())  # type: ignore[no-untyped-call] # each returns its own coroutine
    await room.settle()
    await room.create("secrets", secret("a"))
    await again


@in_room
async def test_get_of_a_missing_object_is_404_in_the_known_words(room: Room) -> None:
    with pytest.raises(NotFoundError) as caught:
        await room.get("leases", "a")
    assert caught.value.message == 'leases.coordination.k8s.io "a" not found'


@pytest.mark.parametrize("version", ["x", "-1", "01", "9" * 30])
@in_room
async def test_an_unreadable_resource_version_of_a_get_is_400(room: Room, version: str) -> None:
    with pytest.raises(BadRequestError):
        await room.get("secrets", "a", resource_version=version)


# -- selectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("namespace", "query", "names"),
    [
        ("", {"labelSelector": "odd=1"}, ["b", "d"]),
        ("", {"labelSelector": "odd notin (1)", "fieldSelector": "metadata.name!=a"}, ["c", "e", "x"]),
        ("default", {"fieldSelector": "metadata.name=c"}, ["c"]),
        ("", {"fieldSelector": "metadata.name=c"}, ["c"]),
        ("default", {"fieldSelector": "metadata.name=c", "labelSelector": "odd=1"}, []),
        ("default", {"fieldSelector": "metadata.name=nobody"}, []),
        ("", {"fieldSelector": "metadata.namespace=kube-system"}, ["x"]),
        ("", {"fieldSelector": "metadata.namespace=kube-system,metadata.name=x"}, ["x"]),
        ("default", {"fieldSelector": "metadata.namespace=kube-system"}, []),
        ("", {"fieldSelector": "type=special"}, ["x"]),
        ("", {"fieldSelector": "type!=special,metadata.name=x"}, []),
        ("", {"fieldSelector": "metadata.name=a,metadata.name=b"}, []),
        ("", {"fieldSelector": "metadata.name=a,metadata.name!=a"}, []),
        ("", {"fieldSelector": "metadata.name=a,metadata.name=a"}, ["a"]),
        ("", {"fieldSelector": "metadata.name="}, []),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
@in_room
async def test_selectors(room: Room, namespace: str, query: dict[str, Any], names: list[str]) -> None:
    await fill(room)
    await room.create("secrets", secret("x", type="special"), "kube-system")
    assert await room.names("secrets", namespace, **query) == names
    assert await room.names("secrets", namespace, limit=500, **query) == names


@in_room
async def test_cluster_scoped_objects_are_selected_by_name(room: Room) -> None:
    assert await room.names("namespaces", fieldSelector="metadata.name=default") == ["default"]
    assert await room.names("namespaces", fieldSelector="metadata.name=default", limit=1) == ["default"]
    assert await room.names("namespaces", fieldSelector="status.phase=Terminating") == []


@pytest.mark.parametrize("verb", ["list", "watch"])
@in_room
async def test_an_unknown_field_label_is_400(room: Room, verb: str) -> None:
    with pytest.raises(BadRequestError, match=r"^field label not supported: spec\.foo$"):
        await getattr(room, verb)("secrets", fieldSelector="spec.foo=bar")


# -- when the cache is behind ---------------------------------------------------------------------------------------


@in_room
async def test_reads_go_to_the_store_when_the_cache_does_not_catch_up(room: Room) -> None:
    await fill(room)
    await room.registry.stop()  # the cache follows no more, the store lives on
    await room.storage.create(
        "/registry/secrets/default/new",
        b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"new","namespace":"default","labels":{"odd":"0"}}}',
    )
    assert not room.registry.cache.ready
    assert (await room.get("secrets", "new")).obj["metadata"]["labels"] == {"odd": "0"}
    with pytest.raises(NotFoundError):
        await room.get("secrets", "newer")
    assert await room.names("secrets") == [*ALL, "new"]
    first = await room.list("secrets", limit=2, labelSelector="odd=0")
    assert [item.name for item in first.items] == ["a", "c"]
    assert await room.names("secrets", labelSelector="odd=0", continue_=first.continue_token) == ["e", "new"]
    again = encode_continue("default/c\0", -1)
    assert await room.names("secrets", "", continue_=again) == ["d", "e", "new"]
    with pytest.raises(RequestTimeoutError):
        await room.watch("secrets")
    with pytest.raises(AlreadyExistsError):
        await room.create("secrets", secret("new"))
    made = await room.create("secrets", secret("made"))
    assert made.revision == await room.storage.revision()
