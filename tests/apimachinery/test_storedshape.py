"""Test the shapes of stored objects: what fits a schema, and what is refused before anything reads it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from mooring.apimachinery.codec.storedvalue import shape_decoder
from mooring.apimachinery.schema import Field, Message, Obj, Scalar
from tests.support.shapes import EXAMPLE, EXAMPLE_PART, objects

EXACT = Message(
    "io.example.v1.Exact",
    (
        *EXAMPLE.fields,
        Field("spec", 40, EXAMPLE_PART, required=True),
        Field("needed", 41, Scalar.STRING, required=True),
    ),
)
SPEC = {"spec": {"id": "a"}}


def fits(obj: Obj, schema: Message = EXAMPLE, *, exact: bool = False) -> bool:
    try:
        shape_decoder(schema, exact=exact)(msgspec.json.encode({"kind": "Example", "apiVersion": "v1", **obj}))
    except msgspec.ValidationError:
        return False
    return True


@given(objects(EXAMPLE))
def test_an_object_of_the_schema_fits(obj: Obj) -> None:
    assert fits(obj)
    assert fits({**obj, **SPEC}, EXACT, exact=True)


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param({"text": 5}, id="a number as text"),
        pytest.param({"flag": "true"}, id="text as a flag"),
        pytest.param({"small": "5"}, id="text as a number"),
        pytest.param({"at": "yesterday"}, id="a text that is no time"),
        pytest.param({"precisely": "2026-01-01T00:00:00"}, id="a time without a zone"),
        pytest.param({"part": "x"}, id="text as a message"),
        pytest.param({"parts": {"id": "a"}}, id="a message as a list"),
        pytest.param({"parts": [{"id": 5}]}, id="a field of a message in a list"),
        pytest.param({"parts": [None]}, id="nothing in a list"),
        pytest.param({"named": {"a": "x"}}, id="a value of a map"),
        pytest.param({"data": ["x"]}, id="a list as a map"),
        pytest.param({"metadata": {"finalizers": "x"}}, id="a field of the metadata"),
    ],
)
def test_a_value_of_another_type(obj: Obj) -> None:
    assert not fits(obj)


@pytest.mark.parametrize(
    ("obj", "is_exact"),
    [
        pytest.param(SPEC, True, id="nothing else"),
        pytest.param({**SPEC, "data": {"a": None}, "named": {"b": None}}, True, id="what Go writes as null"),
        pytest.param({**SPEC, "metadata": {"new": 1}}, True, id="a new field of the metadata"),
        pytest.param({**SPEC, "metadata": {"ownerReferences": [{"new": 1}]}}, True, id="or below it"),
        pytest.param({**SPEC, "anything": {"new": 1}}, True, id="what is free-form"),
        pytest.param({**SPEC, "sp2c": {}}, False, id="a name that the object does not have"),
        pytest.param({"spec": {"id": "a", "siz2": 5}}, False, id="a name that a message does not have"),
        pytest.param({**SPEC, "parts": [{"id": "a", "siz2": 5}]}, False, id="one in a list"),
        pytest.param({}, False, id="without its spec"),
        pytest.param({"spec": None}, False, id="with an empty spec"),
    ],
)
def test_what_an_exact_shape_refuses(obj: Obj, is_exact: bool) -> None:
    assert fits(obj, EXACT)
    assert fits(obj, EXACT, exact=True) is is_exact
