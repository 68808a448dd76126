"""The protobuf codec against hand-made bytes (protobuf.dev, "Encoding"), against itself, and against junk.

Field numbers are those of k8s.io/apimachinery `generated.proto` (docs/protocol/negotiation.md#field-numbers).
"""

from __future__ import annotations

import base64
import contextlib
import copy
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.codec.json import MAX_VALUES
from mooring.apimachinery.codec.protobuf import (
    MAGIC,
    decode_envelope,
    decode_message,
    encode_envelope,
    encode_message,
    encode_object,
    encode_watch_frame,
)
from mooring.apimachinery.metav1 import DELETE_OPTIONS, OBJECT_META, STATUS
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar, Type
from mooring.errors import BadRequestError, RequestEntityTooLargeError
from tests.support.protobufwatch import decode_watch_frame
from tests.support.shapes import EXAMPLE, objects, schemas


def _message(*fields: Field) -> Message:
    return Message("io.example.v1.Sample", fields)


def _of(kind: Scalar | ListOf | MapOf | Message, number: int = 1, pointer: bool = False) -> Message:
    return _message(Field("v", number, kind, pointer=pointer))


INNER = _message(Field("a", 1, Scalar.STRING), Field("b", 2, Scalar.INT64))

# Each line was encoded by hand from the specification: tag = number << 3 | wire type.
VECTORS = [
    pytest.param(_of(Scalar.INT64), "08 96 01", {"v": 150}, id="a varint, the example of the specification"),
    pytest.param(_of(Scalar.STRING, 2), "12 07 74 65 73 74 69 6e 67", {"v": "testing"}, id="a string, likewise"),
    pytest.param(_of(Scalar.BOOL), "08 01", {"v": True}, id="a bool"),
    pytest.param(
        _of(Scalar.INT32), "08 fe ff ff ff ff ff ff ff ff 01", {"v": -2}, id="a negative int32 takes ten bytes"
    ),
    pytest.param(_of(Scalar.INT64), "08 80 80 80 80 80 80 80 80 80 01", {"v": -(2**63)}, id="the smallest int64"),
    pytest.param(_of(Scalar.DOUBLE), "09 00 00 00 00 00 00 f8 3f", {"v": 1.5}, id="a double"),
    pytest.param(_of(Scalar.BYTES), "0a 02 00 ff", {"v": "AP8="}, id="bytes"),
    pytest.param(_of(Scalar.STRING, 17), "8a 01 01 78", {"v": "x"}, id="a field number of two bytes"),
    pytest.param(_of(Scalar.TIME), "0a 08 08 80 f2 d6 ca 06 10 00", {"v": "2026-01-01T00:00:00Z"}, id="a time"),
    pytest.param(
        _of(Scalar.MICRO_TIME), "0a 06 08 01 10 c0 84 3d", {"v": "1970-01-01T00:00:01.001000Z"}, id="a micro time"
    ),
    pytest.param(
        _of(Scalar.MICRO_TIME),
        "0a 0d 08 82 92 b8 c3 98 fe ff ff ff 01 10 00",
        {"v": "0001-01-01T00:00:02.000000Z"},
        id="two seconds after Go's zero time, as the e2e test of Leases has it",
    ),
    pytest.param(_of(Scalar.QUANTITY), "0a 05 0a 03 32 47 69", {"v": "2Gi"}, id="a quantity"),
    pytest.param(_of(Scalar.INT_OR_STRING), "0a 06 08 00 10 50 1a 00", {"v": 80}, id="int-or-string as a number"),
    pytest.param(_of(Scalar.INT_OR_STRING), "0a 07 08 01 10 00 1a 01 78", {"v": "x"}, id="int-or-string as text"),
    pytest.param(_of(Scalar.STRING_LIST), "0a 06 0a 01 61 0a 01 62", {"v": ["a", "b"]}, id="a wrapped list of text"),
    pytest.param(_of(Scalar.FIELDS_V1), "0a 09 0a 07 7b 22 61 22 3a 31 7d", {"v": {"a": 1}}, id="FieldsV1"),
    pytest.param(_of(Scalar.RAW), "0a 09 0a 07 7b 22 61 22 3a 31 7d", {"v": {"a": 1}}, id="RawExtension"),
    pytest.param(
        _of(ListOf(Scalar.STRING)), "0a 01 61 0a 00", {"v": ["a", ""]}, id="a repeated string keeps its zeros"
    ),
    pytest.param(
        _of(ListOf(Scalar.INT32)), "08 01 08 02", {"v": [1, 2]}, id="repeated numbers, not packed as in proto2"
    ),
    pytest.param(_of(ListOf(INNER)), "0a 03 0a 01 78 0a 00", {"v": [{"a": "x"}, {}]}, id="repeated messages"),
    pytest.param(_of(MapOf(Scalar.STRING)), "0a 06 0a 01 6b 12 01 76", {"v": {"k": "v"}}, id="a map"),
    pytest.param(_of(MapOf(Scalar.BYTES)), "0a 05 0a 01 6b 12 00", {"v": {"k": ""}}, id="a map value that is zero"),
    pytest.param(_of(INNER, pointer=True), "0a 00", {"v": {}}, id="an empty message behind a pointer"),
    pytest.param(_of(Scalar.BOOL, pointer=True), "08 00", {"v": False}, id="false behind a pointer"),
]


@pytest.mark.parametrize(("schema", "wire", "obj"), VECTORS)
def test_vectors(schema: Message, wire: str, obj: Obj) -> None:
    assert decode_message(bytes.fromhex(wire), schema) == obj
    assert encode_message(obj, schema) == bytes.fromhex(wire)


@pytest.mark.parametrize(
    ("schema", "wire", "obj"),
    [
        pytest.param(_of(ListOf(Scalar.INT64)), "0a 03 96 01 02", {"v": [150, 2]}, id="packed varints"),
        pytest.param(_of(ListOf(Scalar.INT64)), "08 01 0a 01 02 08 03", {"v": [1, 2, 3]}, id="packed and not, mixed"),
        pytest.param(_of(ListOf(Scalar.BOOL)), "0a 02 01 00", {"v": [True, False]}, id="packed bools"),
        pytest.param(_of(ListOf(Scalar.DOUBLE)), "0a 08 00 00 00 00 00 00 f8 3f", {"v": [1.5]}, id="packed doubles"),
        pytest.param(_of(ListOf(Scalar.DOUBLE)), "09 00 00 00 00 00 00 f8 3f", {"v": [1.5]}, id="doubles one by one"),
        pytest.param(_of(Scalar.STRING), "0a 01 61 0a 01 62", {"v": "b"}, id="the last value counts"),
        pytest.param(_of(Scalar.STRING), "0a 01 61 0a 00", {}, id="even when it is zero"),
        pytest.param(
            _of(INNER), "0a 03 0a 01 78 0a 02 10 05", {"v": {"a": "x", "b": 5}}, id="parts of a message are merged"
        ),
        pytest.param(_of(MapOf(INNER)), "0a 07 0a 01 6b 12 02 10 05", {"v": {"k": {"b": 5}}}, id="a map of messages"),
        pytest.param(_of(MapOf(Scalar.STRING)), "0a 00", {"v": {"": ""}}, id="an entry without key and value"),
        pytest.param(_of(MapOf(Scalar.STRING_LIST)), "0a 03 0a 01 6b", {"v": {"k": []}}, id="an entry without value"),
        pytest.param(
            _of(MapOf(Scalar.STRING)),
            "0a 08 0a 01 6b 12 01 76 18 01",
            {"v": {"k": "v"}},
            id="unknown fields of an entry",
        ),
        pytest.param(_of(Scalar.STRING), "0a 00", {}, id="an empty string is absence"),
        pytest.param(_of(Scalar.INT64), "08 00", {}, id="so is zero"),
        pytest.param(_of(INNER), "0a 02 0a 00", {}, id="and a message of zeros"),
        pytest.param(_of(Scalar.TIME), "0a 00", {}, id="an empty time is Go's zero time"),
        pytest.param(_of(Scalar.TIME, pointer=True), "0a 00", {}, id="even behind a pointer"),
        pytest.param(
            _of(Scalar.TIME), "0a 0b 08 80 92 b8 c3 98 fe ff ff ff 01", {}, id="so is the zero time said in full"
        ),
        pytest.param(
            _of(Scalar.MICRO_TIME),
            "0a 0b 08 80 92 b8 c3 98 fe ff ff ff 01",
            {},
            id="as a micro time it is absence, too",
        ),
        pytest.param(_of(Scalar.TIME), "0a 02 08 00", {"v": "1970-01-01T00:00:00Z"}, id="the epoch is a time"),
        pytest.param(
            _of(Scalar.TIME), "0a 04 10 05 18 01", {"v": "1970-01-01T00:00:00Z"}, id="nanoseconds of a Time are dropped"
        ),
        pytest.param(_of(Scalar.RAW), "0a 00", {}, id="an empty RawExtension"),
        pytest.param(_of(Scalar.QUANTITY), "0a 00", {"v": "0"}, id="an empty quantity is 0"),
        pytest.param(_of(Scalar.QUANTITY), "0a 05 0a 01 35 10 01", {"v": "5"}, id="unknown fields inside a wrapper"),
        pytest.param(_of(Scalar.INT_OR_STRING), "0a 06 08 00 10 05 20 01", {"v": 5}, id="and inside int-or-string"),
        pytest.param(_of(Scalar.INT32), "08 ff ff ff ff 1f", {"v": -1}, id="int32 takes the low 32 bits"),
        pytest.param(
            _of(Scalar.STRING),
            "0a 01 61 10 05 1a 01 62 25 00 00 00 00 29 00 00 00 00 00 00 00 00",
            {"v": "a"},
            id="unknown fields of every wire type are skipped",
        ),
        pytest.param(_of(Scalar.STRING), "", {}, id="nothing at all"),
    ],
)
def test_other_spellings_are_read(schema: Message, wire: str, obj: Obj) -> None:
    assert decode_message(bytes.fromhex(wire), schema) == obj


@pytest.mark.parametrize(
    ("schema", "wire", "why"),
    [
        pytest.param(_of(Scalar.STRING), "0a", "unexpected EOF", id="a tag alone"),
        pytest.param(_of(Scalar.STRING), "0a 05 61", "unexpected EOF", id="a length beyond the end"),
        pytest.param(_of(Scalar.STRING), "0a ff ff ff ff ff ff ff ff 7f", "unexpected EOF", id="a huge length"),
        pytest.param(_of(Scalar.STRING), "12 ff ff ff ff 0f", "unexpected EOF", id="a huge length of an unknown field"),
        pytest.param(_of(Scalar.INT64), "08 80", "unexpected EOF", id="half a varint"),
        pytest.param(_of(Scalar.INT64), "08" + " ff" * 11, "integer overflow", id="an endless varint"),
        pytest.param(_of(Scalar.DOUBLE), "09 00 00", "unexpected EOF", id="half a double"),
        pytest.param(_of(Scalar.DOUBLE), "15 00 00", "unexpected EOF", id="half of an unknown fixed32"),
        pytest.param(_of(Scalar.DOUBLE), "09 00 00 00 00 00 00 f0 7f", "v: number out of range", id="infinity"),
        pytest.param(_of(ListOf(Scalar.DOUBLE)), "0a 03 00 00 00", "v: unexpected EOF", id="packed doubles cut short"),
        pytest.param(_of(Scalar.STRING), "0b", "illegal wire type 3", id="a group"),
        pytest.param(_of(Scalar.STRING), "0e", "illegal wire type 6", id="no such wire type"),
        pytest.param(_of(Scalar.STRING), "00 00", "illegal tag 0", id="field number 0"),
        pytest.param(
            _of(Scalar.STRING), "80 80 80 80 80 01 00", "illegal tag 4294967296", id="a field number too large"
        ),
        pytest.param(_of(Scalar.STRING), "08 01", "v: wrong wire type 0", id="a varint for text"),
        pytest.param(_of(Scalar.INT64), "0a 00", "v: wrong wire type 2", id="text for a varint"),
        pytest.param(_of(INNER), "08 01", "v: wrong wire type 0", id="a varint for a message"),
        pytest.param(_of(MapOf(Scalar.STRING)), "08 01", "v: wrong wire type 0", id="a varint for a map"),
        pytest.param(_of(MapOf(Scalar.STRING)), "0a 02 08 01", "v: wrong wire type 0", id="a varint for a key"),
        pytest.param(_of(Scalar.TIME), "0a 02 0a 00", "v: wrong wire type 2", id="text for seconds"),
        pytest.param(_of(Scalar.QUANTITY), "0a 02 08 01", "v: wrong wire type 0", id="a varint for a wrapped text"),
        pytest.param(
            _of(Scalar.INT_OR_STRING), "0a 02 0a 00", "v: wrong wire type 2", id="text for int-or-string's type"
        ),
        pytest.param(
            _of(Scalar.INT_OR_STRING), "0a 02 18 01", "v: wrong wire type 0", id="a varint for int-or-string's text"
        ),
        pytest.param(_of(Scalar.STRING), "0a 01 ff", "v: invalid UTF-8", id="invalid UTF-8"),
        pytest.param(_of(INNER), "0a 03 0a 01 ff", "v: a: invalid UTF-8", id="with the path"),
        pytest.param(
            _of(Scalar.TIME),
            "0a 0a 08 ff ff ff ff ff ff ff ff 7f",
            "v: time out of range",
            id="a time beyond all calendars",
        ),
        pytest.param(
            _of(Scalar.TIME), "0a 0b 08 ff 91 b8 c3 98 fe ff ff ff 01", "v: time out of range", id="before the year 1"
        ),
        pytest.param(_of(Scalar.RAW), "0a 03 0a 01 7b", "v: not JSON", id="RawExtension without JSON"),
        pytest.param(
            _of(Scalar.QUANTITY),
            "0a 03 0a 01 78",
            "v: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            id="a quantity that is no number",
        ),
        pytest.param(_of(Scalar.RAW), "0a 03 0a 01 ff", "v: not JSON", id="RawExtension without text"),
        pytest.param(
            _of(Scalar.RAW), "0a 03 0a 01 31", "v: not a JSON object of reasonable depth", id="RawExtension of a number"
        ),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(schema: Message, wire: str, why: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        decode_message(bytes.fromhex(wire), schema)
    assert str(caught.value) == f"protobuf: Sample: {why}"


@pytest.mark.parametrize("levels", [101, 90_000])
def test_deep_json_inside_protobuf_is_refused(levels: int) -> None:
    raw = b'{"a":' * levels + b"1" + b"}" * levels
    wrapped = b"\x0a" + _length(len(raw)) + raw
    with pytest.raises(BadRequestError):
        decode_message(b"\x0a" + _length(len(wrapped)) + wrapped, _of(Scalar.RAW))


def _embedded(text: bytes) -> bytes:
    """Field 1: a message whose field 1 is `text`."""
    raw = b"\x0a" + _length(len(text)) + text
    return b"\x0a" + _length(len(raw)) + raw


def _length(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


_PART = Message("io.example.v1.Part", (Field("id", 1, Scalar.STRING),))


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        pytest.param(ListOf(_PART), b"\x0a\x00" * (MAX_VALUES + 1), id="empty messages"),
        pytest.param(ListOf(Scalar.STRING), b"\x0a\x00" * (MAX_VALUES + 1), id="empty texts"),
        pytest.param(Scalar.STRING, b"\x50\x00" * (MAX_VALUES + 1), id="unknown fields"),
        pytest.param(ListOf(Scalar.INT32), b"\x08\x01" * (MAX_VALUES + 1), id="numbers"),
        pytest.param(ListOf(Scalar.INT32), b"\x0a" + b"\xa1\x8d\x06" + b"\x01" * (MAX_VALUES + 1), id="packed numbers"),
        pytest.param(
            ListOf(Scalar.RAW),
            _embedded(b'{"a":[' + b"{}," * 6_000 + b"0]}") * 10,
            id="values of embedded JSON",
        ),
    ],
)
def test_more_values_than_a_body_may_hold_are_refused(kind: Type, raw: bytes) -> None:
    with pytest.raises(RequestEntityTooLargeError, match="more than 100000 values"):
        decode_message(raw, _of(kind))


def test_commas_in_embedded_text_are_no_values() -> None:
    held = _embedded(b'{"a":"' + b"," * 90_000 + b'"}')
    (name,) = (field.name for field in _of(ListOf(Scalar.RAW)).fields)
    assert len(decode_message(held * 3, _of(ListOf(Scalar.RAW)))[name]) == 3


def test_object_meta_as_client_go_writes_it() -> None:
    """Go writes non-pointer fields even when empty: here name, generateName, namespace, selfLink, uid, …, creationTimestamp."""
    wire = bytes.fromhex(
        "0a 01 61 12 00 1a 02 6e 73 22 00 2a 00 32 00 38 00 42 00 5a 06 0a 01 6b 12 01 76"
        "6a 0f 0a 01 4b 1a 01 6e 22 01 75 2a 02 76 31 30 01 72 01 66"
    )
    assert decode_message(wire, OBJECT_META) == {
        "name": "a",
        "namespace": "ns",
        "labels": {"k": "v"},
        "ownerReferences": [{"kind": "K", "name": "n", "uid": "u", "apiVersion": "v1", "controller": True}],
        "finalizers": ["f"],
    }


def test_delete_options_keep_a_grace_period_of_zero() -> None:
    wire = bytes.fromhex("08 00 12 03 0a 01 75 22 0a") + b"Background" + bytes.fromhex("2a 03") + b"All"
    assert decode_message(wire, DELETE_OPTIONS) == {
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Background",
        "dryRun": ["All"],
    }


def test_equal_objects_give_equal_bytes() -> None:
    one = {"data": {"b": "YQ==", "a": "Yg=="}, "text": "x"}
    other = {"text": "x", "data": {"a": "Yg==", "b": "YQ=="}}
    assert encode_message(one, EXAMPLE) == encode_message(other, EXAMPLE)


def test_what_the_schema_does_not_number_is_left_out() -> None:
    assert encode_message({"kind": "Example", "onlyJson": "x", "text": None}, EXAMPLE) == b""


def test_the_envelope_is_the_one_kubernetes_writes() -> None:
    body = encode_object({"kind": "Status", "apiVersion": "v1", "code": 404}, STATUS)
    assert body == bytes.fromhex("6b 38 73 00 0a 0c 0a 02 76 31 12 06") + b"Status" + bytes.fromhex(
        "12 03 30 94 03 1a 00 22 00"
    )
    assert decode_envelope(body) == ("v1", "Status", bytes.fromhex("30 94 03"))


@pytest.mark.parametrize(
    ("wire", "wanted"),
    [
        pytest.param("", ("", "", b""), id="an empty envelope"),
        pytest.param("0a 06 0a 02 76 31 18 01", ("v1", "", b""), id="without a kind"),
        pytest.param("12 01 41 28 01", ("", "", b"A"), id="without type, with an unknown field"),
        pytest.param("1a 00 12 00", ("", "", b""), id="an empty content encoding"),
    ],
)
def test_envelopes_are_read(wire: str, wanted: tuple[str, str, bytes]) -> None:
    assert decode_envelope(MAGIC + bytes.fromhex(wire)) == wanted


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(
            b'{"kind":"Secret"}',
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
            id="JSON",
        ),
        pytest.param(b"", "empty data", id="nothing"),
        pytest.param(MAGIC + b"\x0a\x05", "unexpected EOF", id="truncated"),
        pytest.param(MAGIC + b"\x10\x05", "wrong wire type 0", id="a number for the message"),
        pytest.param(MAGIC + b"\x0a\x02\x08\x01", "wrong wire type 0", id="a number for a version"),
        pytest.param(MAGIC + b"\x0a\x03\x12\x01\xff", "invalid UTF-8", id="a kind that is no text"),
        pytest.param(MAGIC + b"\x1a\x04gzip", "a content encoding is not supported", id="compressed"),
    ],
)
def test_bad_envelopes_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        decode_envelope(body)
    assert str(caught.value) == message


def test_watch_frames_carry_a_whole_body() -> None:
    body = encode_envelope("v1", "Secret", b"\x0a\x00")
    frame = encode_watch_frame("ADDED", body)
    assert struct.unpack(">I", frame[:4])[0] == len(frame) - 4
    assert frame[4:11] == b"\x0a\x05ADDED"
    assert frame[11] == 0x12
    assert frame[13] == 0x0A
    assert frame.endswith(body)
    assert decode_watch_frame(frame) == ("ADDED", body)


@given(objects(EXAMPLE))
def test_every_object_survives_protobuf(obj: Obj) -> None:
    before = copy.deepcopy(obj)
    assert decode_message(encode_message(obj, EXAMPLE), EXAMPLE) == obj
    assert obj == before


@given(st.data())
def test_every_object_of_every_schema_survives_protobuf(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    obj = data.draw(objects(schema))
    assert decode_message(encode_message(obj, schema), schema) == obj


@given(st.data())
def test_damaged_bytes_are_read_or_refused(data: st.DataObject) -> None:
    wire = bytearray(encode_message(data.draw(objects(EXAMPLE)), EXAMPLE))
    if wire:
        for _ in range(data.draw(st.integers(1, 3))):
            wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadRequestError):
        decode_message(bytes(wire[: data.draw(st.integers(0, len(wire)))]), EXAMPLE)


@given(st.binary(max_size=80))
def test_junk_is_read_or_refused(data: bytes) -> None:
    for read in (
        lambda: decode_message(data, EXAMPLE),
        lambda: decode_envelope(MAGIC + data),
    ):
        with contextlib.suppress(BadRequestError):
            read()


def test_bytes_come_out_as_base64() -> None:
    raw = bytes(range(256))
    wire = b"\x0a" + _length(256) + raw
    assert decode_message(wire, _of(Scalar.BYTES)) == {"v": base64.b64encode(raw).decode()}
