"""Field sets: parsing of FieldsV1, and the set operations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.apply import fieldset
from mooring.apimachinery.apply.fieldset import (
    FieldSet,
    Path,
    contains,
    difference,
    field_set_of,
    intersection,
    parse_field_set,
    paths,
    union,
)
from tests.support.work import work

ELEMENTS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"x"', "i:0"])
PATHS = st.lists(ELEMENTS, min_size=1, max_size=4).map(tuple)
PATH_SETS = st.sets(PATHS, max_size=8)


def members(fields: FieldSet) -> set[Path]:
    return set(paths(fields))


@given(PATH_SETS)
def test_a_set_has_the_paths_it_was_made_of(chosen: set[Path]) -> None:
    fields = field_set_of(*chosen)
    assert members(fields) == chosen
    assert all(contains(fields, path) for path in chosen)


@given(PATH_SETS, PATHS)
def test_contains_checks_exactly_one_path(chosen: set[Path], path: Path) -> None:
    assert contains(field_set_of(*chosen), path) == (path in chosen)


def test_the_root_is_in_no_set() -> None:
    assert not contains(field_set_of(("f:a",)), ())


@given(PATH_SETS, PATH_SETS)
def test_the_algebra_is_that_of_sets_of_paths(a: set[Path], b: set[Path]) -> None:
    left, right = field_set_of(*a), field_set_of(*b)
    assert members(union(left, right)) == a | b
    assert members(intersection(left, right)) == a & b
    assert members(difference(left, right)) == a - b
    assert (left, right) == (field_set_of(*a), field_set_of(*b)), "nothing given is changed"


def test_an_unrelated_path_is_neither_above_a_member_nor_in_an_item_with_one() -> None:
    item = 'k:{"name":"c"}'
    have = field_set_of(
        ("f:a",), ("f:a", "f:b"), ("f:a", "f:c"), ("f:l", item, "f:x"), ("f:l", "k:{}", "f:x"), ("f:m",)
    )
    known = field_set_of(("f:a", "f:b"), ("f:l", item, "f:y"))
    assert members(fieldset.unrelated(have, known)) == {("f:a", "f:c"), ("f:l", "k:{}", "f:x"), ("f:m",)}
    assert fieldset.unrelated({".": {}, "f:a": {}}, {}) == {"f:a": {}}


@given(st.lists(PATH_SETS, max_size=5))
def test_many_sets_unite_as_two_do(sets: list[set[Path]]) -> None:
    assert members(fieldset.union_all(field_set_of(*one) for one in sets)) == set().union(*sets)


@given(PATH_SETS)
def test_parsing_inverts_sorting(chosen: set[Path]) -> None:
    fields = field_set_of(*chosen)
    assert parse_field_set(fieldset.sorted_field_set(fields)) == fields
    assert list(fieldset.sorted_field_set(fields)) == sorted(fields)


@pytest.mark.parametrize(
    ("said", "path"),
    [
        pytest.param({"f:data": {"f:a": {}}}, ("f:data", "f:a"), id="a member of a member"),
        pytest.param({"f:data": {".": {}, "f:a": {}}}, ("f:data",), id="a member that has members"),
        pytest.param({'k:{"b": 1,"a":"x"}': {}}, ('k:{"a":"x","b":1}',), id="keys, sorted and compact"),
        pytest.param({'v:{"a": [1, true]}': {}}, ('v:{"a":[1,true]}',), id="a value, compact"),
        pytest.param({'v:"é"': {}}, ('v:"é"',), id="a value that is not ASCII"),
        pytest.param({"i:12": {}}, ("i:12",), id="a position"),
        pytest.param({".": {}, "f:a": {}}, ("f:a",), id="a root that calls itself a member"),
    ],
)
def test_fields_v1_is_read(said: dict[str, Any], path: Path) -> None:
    assert contains(parse_field_set(said), path)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([], id="a list"),
        pytest.param({"f:a": None}, id="a child that is no object"),
        pytest.param({"a": {}}, id="a key without its kind"),
        pytest.param({"x:a": {}}, id="a kind that does not exist"),
        pytest.param({"k:[]": {}}, id="keys that are no object"),
        pytest.param({"k:{": {}}, id="keys that are no JSON"),
        pytest.param({"v:": {}}, id="a value that is not there"),
        pytest.param({"v:" + "[" * 100_000: {}}, id="a value without end"),
        pytest.param({"v:" + "[" * 900 + "]" * 900: {}}, id="a value that nests too deeply to be written"),
        pytest.param({'v:"\\ud800"': {}}, id="half a character"),
        pytest.param({"i:": {}}, id="no position"),
        pytest.param({"i:-1": {}}, id="a position before the first"),
        pytest.param({"i:²": {}}, id="a position in other digits"),
    ],
)
def test_other_json_than_fields_v1_is_refused(said: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_field_set(said)


JUNK_KEYS = st.sampled_from([".", "f:", "f:a", "k:", "k:{", "v:", "v:]", "i:x"]) | st.text(max_size=4)


@given(
    st.recursive(
        st.sampled_from([{}, None, 1]), lambda below: st.dictionaries(JUNK_KEYS, below, max_size=3), max_leaves=8
    )
)
def test_junk_never_crashes(junk: Any) -> None:
    try:
        parse_field_set(junk)
    except ValueError:
        return


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(("f:data", "f:a.b/c"), ".data.a.b/c", id="members"),
        pytest.param(
            ("f:spec", "f:containers", 'k:{"name":"web"}', "f:image"), '.spec.containers[name="web"].image', id="a key"
        ),
        pytest.param(
            ("f:ports", 'k:{"containerPort":80,"protocol":"TCP"}'),
            '.ports[containerPort=80,protocol="TCP"]',
            id="two keys",
        ),
        pytest.param(("f:finalizers", 'v:"x/y"'), '.finalizers[="x/y"]', id="a value"),
        pytest.param(("f:args", "i:3"), ".args[3]", id="a position"),
    ],
)
def test_a_path_prints_as_people_read_it(path: Path, text: str) -> None:
    assert fieldset.path_text(path) == text


def test_a_long_element_is_cut_unread() -> None:
    path = ("f:a", fieldset.key_element({"name": "x" * 100_000}), "f:b")
    assert fieldset.path_text(path) == '.a.{"name":"' + "x" * 501 + "....b"
    assert work(lambda: fieldset.path_text(path)) < 60
