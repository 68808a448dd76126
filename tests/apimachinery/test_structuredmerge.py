"""Walking objects by schema: which fields they set, how two differ, how two merge, what is left when fields go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.apply.fieldset import FieldSet, field_set_of, path_text, paths
from mooring.apimachinery.apply.structuredmerge import (
    Comparison,
    compare,
    field_set,
    merge,
    remove,
    with_enclosing_messages,
)
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar
from mooring.errors import BadRequestError

TEXTS = ListOf(Scalar.STRING)
ATOM = Message("t.Atom", (Field("a", 1, Scalar.STRING), Field("b", 2, Scalar.STRING)), atomic=True)
PORT = Message(
    "t.Port", (Field("port", 1, Scalar.INT32), Field("protocol", 2, Scalar.STRING), Field("x", 3, Scalar.STRING))
)
ITEM = Message(
    "t.Item",
    (
        Field("name", 1, Scalar.STRING),
        Field("image", 2, Scalar.STRING),
        Field("ports", 3, ListOf(PORT), list_keys=("port", "protocol")),
    ),
)
INNER = Message("t.Inner", (Field("x", 1, Scalar.STRING), Field("y", 2, Scalar.STRING)))
SHAPE = Message(
    "t.Shape",
    (
        Field("text", 1, Scalar.STRING),
        Field("map", 2, MapOf(Scalar.STRING)),
        Field("onemap", 3, MapOf(Scalar.STRING), map_atomic=True),
        Field("inner", 4, INNER),
        Field("pointed", 5, INNER, pointer=True),
        Field("atom", 6, ATOM),
        Field("list", 7, TEXTS),
        Field("set", 8, TEXTS, list_set=True),
        Field("items", 9, ListOf(ITEM), list_keys=("name",)),
        Field("inners", 10, MapOf(INNER)),
    ),
)


def told(fields: FieldSet) -> list[str]:
    return [path_text(path) for path in paths(fields)]


@pytest.mark.parametrize(
    ("obj", "fields"),
    [
        pytest.param({"text": "t"}, [".text"], id="a scalar"),
        pytest.param({"kind": "K", "apiVersion": "v", "more": 1}, [], id="nothing that the schema does not know"),
        pytest.param({"map": {"a": "1"}}, [".map.a"], id="the keys of a map, not the map"),
        pytest.param({"map": {}}, [".map"], id="an empty map"),
        pytest.param({"onemap": {"a": "1"}}, [".onemap"], id="an atomic map as one"),
        pytest.param({"inner": {"x": "1"}}, [".inner.x"], id="the members of a message"),
        pytest.param({"pointed": {}}, [".pointed"], id="an empty message"),
        pytest.param({"atom": {"a": "1"}}, [".atom"], id="an atomic message as one"),
        pytest.param({"list": ["a"]}, [".list"], id="an atomic list as one"),
        pytest.param({"set": ["a", "b"]}, ['.set[="a"]', '.set[="b"]'], id="each value of a set"),
        pytest.param(
            {"items": [{"name": "x", "ports": [{"port": 1}]}]},
            [
                '.items[name="x"]',
                '.items[name="x"].name',
                '.items[name="x"].ports[port=1,protocol="TCP"]',
                '.items[name="x"].ports[port=1,protocol="TCP"].port',
            ],
            id="each item of a keyed list, with the keys that were left out",
        ),
        pytest.param({"inners": {"k": {"x": "1"}}}, [".inners.k", ".inners.k.x"], id="the messages of a map"),
        pytest.param({"items": [], "set": []}, [], id="no list of items without an item"),
        pytest.param({"list": []}, [".list"], id="yet an empty list that is one value"),
        pytest.param(
            {"map": {"a": "1"}, "text": "t"}, [".text", ".map.a"], id="what is on a level before what is below"
        ),
        pytest.param(
            {"items": [{"name": "x", "ports": [{}]}]},
            ['.items[name="x"]', '.items[name="x"].name', '.items[name="x"].ports[protocol="TCP"]'],
            id="an item that says some of its keys",
        ),
    ],
)
def test_the_fields_of_an_object_are(obj: Obj, fields: list[str]) -> None:
    assert told(field_set(obj, SHAPE, strict=True)) == fields


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        pytest.param(
            {"items": [{"name": "x"}, {"image": "i"}]},
            ".items: element 1: associative list with keys has an element that omits all key fields "
            '["name"] (and doesn\'t have default values for any key fields)',
            id="an item without its key",
        ),
        pytest.param(
            {"items": [{"name": "x"}, {"name": "x"}]},
            '.items: duplicate entries for key [name="x"]',
            id="a key twice",
        ),
        pytest.param(
            {"set": ["a", "a"]},
            '.set: duplicate entries for key [="a"]',
            id="a value twice",
        ),
    ],
)
def test_an_applied_list_is_refused_with(obj: Obj, why: str) -> None:
    named = {"apiVersion": "tools.k8s.io/v1", "kind": "Box", "metadata": {"name": "b", "namespace": "n"}}
    for applied, which in ((obj, "/; /, Kind="), (obj | named, "n/b; tools.k8s.io/v1, Kind=Box")):
        with pytest.raises(BadRequestError) as caught:
            field_set(applied, SHAPE, strict=True)
        assert caught.value.message == f"failed to create typed patch object ({which}): {why}"
    field_set(obj, SHAPE)  # a stored object is what it is


NAMED = {"name": "x", "image": "1"}


@pytest.mark.parametrize(
    ("before", "after", "modified", "added", "removed"),
    [
        pytest.param({"text": "a"}, {"text": "b"}, [".text"], [], [], id="a scalar that changed"),
        pytest.param({"text": "a"}, {"text": "a"}, [], [], [], id="nothing"),
        pytest.param({}, {"map": {"a": "1"}}, [], [".map", ".map.a"], [], id="a new map and its keys"),
        pytest.param(
            {"map": {"a": "1", "b": "1"}}, {"map": {"b": "2"}}, [".map.b"], [], [".map.a"], id="keys of a map"
        ),
        pytest.param({"map": {}}, {"map": {"a": "1"}}, [], [".map.a"], [], id="the first key of a map"),
        pytest.param(
            {}, {"inner": {"x": "1"}}, [], [".inner.x"], [], id="a message that Go always has: its members only"
        ),
        pytest.param(
            {}, {"pointed": {"x": "1"}}, [], [".pointed", ".pointed.x"], [], id="a pointed message: itself, too"
        ),
        pytest.param({"pointed": {"x": "1"}}, {}, [], [], [".pointed", ".pointed.x"], id="a message that went"),
        pytest.param({}, {"inner": {}}, [], [], [], id="nothing in an empty message that Go always has"),
        pytest.param({}, {"pointed": {}}, [], [".pointed"], [], id="an empty message that is pointed to"),
        pytest.param({"atom": {"a": "1"}}, {"atom": {"a": "2"}}, [".atom"], [], [], id="an atomic message as one"),
        pytest.param({"onemap": {"a": "1"}}, {"onemap": {}}, [".onemap"], [], [], id="an atomic map as one"),
        pytest.param({"list": ["a"]}, {"list": ["b"]}, [".list"], [], [], id="an atomic list as one"),
        pytest.param(
            {"set": ["a", "b"]}, {"set": ["b", "c"]}, [], ['.set[="c"]'], ['.set[="a"]'], id="values of a set"
        ),
        pytest.param(
            {"items": [NAMED]}, {"items": [NAMED | {"image": "2"}]}, ['.items[name="x"].image'], [], [], id="an item"
        ),
        pytest.param(
            {"items": [NAMED, {"name": "y"}]}, {"items": [{"name": "y"}, NAMED]}, [], [], [], id="not an order"
        ),
        pytest.param(
            {"items": [NAMED, NAMED]}, {"items": [NAMED]}, ['.items[name="x"]'], [], [], id="twins that became one"
        ),
    ],
)
def test_comparing_finds(before: Obj, after: Obj, modified: list[str], added: list[str], removed: list[str]) -> None:
    found = compare(before, after, SHAPE)
    assert [told(found.modified), told(found.added), told(found.removed)] == [modified, added, removed]
    back = compare(after, before, SHAPE)
    assert [told(back.modified), told(back.added), told(back.removed)] == [modified, removed, added]


def test_no_difference_is_three_empty_sets() -> None:
    assert compare({}, {}, SHAPE) == Comparison({}, {}, {})


def names(*chosen: str) -> Obj:
    return {"items": [{"name": name} for name in chosen]}


@pytest.mark.parametrize(
    ("live", "applied", "merged"),
    [
        pytest.param(
            {"text": "a", "list": ["l"]}, {"text": "b"}, {"text": "b", "list": ["l"]}, id="scalars, one by one"
        ),
        pytest.param(
            {"map": {"a": "1", "b": "1"}}, {"map": {"a": "2"}}, {"map": {"a": "2", "b": "1"}}, id="maps by key"
        ),
        pytest.param({"atom": {"a": "1"}}, {"atom": {"b": "2"}}, {"atom": {"b": "2"}}, id="atomic messages as one"),
        pytest.param({"onemap": {"a": "1"}}, {"onemap": {"b": "2"}}, {"onemap": {"b": "2"}}, id="atomic maps as one"),
        pytest.param({"list": ["a"]}, {"list": []}, {"list": []}, id="atomic lists as one"),
        pytest.param({"set": ["a", "b"]}, {"set": ["c"]}, {"set": ["a", "b", "c"]}, id="sets by value"),
        pytest.param(
            {"items": [{"name": "x", "image": "1", "ports": [{"port": 1, "protocol": "TCP"}]}]},
            {"items": [{"name": "x", "ports": [{"port": 1, "x": "y"}]}]},
            {"items": [{"name": "x", "image": "1", "ports": [{"port": 1, "protocol": "TCP", "x": "y"}]}]},
            id="items by their keys",
        ),
        pytest.param(names("a", "b"), names("b", "a"), names("b", "a"), id="items in the applied order"),
        pytest.param(
            names("o", "a", "p", "b"), names("b", "a"), names("o", "p", "b", "a"), id="others where they stood"
        ),
        pytest.param(names("a", "o"), names("n", "a"), names("n", "a", "o"), id="new items in their place"),
        pytest.param(names("a", "o"), names("a", "n"), names("a", "o", "n"), id="new items behind what stood there"),
        pytest.param(
            names("c", "a", "b"), names("a", "c"), names("a", "b", "c"), id="others before what was moved behind them"
        ),
        pytest.param(
            {"items": [NAMED, NAMED, {"name": "y"}, {"name": "y"}]},
            {"items": [{"name": "x"}]},
            {"items": [{"name": "x"}, {"name": "y"}, {"name": "y"}]},
            id="one for twins that are applied, other twins as they are",
        ),
    ],
)
def test_merging_takes(live: Obj, applied: Obj, merged: Obj) -> None:
    assert merge(live, applied, SHAPE) == merged
    assert merge(merged, applied, SHAPE) == merged


ORDERS = st.lists(st.sampled_from("abcdef"), unique=True)


@given(ORDERS, ORDERS)
def test_merging_lists_keeps_both_orders_and_settles(live: list[str], applied: list[str]) -> None:
    merged = merge({"set": live}, {"set": applied}, SHAPE)
    assert sorted(merged["set"]) == sorted({*live, *applied})
    assert [value for value in merged["set"] if value in applied] == applied
    assert [value for value in merged["set"] if value not in applied] == [v for v in live if v not in applied]
    assert merge(merged, {"set": applied}, SHAPE) == merged


FULL: Obj = {
    "text": "t",
    "map": {"a": "1", "b": "2"},
    "inner": {"x": "1", "y": "2"},
    "set": ["a", "b"],
    "items": [{"name": "x", "image": "1"}, {"name": "y", "image": "2"}],
}


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        pytest.param([("f:text",)], {"text": None}, id="a scalar"),
        pytest.param([("f:map", "f:a")], {"map": {"b": "2"}}, id="a key of a map"),
        pytest.param([("f:map", "f:a"), ("f:map", "f:b")], {"map": None}, id="a map of which nothing is left"),
        pytest.param([("f:inner",)], {"inner": None}, id="a message with all that is in it"),
        pytest.param([("f:set", 'v:"a"')], {"set": ["b"]}, id="a value of a set"),
        pytest.param([("f:items", 'k:{"name":"x"}')], {"items": [FULL["items"][1]]}, id="an item"),
        pytest.param(
            [("f:items", 'k:{"name":"x"}', "f:image")],
            {"items": [{"name": "x"}, FULL["items"][1]]},
            id="a field of an item",
        ),
        pytest.param([("f:text", "f:nothing")], {}, id="nothing, where a set claims parts of a scalar"),
    ],
)
def test_removing_takes_away(gone: list[tuple[str, ...]], left: dict[str, Any]) -> None:
    wanted = {key: value for key, value in (FULL | left).items() if value is not None}
    assert remove(FULL, field_set_of(*gone), SHAPE) == wanted


def test_twins_go_together_or_stay() -> None:
    twins = {"items": [NAMED, NAMED]}
    assert remove(twins, field_set_of(("f:items", 'k:{"name":"x"}', "f:image")), SHAPE) == twins
    assert remove(twins, field_set_of(("f:items", 'k:{"name":"x"}')), SHAPE) == {}


def test_a_message_is_a_member_when_one_of_its_fields_is() -> None:
    fields = field_set_of(("f:inner", "f:x"), ("f:map", "f:a"), ("f:items", 'k:{"name":"x"}', "f:image"))
    assert told(with_enclosing_messages(fields, SHAPE)) == [".inner", ".inner.x", '.items[name="x"].image', ".map.a"]


def test_items_with_equal_keys_are_one_part_however_many() -> None:
    many: Obj = {"items": [{"name": "a", "image": image} for image in ("1", "2", "3")]}
    one: Obj = {"items": [{"name": "a", "image": "1"}]}
    assert told(compare(many, one, SHAPE).modified) != []
    assert told(compare(many, many, SHAPE).modified) == []
