"""Test the decoding of stored values: JSON and protobuf, known and unknown types, and any bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec.protobuf import encode_envelope, encode_message, encode_object
from mooring.apimachinery.codec.storedvalue import decode_stored_value
from mooring.apimachinery.schema import Obj
from mooring.errors import ApiError, BadRequestError
from tests.support.shapes import EXAMPLE, EXAMPLE_PART, objects

TYPE = {"kind": "Example", "apiVersion": "v1"}
SCHEMAS = {("v1", "Example"): EXAMPLE, ("v2", "Part"): EXAMPLE_PART}
PART = {"id": "a", "size": 3}


@given(objects(EXAMPLE))
def test_both_encodings_give_the_object(obj: Obj) -> None:
    whole = {**TYPE, **obj}
    assert decode_stored_value(json.dumps(whole).encode(), SCHEMAS) == (whole, False)
    assert decode_stored_value(encode_object(whole, EXAMPLE), SCHEMAS) == (whole, False)


@pytest.mark.parametrize(
    ("more", "has_unknown"),
    [
        pytest.param(b"", False, id="nothing more"),
        pytest.param(b"\x28\x00", False, id="an unknown number that is 0"),
        pytest.param(b"\x2a\x00", False, id="an unknown text that is empty"),
        pytest.param(b"\x28\x01\x30\x00", True, id="an unknown number before an unknown 0"),
        pytest.param(b"\x2a\x01x", True, id="an unknown text"),
    ],
)
def test_unknown_fields_are_skipped_and_reported(more: bytes, has_unknown: bool) -> None:
    value = encode_envelope("v2", "Part", encode_message(PART, EXAMPLE_PART) + more)
    assert decode_stored_value(value, SCHEMAS) == ({"kind": "Part", "apiVersion": "v2", **PART}, has_unknown)


def test_a_stored_object_may_have_more_values_than_a_request() -> None:
    many = {**TYPE, "numbers": [1] * 150_000}
    assert decode_stored_value(encode_object(many, EXAMPLE), SCHEMAS)[0] == many


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"", "neither valid JSON nor protobuf", id="nothing"),
        pytest.param(b"junk", "neither valid JSON nor protobuf", id="text"),
        pytest.param(b'{"kind":"\xff"}', "neither valid JSON nor protobuf", id="no Unicode"),
        pytest.param(b"[" * 100_000, "neither valid JSON nor protobuf", id="deep nesting"),
        pytest.param(b"[]", "no JSON object", id="a list"),
        pytest.param(b"{}", "it is no Example of v1 or Part of v2", id="no type"),
        pytest.param(b'{"kind":"Part","apiVersion":"v1"}', "it is no Example of v1 or Part of v2", id="another version"),
        pytest.param(b'{"kind":["Part"],"apiVersion":{}}', "it is no Example of v1 or Part of v2", id="types of other types"),
        pytest.param(encode_envelope("v1", "Part", b""), "it is no Example", id="another version in protobuf"),
        pytest.param(encode_envelope("v2", "Part", b"\x0a\xff"), "protobuf: Part: unexpected EOF", id="a cut message"),
    ],
)  # fmt: skip
def test_other_values_are_refused_with_the_reason(value: bytes, reason: str) -> None:
    with pytest.raises(BadRequestError, match=reason):
        decode_stored_value(value, SCHEMAS)


@given(st.binary(max_size=60), st.sampled_from([b"", b"k8s\0", encode_envelope("v1", "Example", b"")[:-4]]))
def test_any_bytes_are_an_object_or_refused(value: bytes, start: bytes) -> None:
    try:
        obj, _ = decode_stored_value(start + value, SCHEMAS)
    except ApiError:
        return
    assert (obj["apiVersion"], obj["kind"]) in SCHEMAS
