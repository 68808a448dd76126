"""Fields that JSON shows inline and protobuf keeps in an embedded message (Go's inlined structs; k8s.io/api core/v1 Volume)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from mooring.apimachinery.codec.protobuf import decode_message, encode_message
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar
from mooring.errors import BadRequestError
from tests.support.shapes import objects

DIRECTORY = Message(
    "io.example.v1.Directory", (Field("medium", 1, Scalar.STRING), Field("tags", 2, ListOf(Scalar.STRING)))
)
VOLUME = Message(
    "io.example.v1.Volume",
    (
        Field("name", 1, Scalar.STRING, required=True),
        Field("note", 3, Scalar.STRING),
        Field("path", 1, Scalar.STRING, within=2),
        Field("directory", 2, DIRECTORY, pointer=True, within=2),
        Field("optional", 3, Scalar.BOOL, pointer=True, within=2),
    ),
    "A volume with an inlined source.",
)

Obj = dict[str, Any]


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        pytest.param(
            {"name": "v", "path": "/p"}, b"\x0a\x01v\x12\x04\x0a\x02/p", id="the source is a message of its own"
        ),
        pytest.param(
            {"name": "v", "note": "n"}, b"\x0a\x01v\x12\x00\x1a\x01n", id="in order of numbers, and also when empty"
        ),
        pytest.param(
            {"name": "v", "directory": {}}, b"\x0a\x01v\x12\x02\x12\x00", id="an empty source of a kind is kept"
        ),
        pytest.param({"name": "v", "optional": False}, b"\x0a\x01v\x12\x02\x18\x00", id="and so is a said no"),
    ],
)
def test_inlined_fields_lie_in_an_embedded_message(obj: Obj, message: bytes) -> None:
    assert encode_message(obj, VOLUME) == message
    assert decode_message(message, VOLUME) == obj


@given(objects(VOLUME))
def test_reading_undoes_writing(obj: Obj) -> None:
    assert decode_message(encode_message(obj, VOLUME), VOLUME) == obj


@pytest.mark.parametrize(
    ("message", "obj"),
    [
        pytest.param(
            b"\x12\x06\x12\x04\x0a\x02ab" + b"\x12\x05\x12\x03\x12\x01t",
            {"directory": {"medium": "ab", "tags": ["t"]}},
            id="embedded messages that repeat are merged",
        ),
        pytest.param(
            b"\x12\x02\x18\x00" + b"\x12\x04\x0a\x02/p", {"path": "/p", "optional": False}, id="and keep what was said"
        ),
        pytest.param(b"\x12\x02\x0a\x00", {}, id="zeros say nothing"),
        pytest.param(b"\x12\x02\x48\x01", {}, id="unknown numbers inside are skipped"),
    ],
)
def test_embedded_messages_read_like_others(message: bytes, obj: Obj) -> None:
    assert decode_message(message, VOLUME) == obj


@pytest.mark.parametrize(
    ("message", "why"),
    [
        pytest.param(b"\x10\x01", "protobuf: Volume: wrong wire type 0", id="an embedded message is no number"),
        pytest.param(
            b"\x12\x02\x08\x01", "protobuf: Volume: path: wrong wire type 0", id="its fields are told by name"
        ),
    ],
)
def test_a_malformed_embedded_message_is_refused(message: bytes, why: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        decode_message(message, VOLUME)
    assert caught.value.message == why


def test_an_embedded_message_has_the_fields_that_lie_within_it() -> None:
    assert [field.name for field in VOLUME.embedded[2].fields] == ["path", "directory", "optional"]
