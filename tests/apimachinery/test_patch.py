"""JSON Patch and merge patch. Vectors: the appendices of RFC 6902 (A) and RFC 7386 (A)."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec.json import MAX_DEPTH, deep_copy
from mooring.apimachinery.patch import MAX_MOVED, MAX_OPERATIONS, json_patch, merge_patch
from mooring.errors import ApiError, BadRequestError, InvalidError, PatchRejectedError, RequestEntityTooLargeError


@pytest.mark.parametrize(
    ("obj", "operation", "expected"),
    [
        ({"foo": "bar"}, {"op": "add", "path": "/baz", "value": "qux"}, {"baz": "qux", "foo": "bar"}),
        ({"foo": ["a", "b"]}, {"op": "add", "path": "/foo/1", "value": "q"}, {"foo": ["a", "q", "b"]}),
        ({"baz": 1, "foo": 2}, {"op": "remove", "path": "/baz"}, {"foo": 2}),
        ({"foo": [1, 2, 3]}, {"op": "remove", "path": "/foo/1"}, {"foo": [1, 3]}),
        ({"baz": 1}, {"op": "replace", "path": "/baz", "value": 2}, {"baz": 2}),
        ({"a": {"b": 1}, "c": {}}, {"op": "move", "from": "/a/b", "path": "/c/b"}, {"a": {}, "c": {"b": 1}}),
        ({"a": [1]}, {"op": "copy", "from": "/a", "path": "/b"}, {"a": [1], "b": [1]}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": 1}, {"a": 1}),
        ({"foo": 1}, {"op": "add", "path": "/c", "value": {"d": {}}, "xyz": 1}, {"foo": 1, "c": {"d": {}}}),
        ({"/": 9, "~1": 10}, {"op": "test", "path": "/~01", "value": 10}, {"/": 9, "~1": 10}),
        ({"foo": ["bar"]}, {"op": "add", "path": "/foo/-", "value": ["x"]}, {"foo": ["bar", ["x"]]}),
        ({"a": 1}, {"op": "replace", "path": "", "value": {"b": 2}}, {"b": 2}),
    ],
)
def test_one_operation_does_what_the_rfc_shows(obj: Any, operation: dict[str, Any], expected: Any) -> None:
    before = copy.deepcopy(obj)
    assert json_patch(obj, [operation]) == expected
    assert json_patch(obj, json.dumps([operation]).encode()) == expected
    assert obj == before


@pytest.mark.parametrize(
    ("obj", "path", "holds"),
    [
        pytest.param({}, "/a", True, id="a member that is not there"),
        pytest.param({"a": {}}, "/a/b", True, id="deeper"),
        pytest.param({"a": None}, "/a", True, id="null"),
        pytest.param({"a": 0}, "/a", False, id="not another value"),
        pytest.param({}, "/a/b", False, id="not without what would hold the member"),
        pytest.param({"a": []}, "/a/0", False, id="not an item of a list"),
        pytest.param({"a": "x"}, "/a/b", False, id="nothing in a text"),
        pytest.param({}, "", False, id="nor the object itself"),
    ],
)
def test_a_test_against_null_succeeds_for_an_absent_member(obj: Any, path: str, holds: bool) -> None:
    operations = [{"op": "test", "path": path, "value": None}, {"op": "add", "path": "/ok", "value": 1}]
    if holds:
        assert json_patch(obj, operations) == {**obj, "ok": 1}
    else:
        with pytest.raises(InvalidError):
            json_patch(obj, operations)


UPSTREAM = {"data": {"k": "v"}, "l": [1, 2], "n": 1}


@pytest.mark.parametrize(
    ("operations", "changed"),
    [
        pytest.param([{"op": "replace", "path": "/x", "value": 1}], {"x": 1}, id="replace adds a missing member"),
        pytest.param(
            [{"op": "copy", "from": "/x", "path": "/y"}], {"y": None}, id="copy of a missing member gives null"
        ),
        pytest.param([{"op": "add", "path": "/x"}], {"x": None}, id="add without a value gives null"),
        pytest.param([{"op": "replace", "path": "/n"}], {"n": None}, id="replace without a value gives null"),
        pytest.param(
            [{"op": "add", "path": "data/x", "value": 1}], {"x": 1}, id="text before the first slash is passed over"
        ),
        pytest.param([{"op": "add", "path": "/l/-1", "value": 3}], {"l": [1, 2, 3]}, id="add at -1 is behind the last"),
        pytest.param(
            [{"op": "add", "path": "/l/-3", "value": 3}], {"l": [3, 1, 2]}, id="add at -3 is before the first of two"
        ),
        pytest.param([{"op": "replace", "path": "/l/-1", "value": 3}], {"l": [1, 3]}, id="replace at -1 is the last"),
        pytest.param([{"op": "remove", "path": "/l/-2"}], {"l": [2]}, id="remove at -2 is the last but one"),
        pytest.param(
            [{"op": "add", "path": "/l/+01", "value": 3}], {"l": [1, 3, 2]}, id="indices are read as Go reads them"
        ),
        pytest.param([{"op": "add", "path": "/~2", "value": 1}], {"~2": 1}, id="an unknown escape is itself"),
        pytest.param([{"op": "test", "path": "/x"}], {}, id="a missing member passes a test without a value"),
        pytest.param([None], None, id="null is an operation without op"),
        pytest.param([{"op": "test", "path": "/n", "value": True}], None, id="true is not 1"),
        pytest.param([{"op": "test", "path": "/n", "value": 1.0}], None, id="1.0 is not 1"),
        pytest.param([{"op": "test", "path": "/data/k", "value": "no"}], None, id="another value"),
        pytest.param([{"op": "test", "path": "/x/y", "value": 1}], None, id="nothing holds the member"),
        pytest.param([{"op": "remove", "path": "/x"}], None, id="remove of a missing member"),
        pytest.param([{"op": "remove", "path": ""}], None, id="remove of everything"),
        pytest.param([{"op": "replace", "path": "/l/7", "value": 1}], None, id="an index behind the end"),
        pytest.param([{"op": "replace", "path": "/l/-3", "value": 1}], None, id="an index before the beginning"),
        pytest.param([{"op": "add", "path": "/l/x", "value": 1}], None, id="no index"),
        pytest.param([{"op": "add", "path": "/l/1" + "0" * 30, "value": 1}], None, id="an index that Go cannot read"),
        pytest.param([{"op": "add", "path": "/n/x", "value": 1}], None, id="a number holds nothing"),
        pytest.param([{"op": "test", "path": "/n/x/y"}], None, id="nor does a number inside a path"),
        pytest.param([{"op": "copy", "from": "/l/-", "path": "/y"}], None, id="the end of a list is no item"),
        pytest.param([{"op": "move", "from": "/x", "path": "/y"}], None, id="move of a missing member"),
        pytest.param([{"op": "move", "from": "/data", "path": "/data/k"}], None, id="move into itself"),
        pytest.param([{"op": "move", "path": "/y"}], None, id="move without from"),
        pytest.param([{"op": "copy", "from": 1, "path": "/y"}], None, id="from that is no text"),
        pytest.param([{"op": "remove"}], None, id="no path"),
        pytest.param([{"op": "add", "path": 1, "value": 1}], None, id="path that is no text"),
        pytest.param([{"op": "add", "path": "x", "value": 1}], None, id="path without a slash"),
        pytest.param([{"op": "take", "path": "/n"}], None, id="unknown op"),
        pytest.param([{"op": ["add"], "path": "/x"}], None, id="op that is no text"),
    ],
)
def test_what_the_library_of_kube_apiserver_does(operations: Any, changed: dict[str, Any] | None) -> None:
    if changed is not None:
        assert json_patch(UPSTREAM, operations) == UPSTREAM | changed
        return
    with pytest.raises(PatchRejectedError) as caught:
        json_patch(UPSTREAM, operations)
    assert str(caught.value) == "the server rejected our request due to an error in our request"


@pytest.mark.parametrize("value", [[], 1, None, "x"])
def test_a_patch_must_leave_an_object(value: Any) -> None:
    with pytest.raises(PatchRejectedError):
        json_patch({"a": 1}, [{"op": "replace", "path": "", "value": value}])


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[" * 102 + b"]" * 102, f"exceeded max depth of {MAX_DEPTH}"),
    ],
)
def test_a_json_patch_that_cannot_be_read_is_a_bad_request(operations: Any, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        json_patch({}, operations)
    assert str(caught.value) == f"error decoding patch: {message}"


@pytest.mark.parametrize("operations", [b"{}", b'"x"', [1], [{"op": "add", "path": ""}, []]])
def test_a_json_patch_is_a_list_of_objects(operations: Any) -> None:
    with pytest.raises(BadRequestError, match=r"into Go value of type (\[\])?handlers\.jsonPatchOp$"):
        json_patch({}, operations)


def test_a_failed_patch_changes_nothing() -> None:
    obj = {"a": {"b": [1]}}
    with pytest.raises(InvalidError):
        json_patch(obj, [{"op": "add", "path": "/a/b/-", "value": 2}, {"op": "test", "path": "/a", "value": 1}])
    assert obj == {"a": {"b": [1]}}


def test_a_patched_object_shares_nothing_with_the_patch() -> None:
    value: dict[str, Any] = {"x": []}
    after = json_patch({}, [{"op": "add", "path": "/a", "value": value}, {"op": "add", "path": "/a/x/-", "value": 1}])
    assert (after, value) == ({"a": {"x": [1]}}, {"x": []})


def test_more_operations_than_allowed_are_too_large() -> None:
    one = {"op": "test", "path": "", "value": {}}
    assert json_patch({}, [one] * MAX_OPERATIONS) == {}
    with pytest.raises(RequestEntityTooLargeError) as caught:
        json_patch({}, [one] * (MAX_OPERATIONS + 1))
    assert str(caught.value) == (
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"
    )


def test_copies_cannot_double_an_object_for_ever() -> None:
    double = {"op": "copy", "from": "/x", "path": "/x/-"}
    with pytest.raises(PatchRejectedError):
        json_patch({"x": ["x" * 1000]}, [double] * 9000)


@pytest.mark.parametrize("operation", [{"op": "add", "path": "/l/0", "value": 1}, {"op": "remove", "path": "/l/0"}])
def test_operations_cannot_move_long_lists_for_ever(operation: dict[str, Any]) -> None:
    few = MAX_MOVED // 1_000_000 - 1
    assert json_patch({"l": [1] * 1_000_000}, [operation] * few)
    with pytest.raises(PatchRejectedError):
        json_patch({"l": [1] * 1_000_000}, [operation] * (few + 5))


def test_moves_cannot_nest_an_object_for_ever() -> None:
    nest = [{"op": "add", "path": "/n", "value": {}}, {"op": "move", "from": "/r", "path": "/n/r"}]
    nest.append({"op": "move", "from": "/n", "path": "/r"})
    with pytest.raises(PatchRejectedError):
        json_patch({"r": {}}, nest * 3000)
    with pytest.raises(PatchRejectedError):
        json_patch({"r": {}}, [*nest * 3000, {"op": "copy", "from": "/r", "path": "/c"}])


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text("ab~/", max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab", max_size=1), inner, max_size=3)),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text("ab", max_size=1), JSON, max_size=3)
STEPS = st.sampled_from(["a", "b", "", "0", "1", "-", "~0", "~", "99999999999999999999"])
POINTERS = st.one_of(JSON, st.lists(STEPS, max_size=3).map(lambda parts: "".join(f"/{part}" for part in parts)))
OPERATIONS = st.fixed_dictionaries(
    {"op": st.one_of(JSON, st.sampled_from(["add", "remove", "replace", "move", "copy", "test"])), "path": POINTERS},
    optional={"value": JSON, "from": POINTERS},
)


@given(OBJECTS, st.one_of(JSON, st.lists(OPERATIONS, max_size=4)))
def test_a_junk_json_patch_is_never_more_than_refused(obj: dict[str, Any], operations: Any) -> None:
    before = copy.deepcopy(obj)
    with contextlib.suppress(ApiError):
        assert isinstance(json_patch(obj, operations), dict)
    assert obj == before


@pytest.mark.parametrize(
    ("obj", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": 1}, {"a": {"b": 2, "c": None}}, {"a": {"b": 2}}),
        ({}, {"a": [None, {"b": None}]}, {"a": [None, {"b": None}]}),
    ],
)
def test_a_merge_patch_does_what_the_rfc_shows(obj: Any, patch: Any, expected: Any) -> None:
    before = copy.deepcopy(obj)
    assert merge_patch(obj, patch) == expected
    assert merge_patch(obj, json.dumps(patch).encode()) == expected
    assert obj == before


def test_a_merge_patch_keeps_members_in_their_place() -> None:
    assert list(merge_patch({"a": 1, "b": 2, "c": 3}, {"d": 4, "b": 5})) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("patch", [b"[]", b"1", b"null", [], 1])
def test_a_merge_patch_is_an_object(patch: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        merge_patch({}, patch)
    assert str(caught.value) == "error decoding patch: it must be a JSON object"


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The merge patch that makes `after` of `before`."""
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            patch[key] = difference(before[key], value)
        elif key not in before or before[key] != value or type(before[key]) is not type(value):
            patch[key] = value
    return patch


CLEAN = OBJECTS.map(without_nulls)


@given(CLEAN, CLEAN)
def test_the_difference_of_two_objects_leads_from_one_to_the_other(before: Any, after: Any) -> None:
    assert merge_patch(before, difference(before, after)) == after


@given(OBJECTS, OBJECTS)
def test_merging_twice_changes_nothing_more(obj: Any, patch: Any) -> None:
    once = merge_patch(obj, patch)
    assert merge_patch(once, patch) == once
    assert merge_patch(obj, {}) == obj


@given(JSON)
def test_a_copy_is_equal_and_shares_no_container(value: Any) -> None:
    again = deep_copy(value)
    assert again == value
    assert again is not value or not isinstance(value, dict | list)
