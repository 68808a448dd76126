"""Test stored objects and selections, and that any history leaves what a dictionary would have (laws 5 and 6)."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec.json import deep_copy
from mooring.errors import AlreadyExistsError, ConflictError, NotFoundError, StorageError
from mooring.registry.cache import events as kept
from mooring.registry.cache.events import DecodedObjects, Event, Stored, Transition, encoded, head
from mooring.registry.cache.kindcache import slices
from mooring.registry.offload import LONG_BYTES
from tests.support.registryroom import kind, open_room, secret

SECRETS = kind("secrets")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
objects = st.builds(
    lambda metadata, more: {**more, "metadata": {"name": "a", **metadata}},
    st.dictionaries(st.text(), json_values, max_size=4),
    st.dictionaries(st.text(), json_values, max_size=4),
)


@given(objects, st.integers(1, 2**62), st.integers(1, 2**62))
def test_bytes_carry_the_object_and_its_revision_and_nothing_else_changes(
    obj: dict[str, object], revision: int, later: int
) -> None:
    value = encoded(SECRETS.resource, obj)
    assert value.startswith(head(SECRETS.resource))
    metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}  # type: ignore[attr-defined] # a dict by construction
    plain = {**obj, "kind": "Secret", "apiVersion": "v1", "metadata": metadata}
    assert json.loads(value) == plain
    stored = Stored.of(SECRETS, "default", "a", revision, value)
    assert stored.obj == {**plain, "metadata": {**metadata, "resourceVersion": str(revision)}}
    moved = stored.at(later)
    assert moved.obj == {**plain, "metadata": {**metadata, "resourceVersion": str(later)}}
    assert moved.at(revision).raw == stored.raw
    never = Stored.of(SECRETS, "default", "a", 0, value)
    assert never.raw == value
    assert never.at(revision).raw == stored.raw
    assert json.loads(Event("ADDED", SECRETS.resource, revision, stored).frame()) == {
        "type": "ADDED",
        "object": stored.obj,
    }


NODES = kind("nodes")


def test_an_object_stored_without_what_go_writes_is_read_with_it() -> None:
    bare = encoded(NODES.resource, {"metadata": {"name": "n"}})
    read = Stored.of(NODES, "", "n", 7, bare)
    assert read.obj["spec"] == {}
    assert read.obj["status"]["nodeInfo"]["kubeletVersion"] == ""
    assert read.obj["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}
    assert read.obj["metadata"] == {"name": "n", "resourceVersion": "7"}
    whole = encoded(NODES.resource, read.obj)
    assert Stored.of(NODES, "", "n", 7, whole).raw == read.raw


@pytest.mark.parametrize("value", [b"{", b"[" * 100_000], ids=["no end", "brackets without an end"])
def test_bytes_with_a_right_beginning_alone_are_reported(value: bytes) -> None:
    stored = Stored.of(SECRETS, "default", "a", 1, head(SECRETS.resource) + b'"name":"a"},"data":' + value)
    with pytest.raises(StorageError, match="not valid JSON"):
        _ = stored.obj


@pytest.mark.parametrize("spec", ["[]", '"text"', "[[]]", "1"])
def test_a_stored_object_of_another_shape_is_reported(spec: str) -> None:
    with pytest.raises(StorageError, match="restore it from a backup"):
        Stored.of(
            NODES, "", "n", 7, b'{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"},"status":%b}' % spec.encode()
        )


@given(objects)
def test_a_copy_is_equal_and_shares_nothing(obj: dict[str, Any]) -> None:
    twin = deep_copy(obj)
    assert twin == obj
    twin["metadata"]["name"] = "changed"
    assert obj["metadata"]["name"] != "changed"


def test_what_prints_of_an_object_is_where_it_is_and_never_what_is_in_it() -> None:
    stored = Stored.of(SECRETS, "default", "a", 7, encoded(SECRETS.resource, secret("a")))
    event = Event("ADDED", SECRETS.resource, 7, stored)
    assert repr(stored) == "Stored('/registry/secrets/default/a', revision=7)"
    assert "dmFsdWU" not in repr(event) + repr(stored)
    assert repr(Event("BOOKMARK", SECRETS.resource, 9)) == "Event(BOOKMARK, 9)"


@pytest.mark.parametrize(
    ("before", "after", "type_"),
    [(True, True, "MODIFIED"), (False, True, "ADDED"), (True, False, "DELETED"), (False, False, None)],
    ids=["stays", "enters", "leaves", "stays out"],
)
def test_what_a_write_means_to_a_watcher(before: bool, after: bool, type_: str | None) -> None:
    old = Stored.of(SECRETS, "default", "a", 7, encoded(SECRETS.resource, secret("a")))
    transition = Transition(9, old.at(9), old)
    event = transition.event(before, after)
    assert (event.type if event else None) == type_
    assert transition.event(before, after) is event  # built once
    if event is not None:
        assert event.revision == 9
        assert event.frame() is event.frame()


# -- a registry is a dictionary with revisions ----------------------------------------------------------------------

NAMES = ("a", "b", "c")
steps = st.lists(
    st.tuples(
        st.sampled_from(["create", "put", "stale put", "patch", "delete", "hold", "release"]),
        st.sampled_from(NAMES),
        st.integers(0, 3),
        st.integers(0, 1),
    ),
    max_size=40,
)


@given(steps)
def test_any_history_leaves_what_a_dictionary_would_have_and_watchers_can_rebuild_it(
    history: Sequence[tuple[str, str, int, int]],
) -> None:
    async def scenario() -> None:
        async with open_room(namespaces=["default"]) as one, open_room(one.storage, clock=one.clock) as two:
            model: dict[str, tuple[str, bool, bool]] = {}  # name → (value, held by a finalizer, being deleted)
            rebuilt: dict[str, str] = {}
            matching: dict[str, str] = {}
            revisions: list[int] = []

            def follow(event: Event) -> None:
                revisions.append(event.revision)
                replay(rebuilt, event)

            await one.watch("configmaps", sink=follow)
            await two.watch("configmaps", sink=lambda event: replay(matching, event), labelSelector="value=1")
            for verb, name, number, which in history:
                room = (one, two)[which]
                value = str(number)
                body = {"metadata": {"name": name, "labels": {"value": value}}}
                known = model.get(name)
                try:
                    if verb == "create":
                        await room.create("configmaps", body)
                        assert known is None
                        model[name] = (value, False, False)
                    elif verb == "put":
                        finalizers = ["example.com/hold"] if known and known[1] else []
                        body["metadata"]["finalizers"] = finalizers
                        await room.update("configmaps", body)
                        assert known is not None
                        model[name] = (value, *known[1:])
                    elif verb == "stale put":
                        body["metadata"]["resourceVersion"] = "1"
                        await room.update("configmaps", body)
                        raise AssertionError("a stale write passed")
                    elif verb == "patch":
                        await room.patch("configmaps", name, {"metadata": {"labels": {"value": value}}})
                        assert known is not None
                        model[name] = (value, *known[1:])
                    elif verb == "delete":
                        deleted = await room.delete("configmaps", name)
                        assert known is not None
                        assert deleted.gone is not known[1]
                        if deleted.gone:
                            del model[name]
                        else:
                            model[name] = (known[0], True, True)
                    elif verb == "hold":
                        await room.patch("configmaps", name, {"metadata": {"finalizers": ["example.com/hold"]}})
                        assert known is not None
                        model[name] = (known[0], True, known[2])
                    else:
                        await room.patch("configmaps", name, {"metadata": {"finalizers": None}})
                        assert known is not None
                        if known[2]:
                            del model[name]
                        else:
                            model[name] = (known[0], False, False)
                except AlreadyExistsError:
                    assert verb == "create"
                    assert known is not None
                except NotFoundError:
                    assert known is None
                except ConflictError:
                    assert verb == "stale put"
                    assert known is not None
            await one.settle()
            present = {name: item[0] for name, item in sorted(model.items())}
            for room in (one, two):
                listed = (await room.list("configmaps")).items
                assert {item.name: item.labels["value"] for item in listed} == present
                assert [item.name for item in listed] == sorted(model)
            assert rebuilt == present
            assert matching == {name: value for name, value in present.items() if value == "1"}
            assert revisions == sorted(set(revisions))

    asyncio.run(scenario())


def replay(state: dict[str, str], event: Event) -> None:
    """Apply an event as a client does: ADDED of a known and DELETED of an unknown object would be errors of the server."""
    assert event.stored is not None
    name = event.stored.name
    assert (name in state) is (event.type != "ADDED")
    if event.type == "DELETED":
        del state[name]
    else:
        state[name] = event.stored.labels["value"]


def stored_secret(name: str, size: int = 0) -> Stored:
    return Stored.of(SECRETS, "default", name, 7, encoded(SECRETS.resource, secret(name, data={"a": "A" * size})))


def test_decoded_objects_are_bounded_together_and_decoded_again_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = (stored_secret(name, 400) for name in ("one", "two", "six"))
    decoded = DecodedObjects(len(one.raw) + len(two.raw))
    monkeypatch.setattr(kept, "DECODED", decoded)
    first = one.obj
    assert one.obj is first, "decoded once"
    assert (two.obj, one.obj is first) == (two.obj, True)
    assert three.obj["metadata"]["name"] == "six"
    assert decoded.size == len(two.raw) + len(three.raw)
    assert one.obj == first
    assert one.obj is not first, "it was given up, and made again from the bytes"
    assert one.fields["metadata.name"] == "one"


def test_an_object_above_the_bound_is_decoded_each_time_and_kept_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "DECODED", DecodedObjects(100))
    large = stored_secret("large", 400)
    assert large.obj["data"] == {"a": "A" * 400}
    assert large.obj is not large.obj
    assert kept.DECODED.size == 0


@pytest.mark.parametrize(
    ("sizes", "share", "runs"),
    [
        pytest.param([], 1, [], id="nothing"),
        pytest.param([1, 1, 1], 1, [3], id="a few are one run"),
        pytest.param([1] * 9, 1, [4, 4, 1], id="no run has more than so many objects"),
        pytest.param([1] * 5, 2, [2, 2, 1], id="nor than their share"),
        pytest.param([5000, 1, 1, 1, 1, 1], 1, [1, 4, 1], id="a large object ends its run"),
        pytest.param([1, 5000], 1, [2], id="and may end the last one"),
    ],
)
def test_a_long_list_is_cut_into_runs(
    sizes: list[int], share: int, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooring.registry.cache.kindcache.SLICE_ITEMS", 4)
    monkeypatch.setattr("mooring.registry.cache.kindcache.SLICE_BYTES", 4096)
    items = [stored_secret(f"s{place}", size) for place, size in enumerate(sizes)]
    cut = [list(run) for run in slices(items, share)]
    assert [len(run) for run in cut] == runs
    assert [item for run in cut for item in run] == items


@pytest.mark.parametrize(("size", "collected"), [(LONG_BYTES, False), (10, True)], ids=["large", "small"])
def test_no_garbage_is_collected_while_a_large_object_is_decoded(
    size: int, collected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    decode = kept.decode

    def noted(raw: bytes) -> object:
        seen.append(gc.isenabled())
        return decode(raw)

    monkeypatch.setattr(kept, "decode", noted)
    assert stored_secret("a", size).obj["metadata"]["name"] == "a"
    assert seen == [collected]
    assert gc.isenabled()
    seen.clear()
    broken = Stored(SECRETS, SECRETS.key("default", "b"), 7, b"{" * (size + 1))
    with pytest.raises(StorageError):
        _ = broken.obj
    assert seen == [collected]
    assert gc.isenabled()
