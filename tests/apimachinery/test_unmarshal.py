"""Fitting a JSON object to its schema, as decoding into a Go struct would.

Source: docs/protocol/requests.md#options.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec.json import MAX_DEPTH, depth_exceeds
from mooring.apimachinery.codec.unmarshal import unmarshal, zero
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar
from mooring.errors import BadRequestError
from tests.support.shapes import EXAMPLE, EXAMPLE_PART, objects

BAD_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def _nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param({"kind": "Example", "apiVersion": "v1"}, None, id="kind and apiVersion are known at the top"),
        pytest.param({"metadata": {}}, None, id="metadata stays even when empty"),
        pytest.param({"metadata": None, "text": None}, {}, id="null is absence"),
        pytest.param({"text": "", "flag": False, "small": 0, "ratio": 0.0, "blob": ""}, {}, id="zeros are absence"),
        pytest.param({"words": [], "data": {}, "part": {}, "names": []}, {}, id="empty lists, maps and messages too"),
        pytest.param({"sure": False, "spare": {}}, None, id="unless the field is a pointer"),
        pytest.param({"part": {"id": ""}}, None, id="or required"),
        pytest.param(
            {"part": {"size": 1}}, {"part": {"size": 1, "id": ""}}, id="what is required is shown beside anything else"
        ),
        pytest.param({"part": {"size": 0}, "spare": {}}, {"spare": {}}, id="yet never makes a part of nothing"),
        pytest.param(
            {"words": [None], "numbers": [None]}, {"words": [""], "numbers": [0]}, id="null in a list is a zero"
        ),
        pytest.param({"parts": [None], "switches": [None]}, {"parts": [{}], "switches": [False]}, id="of its own type"),
        pytest.param(
            {"data": {"a": None}, "extra": {"a": None}}, {"data": {"a": ""}, "extra": {"a": []}}, id="and in a map"
        ),
        pytest.param({"limits": {"cpu": None}}, {"limits": {"cpu": "0"}}, id="a null quantity is 0"),
        pytest.param({"blob": "Y\nQ=\r\n="}, {"blob": "YQ=="}, id="line ends in base64 are passed over"),
        pytest.param({"blob": "YR=="}, {"blob": "YQ=="}, id="base64 gets its normal form"),
        pytest.param({"at": "2026-01-02T03:04:05Z"}, None, id="a normal time stays"),
        pytest.param(
            {"at": "2026-01-02T03:04:05.678+02:00"}, {"at": "2026-01-02T01:04:05Z"}, id="times become UTC seconds"
        ),
        pytest.param(
            {"precisely": "2026-01-02T03:04:05.678000+02:00"},
            {"precisely": "2026-01-02T01:04:05.678000Z"},
            id="micro times become UTC microseconds",
        ),
        pytest.param({"at": "0001-01-01T00:00:00Z"}, {}, id="Go's zero time is absence"),
        pytest.param({"at": "0001-01-01T00:00:00+00:00"}, {}, id="also with an offset"),
        pytest.param({"precisely": "0001-01-01T00:00:00.000000Z"}, {}, id="also as a micro time"),
        pytest.param(
            {"at": "0001-01-01T00:00:02Z", "precisely": "0001-01-01T00:00:02.000000Z"},
            None,
            id="what follows it is a time",
        ),
        pytest.param({"at": "0999-01-01T00:00:00+01:00"}, {"at": "0998-12-31T23:00:00Z"}, id="a year of three digits"),
        pytest.param(
            {"memory": 5, "limits": {"cpu": 0.5}}, {"memory": "5", "limits": {"cpu": "500m"}}, id="quantities are text"
        ),
        pytest.param({"memory": "2Gi", "limits": {"cpu": "100m"}}, None, id="with suffixes"),
        pytest.param({"port": 80}, None, id="int-or-string as a number"),
        pytest.param({"port": "http"}, None, id="int-or-string as text"),
        pytest.param({"ratio": 1, "large": -(2**63), "small": 2**31 - 1}, None, id="numbers to their ends"),
        pytest.param({"anything": {"a": [2**70, None, {"b": ""}]}}, None, id="raw objects are left alone"),
    ],
)
def test_normal_form(given: Obj, wanted: Obj | None) -> None:
    obj = copy.deepcopy(given)
    assert unmarshal(obj, EXAMPLE) == []
    assert obj == (given if wanted is None else wanted)


@pytest.mark.parametrize(
    ("given", "unknown", "left"),
    [
        pytest.param({"foo": 1, "text": "a"}, ["foo"], {"text": "a"}, id="at the top"),
        pytest.param({"Text": "a"}, ["Text"], {}, id="another letter case is another field"),
        pytest.param({"part": {"id": "a", "foo": 1}}, ["part.foo"], {"part": {"id": "a"}}, id="in a message"),
        pytest.param(
            {"metadata": {"name": "a", "foo": {}}}, ["metadata.foo"], {"metadata": {"name": "a"}}, id="in metadata"
        ),
        pytest.param({"parts": [{"id": "a"}, {"x": 1}]}, ["parts[1].x"], {"parts": [{"id": "a"}, {}]}, id="in a list"),
        pytest.param(
            {"named": {"n": {"x": 1, "id": "a"}}}, ["named.n.x"], {"named": {"n": {"id": "a"}}}, id="in a map"
        ),
        pytest.param({"part": {"kind": "Part"}}, ["part.kind"], {}, id="kind below the top"),
    ],
)
def test_unknown_fields_are_dropped_and_named(given: Obj, unknown: list[str], left: Obj) -> None:
    assert unmarshal(given, EXAMPLE) == unknown
    assert given == left


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"kind": 5}, "number into Go struct field Example.kind of type string", id="kind a number"),
        pytest.param({"text": 5}, "number into Go struct field Example.text of type string", id="number for text"),
        pytest.param({"text": True}, "bool into Go struct field Example.text of type string", id="bool for text"),
        pytest.param({"flag": "yes"}, "string into Go struct field Example.flag of type bool", id="text for bool"),
        pytest.param({"flag": 1}, "number into Go struct field Example.flag of type bool", id="number for bool"),
        pytest.param({"small": True}, "bool into Go struct field Example.small of type int32", id="bool for int"),
        pytest.param(
            {"small": 1.5}, "number 1.5 into Go struct field Example.small of type int32", id="fraction for int"
        ),
        pytest.param(
            {"small": 2**31}, "number 2147483648 into Go struct field Example.small of type int32", id="int32 too large"
        ),
        pytest.param(
            {"large": 2**63},
            "number 9223372036854775808 into Go struct field Example.large of type int64",
            id="int64 too large",
        ),
        pytest.param(
            {"port": 2**31},
            "number 2147483648 into Go struct field Example.port of type int32",
            id="int-or-string too large",
        ),
        pytest.param({"blob": []}, "array into Go struct field Example.blob of type []uint8", id="list for bytes"),
        pytest.param({"blob": ["x"]}, "string into Go struct field Example.blob of type uint8", id="a list for bytes"),
        pytest.param({"words": {}}, "object into Go struct field Example.words of type []string", id="object for list"),
        pytest.param(
            {"words": ["a", 1]}, "number into Go struct field Example.words of type string", id="item of a list"
        ),
        pytest.param(
            {"data": "x"}, "string into Go struct field Example.data of type map[string][]uint8", id="text for map"
        ),
        pytest.param(
            {"data": {"k": 1}}, "number into Go struct field Example.data of type []uint8", id="value of a map"
        ),
        pytest.param({"part": "x"}, "string into Go struct field Example.part of type v1.Part", id="text for message"),
        pytest.param(
            {"parts": [[]]}, "array into Go struct field Example.parts of type v1.Part", id="list for message"
        ),
        pytest.param(
            {"parts": {}},
            "object into Go struct field Example.parts of type []v1.Part",
            id="object for list of messages",
        ),
        pytest.param(
            {"metadata": {"name": 1}},
            "number into Go struct field ObjectMeta.metadata.name of type string",
            id="name",
        ),
        pytest.param(
            {"metadata": {"labels": {"a": 1}}},
            "number into Go struct field ObjectMeta.metadata.labels of type string",
            id="label",
        ),
        pytest.param(
            {"anything": "x"}, "string into Go struct field Example.anything of type map[string]interface {}", id="raw"
        ),
    ],
)
def test_wrong_types_are_refused_with_their_path(given: Obj, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        unmarshal(given, EXAMPLE)
    assert str(caught.value) == "json: cannot unmarshal " + message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"blob": "hunter2!"}, "illegal base64 data at input byte 7", id="base64"),
        pytest.param({"data": {"k": "YQ"}}, "illegal base64 data at input byte 0", id="base64 without padding"),
        pytest.param(
            {"at": "2026-13-01T00:00:00Z"},
            'parsing time "2026-13-01T00:00:00Z": month out of range',
            id="a month that is none",
        ),
        pytest.param(
            {"at": "2026-02-30T00:00:00+01:00"},
            'parsing time "2026-02-30T00:00:00+01:00": day out of range',
            id="a day that is none",
        ),
        pytest.param(
            {"at": "yesterday"},
            'parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"',
            id="prose for a time",
        ),
        pytest.param(
            {"at": "0001-01-01T00:00:00+01:00"},
            'parsing time "0001-01-01T00:00:00+01:00": day out of range',
            id="before the year 1",
        ),
        pytest.param(
            {"precisely": ""},
            'parsing time "" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "" as "2006"',
            id="empty micro time",
        ),
        pytest.param(
            {"precisely": "2026-01-02T03:04:05Z"},
            'parsing time "2026-01-02T03:04:05Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000"',
            id="micro time without microseconds",
        ),
        pytest.param(
            {"memory": "a lot"},
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            id="quantity",
        ),
        pytest.param(
            {"memory": "1" * 200},
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            id="long quantity",
        ),
        pytest.param({"anything": _nested(MAX_DEPTH + 1)}, "nested deeper than 100 levels", id="deep raw object"),
    ],
)
def test_bad_values_are_refused_in_the_words_of_their_decoders(given: Obj, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        unmarshal(given, EXAMPLE)
    assert str(caught.value) == message


BAD_TIME = 'parsing time "*" as "2006-01-02T15:04:05Z07:00": cannot parse "*" as "2006"'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"text": 5, "at": "*"}, BAD_TIME, id="a time after a wrong type"),
        pytest.param(
            {"text": 5, "parts": [None, {"id": "a"}], "limits": {"cpu": None}, "at": "*"}, BAD_TIME, id="deep"
        ),
        pytest.param({"text": 5, "words": {}, "parts": 1, "data": 1, "foo": "*", "at": "*"}, BAD_TIME, id="after all"),
        pytest.param({"text": 5, "limits": {"cpu": "x"}, "at": "*"}, BAD_QUANTITY, id="a quantity before a time"),
        pytest.param(
            {"text": 5, "precisely": {}},
            "json: cannot unmarshal object into Go struct field Example.precisely of type string",
            id="a time of a wrong type",
        ),
        pytest.param(
            {"text": 5, "blob": "*"},
            "json: cannot unmarshal number into Go struct field Example.text of type string",
            id="base64 has no decoder of its own",
        ),
    ],
)
def test_errors_of_decoders_come_before_wrong_types(given: Obj, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        unmarshal(given, EXAMPLE)
    assert caught.value.message == message


@pytest.mark.parametrize("given", [[], "x", 5, None], ids=["a list", "text", "a number", "null"])
def test_only_objects_conform(given: Any) -> None:
    with pytest.raises(BadRequestError, match=r"^json: cannot unmarshal .* into Go value of type v1\.Part$"):
        unmarshal(given, EXAMPLE_PART)


def test_depth_counts_containers() -> None:
    assert not depth_exceeds(_nested(MAX_DEPTH))
    assert depth_exceeds(_nested(MAX_DEPTH + 1))
    assert not depth_exceeds("text")
    assert depth_exceeds([[[]]], 2)
    assert not depth_exceeds([[[]]], 3)
    assert not depth_exceeds([[[1]], 2], 3)


@pytest.mark.parametrize(
    ("kind", "zero_time"),
    [
        (Scalar.TIME, "0001-01-01T00:00:00Z"),
        (Scalar.TIME, "0001-01-01T00:00:00.000000Z"),
        (Scalar.MICRO_TIME, "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_the_zero_time_is_absent_also_where_a_zero_of_another_type_would_stay(kind: Scalar, zero_time: str) -> None:
    schema = Message("io.example.v1.Times", (Field("by", 1, kind, required=True), Field("at", 2, kind, pointer=True)))
    obj = {"by": zero_time, "at": zero_time}
    assert unmarshal(obj, schema) == []
    assert obj == {}


def test_zeros_are_fresh() -> None:
    for kind in (ListOf(Scalar.STRING), MapOf(Scalar.STRING), EXAMPLE_PART, Scalar.RAW):
        assert zero(kind) is not zero(kind)
        assert not zero(kind)
    assert zero(Scalar.STRING) == ""


@given(objects(EXAMPLE))
def test_a_value_in_normal_form_stays(obj: Obj) -> None:
    before = copy.deepcopy(obj)
    assert unmarshal(obj, EXAMPLE) == []
    assert obj == before


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*EXAMPLE.by_name, "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_junk)
def test_junk_fits_or_is_a_bad_request_and_fitting_twice_changes_nothing(obj: Any) -> None:
    try:
        unmarshal(obj, EXAMPLE)
    except BadRequestError:
        return
    once = copy.deepcopy(obj)
    assert unmarshal(obj, EXAMPLE) == []
    assert obj == once


def test_a_plan_belongs_to_one_message() -> None:
    one = Message("io.example.v1.Same", ())
    other = Message("io.example.v1.Same", EXAMPLE_PART.fields)
    assert unmarshal({"id": "a"}, one) == ["id"]
    assert unmarshal({"id": "a"}, other) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"part": "x"}, "cannot restore struct from: string"),
        ({"data": ["x"]}, "cannot restore map from slice"),
        ({"words": {}}, "cannot restore slice from map"),
        ({"blob": 1}, "cannot restore slice from int64"),
        ({"blob": "x y"}, "error decoding from json: illegal base64 data at input byte 1"),
        ({"text": 1}, "cannot convert int64 to string"),
        ({"text": 1.5}, "unrecognized type: string"),
        ({"text": {}}, "unrecognized type: string"),
        ({"small": 1.5}, "cannot convert float64 to int32"),
        ({"small": "1"}, "unrecognized type: int32"),
        ({"flag": 1}, "unrecognized type: bool"),
        ({"memory": []}, "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
    ],
)
def test_the_converter_after_a_strategic_patch_has_words_of_its_own(given: Obj, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        unmarshal(given, EXAMPLE, converted=True)
    assert str(caught.value) == message


def test_a_number_beyond_float64_is_refused_as_go_words_it() -> None:
    number = 10**309
    with pytest.raises(
        BadRequestError, match=rf"cannot unmarshal number {number} into Go struct field \S+ of type float64"
    ):
        unmarshal({"ratio": number}, EXAMPLE)
    kept: Obj = {"ratio": 10**308}
    unmarshal(kept, EXAMPLE)
    assert kept == {"ratio": 10**308}
