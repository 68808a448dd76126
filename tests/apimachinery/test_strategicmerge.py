"""Strategic merge patch (docs/protocol/patches.md#strategic-merge). Expected orders were worked out from the documented weaving
rule."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.patch import MAX_REPEATED, strategic_merge_patch
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar
from mooring.errors import ApiError, BadRequestError, PatchRejectedError

PORT = Message("Port", (Field("port", 1, Scalar.INT32), Field("tags", 2, ListOf(Scalar.STRING), patch="merge")))
ITEM = Message(
    "Item",
    (
        Field("name", 1, Scalar.STRING),
        Field("value", 2, Scalar.STRING),
        Field("ports", 3, ListOf(PORT), patch="merge", patch_key="port"),
    ),
)
SPEC = Message(
    "Spec",
    (
        Field("set", 1, ListOf(Scalar.STRING), patch="merge"),
        Field("items", 2, ListOf(ITEM), patch="merge", patch_key="name"),
        Field("atomic", 3, ListOf(ITEM)),
        Field("labels", 4, MapOf(Scalar.STRING)),
        Field("byName", 5, MapOf(ITEM)),
        Field("spec", 6, ITEM),
        Field("odd", 7, Scalar.STRING, patch="merge"),
    ),
)


def items(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


@pytest.mark.parametrize(
    ("obj", "patch", "expected"),
    [
        pytest.param({"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 3}, id="unknown scalars replace"),
        pytest.param({"a": {"x": 1}}, {"a": {"y": [1]}}, {"a": {"x": 1, "y": [1]}}, id="unknown objects merge"),
        pytest.param({"a": [1, 2]}, {"a": [3]}, {"a": [3]}, id="unknown lists replace"),
        pytest.param({"a": 1, "b": 2}, {"a": None, "c": None}, {"b": 2}, id="null removes and adds nothing"),
        pytest.param(
            {}, {"a": {"b": None, "c": {"d": None}}}, {"a": {"c": {}}}, id="nested nulls of a new member vanish"
        ),
        pytest.param({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}, id="an object replaces a scalar"),
        pytest.param({"labels": {"a": "1"}}, {"labels": {"b": "2"}}, {"labels": {"a": "1", "b": "2"}}, id="maps merge"),
        pytest.param(
            {"byName": {"x": {"ports": [{"port": 1}]}}},
            {"byName": {"x": {"ports": [{"port": 1, "tags": ["t"]}]}}},
            {"byName": {"x": {"ports": [{"port": 1, "tags": ["t"]}]}}},
            id="the values of a map keep their schema",
        ),
        pytest.param({"set": ["a", "b"]}, {"set": ["b", "c"]}, {"set": ["a", "b", "c"]}, id="primitives are a set"),
        pytest.param({"set": ["a", "b"]}, {"set": ["c"]}, {"set": ["c", "a", "b"]}, id="a new primitive comes first"),
        pytest.param({}, {"set": ["b", "a", "b"]}, {"set": ["b", "a"]}, id="a new set has no duplicates"),
        pytest.param({"set": "x"}, {"set": ["a"]}, {"set": ["a"]}, id="a list replaces what is no list"),
        pytest.param({"odd": ["x"]}, {"odd": ["a"]}, {"odd": ["a"]}, id="only a list field merges lists"),
        pytest.param(
            {"items": [{"name": "a", "value": "1"}, {"name": "b"}]},
            {"items": [{"name": "a", "value": "2"}]},
            {"items": [{"name": "a", "value": "2"}, {"name": "b"}]},
            id="elements merge by key",
        ),
        pytest.param(
            {"items": items("a", "b")}, {"items": items("c")}, {"items": items("c", "a", "b")}, id="new first"
        ),
        pytest.param(
            {"items": items("a", "b", "c")},
            {"items": items("c", "a")},
            {"items": items("b", "c", "a")},
            id="patch order",
        ),
        pytest.param(
            {"items": [{"name": "a", "ports": [{"port": 1, "tags": ["x"]}]}]},
            {"items": [{"name": "a", "ports": [{"port": 1, "tags": ["y"]}, {"port": 2}]}]},
            {"items": [{"name": "a", "ports": [{"port": 1, "tags": ["y", "x"]}, {"port": 2}]}]},
            id="lists merge inside elements",
        ),
        pytest.param({"atomic": items("a")}, {"atomic": items("b")}, {"atomic": items("b")}, id="atomic lists replace"),
        pytest.param(
            {"atomic": items("a")},
            {"atomic": [{"name": "b", "value": None}, {"$patch": "delete", "name": "x"}, {"$patch": "replace"}]},
            {"atomic": [{"name": "b"}, {"$patch": "delete", "name": "x"}, {"$patch": "replace"}]},
            id="directives in an atomic list are unknown fields",
        ),
        pytest.param(
            {"items": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]},
            {"items": [{"name": "a", "value": "3"}]},
            {"items": [{"name": "a", "value": "3"}, {"name": "a", "value": "2"}]},
            id="only the first of equal keys merges",
        ),
        pytest.param(
            {"items": items("a", "b")},
            {"items": [{"name": "a", "$patch": "delete"}]},
            {"items": items("b")},
            id="delete",
        ),
        pytest.param(
            {}, {"items": [{"name": "a", "$patch": "delete"}]}, {"items": []}, id="deleting what is not there"
        ),
        pytest.param(
            {"items": items("a", "b")},
            {"items": [{"$patch": "replace"}, {"name": "c", "value": None}]},
            {"items": items("c")},
            id="replace a list",
        ),
        pytest.param({"items": items("a")}, {"items": [{"$patch": "replace"}]}, {"items": []}, id="replace by nothing"),
        pytest.param(
            {"items": items("a")},
            {"items": [{"name": "a", "value": "1", "$patch": "merge"}]},
            {"items": [{"name": "a", "value": "1"}]},
            id="merge is what happens anyway",
        ),
        pytest.param(
            {"labels": {"a": "1"}},
            {"labels": {"$patch": "replace", "b": "2", "c": None, "d": {"e": None}}},
            {"labels": {"b": "2", "d": {}}},
            id="replace an object",
        ),
        pytest.param({"labels": {"a": "1"}}, {"labels": {"$patch": "delete"}}, {"labels": {}}, id="empty an object"),
        pytest.param(
            {}, {"labels": {"$patch": "replace", "b": "2"}}, {"labels": {"b": "2"}}, id="replace in a new object"
        ),
        pytest.param(
            {"set": ["a", "b", "c"]},
            {"$deleteFromPrimitiveList/set": ["b", "x"]},
            {"set": ["a", "c"]},
            id="delete values",
        ),
        pytest.param(
            {"set": ["a", "b"]},
            {"set": ["c"], "$deleteFromPrimitiveList/set": ["a"], "$setElementOrder/set": ["b", "c"]},
            {"set": ["b", "c"]},
            id="delete, add and order values",
        ),
        pytest.param({}, {"$deleteFromPrimitiveList/set": ["b"]}, {}, id="deleting from nothing"),
        pytest.param({"set": 1}, {"$deleteFromPrimitiveList/set": ["b"]}, {"set": 1}, id="deleting from no list"),
        pytest.param(
            {"items": items("a", "b", "c")},
            {"$setElementOrder/items": items("c", "a")},
            {"items": items("b", "c", "a")},
            id="order without a change",
        ),
        pytest.param(
            {"items": items("a", "b")},
            {"$setElementOrder/items": items("a", "c", "b"), "items": [{"name": "c", "value": "1"}]},
            {"items": [{"name": "a"}, {"name": "c", "value": "1"}, {"name": "b"}]},
            id="order with a new element",
        ),
        pytest.param(
            {},
            {"$setElementOrder/items": items("b", "a"), "items": items("b", "a")},
            {"items": items("b", "a")},
            id="order of a new list",
        ),
        pytest.param({}, {"$setElementOrder/items": items("a")}, {}, id="order of nothing"),
        pytest.param({"items": 1}, {"$setElementOrder/items": items("a")}, {"items": 1}, id="order of no list"),
        pytest.param(
            {"items": 1},
            {"$setElementOrder/items": items("a"), "items": items("a")},
            {"items": items("a")},
            id="order of a list that replaces a scalar",
        ),
        pytest.param({"a": [1, 2]}, {"$setElementOrder/a": [2, 1]}, {"a": [2, 1]}, id="order of an unknown list"),
        pytest.param(
            {"spec": {"name": "a", "value": "1"}},
            {"spec": {"$retainKeys": ["value", "new"], "value": "2", "name": None}},
            {"spec": {"value": "2"}},
            id="retain keys",
        ),
        pytest.param(
            {"items": ["a"]}, {"items": items("a")}, {"items": [{"name": "a"}, "a"]}, id="a primitive is nobody"
        ),
        pytest.param({"$x": 1}, {"$y": 2}, {"$x": 1, "$y": 2}, id="a dollar alone is no directive"),
    ],
)
def test_a_patch_merges(obj: Any, patch: Any, expected: Any) -> None:
    before, asked = copy.deepcopy(obj), copy.deepcopy(patch)
    assert strategic_merge_patch(obj, patch, SPEC) == expected
    assert strategic_merge_patch(obj, json.dumps(patch).encode(), SPEC) == expected
    assert (obj, patch) == (before, asked)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (b"[]", "error decoding patch: it must be a JSON object"),
        ({"$patch": "drop"}, "unknown patch type in $patch: it is merge, replace or delete"),
        ({"items": [{"name": "a", "$patch": []}]}, "unknown patch type in $patch: it is merge, replace or delete"),
        ({"items": [{"value": "a"}]}, "invalid patch: an element of items does not contain declared merge key: name"),
        (
            {"items": [{"$patch": "delete"}]},
            "invalid patch: an element of items does not contain declared merge key: name",
        ),
        ({"items": ["a"]}, "invalid patch: items is a list of objects"),
        ({"set": [{}]}, "invalid patch: set is a list of primitives"),
        ({"$setElementOrder/set": "a"}, "invalid patch: $setElementOrder/set must be a list"),
        ({"$deleteFromPrimitiveList/set": {}}, "invalid patch: $deleteFromPrimitiveList/set must be a list"),
        (
            {"$setElementOrder/set": ["b", "a"], "set": ["a", "b"]},
            "invalid patch: the order in the patch of set does not match its $setElementOrder/ list",
        ),
        (
            {"$setElementOrder/items": items("a"), "items": items("b")},
            "invalid patch: the order in the patch of items does not match its $setElementOrder/ list",
        ),
        ({"$retainKeys": "a"}, "invalid patch format of retainKeys"),
        ({"$retainKeys": [1]}, "invalid patch format of retainKeys"),
    ],
)
def test_a_misused_directive_is_a_bad_request(patch: Any, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        strategic_merge_patch({"set": ["x"], "items": items("x")}, patch, SPEC)
    assert str(caught.value) == message


def test_a_member_that_retain_keys_does_not_list_is_rejected() -> None:
    with pytest.raises(PatchRejectedError):
        strategic_merge_patch({}, {"$retainKeys": ["a"], "b": 1}, SPEC)


def test_elements_with_the_same_key_merge_one_after_another_within_a_budget() -> None:
    def patch(times: int) -> Any:
        return {"items": [{"name": "a", f"k{number}": number} for number in range(times)]}

    merged = strategic_merge_patch({"items": [{"name": "a", "value": "v"}]}, patch(3), SPEC)
    assert merged == {"items": [{"name": "a", "value": "v", "k0": 0, "k1": 1, "k2": 2}]}
    large = {"items": [{"name": "a", "value": "v" * (MAX_REPEATED // 10)}]}
    strategic_merge_patch(large, patch(10), SPEC)
    with pytest.raises(PatchRejectedError):
        strategic_merge_patch(large, patch(11), SPEC)
    nested = {"byName": {str(number): {"ports": [{"port": 1}]} for number in range(3)}}
    repeated = {"ports": [{"port": 1, "text": "v" * (MAX_REPEATED // 4)}] * 3}
    strategic_merge_patch(nested, {"byName": {"0": repeated}}, SPEC)
    with pytest.raises(PatchRejectedError):  # the budget is that of the whole patch
        strategic_merge_patch(nested, {"byName": {"0": repeated, "1": repeated, "2": repeated}}, SPEC)


def test_true_is_not_one() -> None:
    assert strategic_merge_patch({"set": [1]}, {"set": [True]}, SPEC)["set"] == [True, 1]


def test_a_merged_object_shares_nothing_with_what_went_in() -> None:
    obj: dict[str, Any] = {"a": [[]], "items": [{"name": "a", "x": []}]}
    patch: dict[str, Any] = {"b": [[]], "items": [{"name": "b", "y": []}]}
    after = strategic_merge_patch(obj, patch, SPEC)
    after["a"][0].append(1)
    after["b"][0].append(1)
    for item in after["items"]:
        item.setdefault("x", []).append(1)
        item.setdefault("y", []).append(1)
    assert obj == {"a": [[]], "items": [{"name": "a", "x": []}]}
    assert patch == {"b": [[]], "items": [{"name": "b", "y": []}]}


NAMES = st.lists(st.sampled_from("abcde"), unique=True, max_size=5)


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What kubectl would send: changes, deletions and the order wanted."""
    patch: dict[str, Any] = {
        "$setElementOrder/items": [{"name": item["name"]} for item in after["items"]],
        "$setElementOrder/set": after["set"],
        "$deleteFromPrimitiveList/set": [value for value in before["set"] if value not in after["set"]],
        "set": [value for value in after["set"] if value not in before["set"]],
    }
    wanted = {item["name"] for item in after["items"]}
    patch["items"] = [item for item in after["items"] if item not in before["items"]] + [
        {"name": item["name"], "$patch": "delete"} for item in before["items"] if item["name"] not in wanted
    ]
    return patch


STATES = st.builds(
    lambda names, values, members: {
        "items": [{"name": name, "value": value} for name, value in zip(names, values, strict=True)],
        "set": members,
    },
    NAMES.map(lambda names: [*names, "x", "y", "z", "u", "v"][:5]),
    st.lists(st.sampled_from("12"), min_size=5, max_size=5),
    NAMES,
)


@given(STATES, STATES)
def test_applying_a_comparison_leads_from_one_state_to_the_other(before: Any, after: Any) -> None:
    assert strategic_merge_patch(before, difference(before, after), SPEC) == after


KEYS = st.sampled_from(
    ["a", "name", "items", "set", "atomic", "labels", "byName", "spec", "ports", "port", "odd", "$patch", "$retainKeys",
     "$setElementOrder/items", "$setElementOrder/set", "$deleteFromPrimitiveList/set", "$setElementOrder/atomic"]
)  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from(["a", "b", "delete", "replace", "merge"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=10,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)


def directives(value: Any) -> bool:
    """Return whether a directive is left, except in lists that are not merged."""
    if isinstance(value, dict):
        return "$patch" in value or any(
            directives(item) for key, item in value.items() if key not in ("atomic", "tags")
        )
    return isinstance(value, list) and any(directives(item) for item in value)


@given(OBJECTS, OBJECTS)
def test_a_junk_patch_is_never_more_than_refused_and_leaves_no_directive(obj: Any, patch: Any) -> None:
    before = copy.deepcopy(obj)
    try:
        after = strategic_merge_patch(obj, patch, SPEC)
    except ApiError:
        assert obj == before
        return
    assert obj == before
    assert directives(obj) or not directives(after)
