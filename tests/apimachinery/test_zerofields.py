"""Fields that Go writes even when they are zero: which ones, with which zero, and that nothing else is touched."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.kind import Kind
from mooring.api.kinds import KINDS
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.apimachinery.codec.zerofields import complete, has_structs
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar
from tests.support.examples import one_in
from tests.support.shapes import objects

PART = Message("t.Part", (Field("id", 1, Scalar.STRING, required=True), Field("note", 2, Scalar.STRING)))
PLAIN = Message("t.Plain", (Field("note", 1, Scalar.STRING),))
WHOLE = Message(
    "t.Whole",
    (
        Field("struct", 1, PART),
        Field("pointer", 2, PART, pointer=True),
        Field("items", 3, ListOf(PART)),
        Field("by_name", 4, MapOf(PART)),
        Field("at", 5, Scalar.TIME),
        Field("later", 6, Scalar.MICRO_TIME, pointer=True),
        Field("zeroed", 7, Scalar.TIME, always=False),
        Field("amount", 8, Scalar.QUANTITY),
        Field("port", 9, Scalar.INT_OR_STRING),
        Field("names", 10, ListOf(Scalar.STRING), always=True),
        Field("verbs", 11, ListOf(Scalar.STRING), required=True),
        Field("plain", 12, ListOf(PLAIN)),
        Field("blob", 13, Scalar.BYTES, required=True),
    ),
)
ZEROS: Obj = {"struct": {"id": ""}, "at": None, "amount": "0", "port": 0, "names": None, "verbs": None}


@pytest.mark.parametrize(
    ("obj", "completed"),
    [
        pytest.param({}, ZEROS, id="structs, times and bare lists are there in an empty object"),
        pytest.param(
            {"struct": {"note": "a"}}, ZEROS | {"struct": {"note": "a", "id": ""}}, id="a struct keeps its members"
        ),
        pytest.param({"pointer": {}}, ZEROS | {"pointer": {"id": ""}}, id="a pointer that is set has its own zeros"),
        pytest.param({"items": [{}]}, ZEROS | {"items": [{"id": ""}]}, id="items of a list have theirs"),
        pytest.param({"by_name": {"a": {}}}, ZEROS | {"by_name": {"a": {"id": ""}}}, id="values of a map have theirs"),
        pytest.param({"struct": None}, ZEROS, id="a null struct is an empty one"),
        pytest.param({"plain": [{}]}, ZEROS | {"plain": [{}]}, id="parts without such fields stay as they are"),
    ],
)
def test_what_go_writes_is_there(obj: Obj, completed: Obj) -> None:
    assert complete(obj, WHOLE) is True
    assert obj == completed
    assert complete(obj, WHOLE) is False


@pytest.mark.parametrize(
    ("fields", "inside"),
    [
        pytest.param(
            (Field("note", 1, Scalar.STRING, required=True),), False, id="required scalars were always written"
        ),
        pytest.param((Field("metadata", 1, WHOLE),), False, id="metadata does not count"),
        pytest.param((Field("part", 1, PLAIN),), True, id="a struct counts"),
        pytest.param((Field("part", 1, ListOf(MapOf(WHOLE))),), True, id="a struct in a list of maps counts"),
        pytest.param((Field("parts", 1, ListOf(PLAIN)),), False, id="a list of plain parts does not"),
    ],
)
def test_kinds_whose_stored_objects_may_lack_something(fields: tuple[Field, ...], inside: bool) -> None:
    schema = Message("t.Kind", fields)
    assert has_structs(schema) is inside
    assert has_structs(schema) is inside


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.resource.plural} of {kind.resource.group or 'core'}")
@one_in(5)
@given(data=st.data())
def test_completing_adds_only_what_decoding_drops(kind: Kind, data: st.DataObject) -> None:
    schema = kind.resource.schema
    obj = data.draw(objects(schema))
    completed = copy.deepcopy(obj)
    complete(completed, schema)
    once = copy.deepcopy(completed)
    assert complete(completed, schema) is False
    assert unmarshal(completed, schema) == []
    complete(completed, schema)
    assert completed == once
