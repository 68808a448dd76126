"""Test the search for fields that a schema does not have."""

from __future__ import annotations

import pytest
from hypothesis import given

from mooring.apimachinery.codec.zerofields import has_unknown_fields
from mooring.apimachinery.schema import Obj
from tests.support.shapes import EXAMPLE, objects


@given(objects(EXAMPLE))
def test_an_object_of_the_schema_has_none(obj: Obj) -> None:
    assert not has_unknown_fields({**obj, "kind": "Example", "apiVersion": "v1"}, EXAMPLE)


@pytest.mark.parametrize(
    ("obj", "unknown"),
    [
        pytest.param({"new": 1}, True, id="a field of the object"),
        pytest.param({"part": {"id": "a", "new": 1}}, True, id="a field of a message"),
        pytest.param({"part": {"kind": "a"}}, True, id="a type below the top"),
        pytest.param({"parts": [{"id": "a"}, {"id": "b", "new": None}]}, True, id="a field of one message in a list"),
        pytest.param({"named": {"a": {"id": "a"}, "b": {"new": 1}}}, True, id="a field of one message in a map"),
        pytest.param({"metadata": {"ownerReferences": [{"new": 1}]}}, True, id="a field of the metadata"),
        pytest.param({"anything": {"new": 1}, "owned": {"f:new": {}}}, False, id="what is free-form"),
        pytest.param({"data": {"new": ""}, "limits": {"new": "1"}}, False, id="a key of a map"),
        pytest.param({"part": None, "parts": None, "named": {}}, False, id="parts that are absent"),
        pytest.param({"part": "text", "onlyJson": "a"}, False, id="a value of another type"),
    ],
)
def test_an_unknown_field_is_found_at_any_depth(obj: Obj, unknown: bool) -> None:
    assert has_unknown_fields(obj, EXAMPLE) is unknown
