"""Protobuf encoding of messages by their schema.

Source: docs/protocol/negotiation.md#field-numbers.

Rules kept here: fields are written in the order of their numbers and map keys are sorted, so that equal objects give equal bytes.
Objects fit their schema already (`mooring.apimachinery.codec.unmarshal`). Fields without a number, and kind and apiVersion, are
left out.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from mooring.apimachinery.codec.protobuf.decode import BYTES, EPOCH, FIXED64, MASK, VARINT
from mooring.apimachinery.schema import ListOf, MapOf, Message, Obj, Scalar, Type
from mooring.clock import parse_rfc3339

_PLAN = "_protobuf_write_plan"  # compiled once for each message and kept on it
_INTEGERS = (Scalar.BOOL, Scalar.INT32, Scalar.INT64)

_Writer = Callable[[bytearray, Any], None]


def encode_message(obj: Obj, schema: Message) -> bytes:
    """Return the message of an object that fits `schema`."""
    plan: list[tuple[str, _Writer]] | None = schema.__dict__.get(_PLAN)
    if plan is None:
        parts: dict[int, tuple[str, Type]] = {
            field.number: (field.name, field.type) for field in schema.fields if field.number and not field.within
        } | {number: ("", inner) for number, inner in schema.embedded.items()}
        plan = schema.__dict__[_PLAN] = [
            (name, _writer(number, kind)) for number, (name, kind) in sorted(parts.items(), key=lambda part: part[0])
        ]
    out = bytearray()
    for name, write in plan:
        value = obj.get(name) if name else obj  # an embedded message is written from the object around it, empty or not
        if value is not None:
            write(out, value)
    return bytes(out)


def _put_varint(out: bytearray, value: int) -> None:
    value &= MASK
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_bytes(out: bytearray, number: int, raw: bytes) -> None:
    """Append a field of bytes, text or an encoded message."""
    put_length(out, number, len(raw))
    out += raw


def put_length(out: bytearray, number: int, size: int) -> None:
    """Append the tag and length of a field of `size` bytes."""
    _put_varint(out, number << 3 | BYTES)
    _put_varint(out, size)


def put_number(out: bytearray, number: int, value: int) -> None:
    """Append a field of an integer or truth value."""
    _put_varint(out, number << 3 | VARINT)
    _put_varint(out, value)


def wrap(*parts: bytes) -> bytes:
    """Return a message whose field 1 repeats `parts`."""
    out = bytearray()
    for part in parts:
        put_bytes(out, 1, part)
    return bytes(out)


def _time_bytes(text: str) -> bytes:
    since = parse_rfc3339(text) - EPOCH
    out = bytearray()
    put_number(out, 1, since // timedelta(seconds=1))
    put_number(out, 2, since.microseconds * 1000)
    return bytes(out)


def _int_or_string_bytes(value: int | str) -> bytes:
    out = bytearray()
    is_text = isinstance(value, str)
    put_number(out, 1, is_text)
    put_number(out, 2, 0 if isinstance(value, str) else value)
    put_bytes(out, 3, value.encode() if isinstance(value, str) else b"")
    return bytes(out)


_TO_BLOB: dict[Scalar, Callable[[Any], bytes]] = {
    Scalar.STRING: str.encode,
    Scalar.BYTES: binascii.a2b_base64,
    Scalar.TIME: _time_bytes,
    Scalar.MICRO_TIME: _time_bytes,
    Scalar.QUANTITY: lambda value: wrap(str(value).encode()),
    Scalar.INT_OR_STRING: _int_or_string_bytes,
    Scalar.STRING_LIST: lambda items: wrap(*(item.encode() for item in items)),
    Scalar.FIELDS_V1: lambda value: wrap(msgspec.json.encode(value)),
    Scalar.RAW: lambda value: wrap(msgspec.json.encode(value)),
}


def _writer(number: int, kind: Type) -> _Writer:
    if isinstance(kind, Message):
        return lambda out, value: put_bytes(out, number, encode_message(value, kind))
    if isinstance(kind, ListOf):
        return _list_writer(number, kind)
    if isinstance(kind, MapOf):
        return _map_writer(number, kind)
    if kind is Scalar.DOUBLE:
        return lambda out, value: _put_double(out, number, value)
    if kind in _INTEGERS:
        return lambda out, value: put_number(out, number, value)
    to_blob = _TO_BLOB[kind]
    return lambda out, value: put_bytes(out, number, to_blob(value))


def _put_double(out: bytearray, number: int, value: float) -> None:
    _put_varint(out, number << 3 | FIXED64)
    out += struct.pack("<d", value)


def _list_writer(number: int, kind: ListOf) -> _Writer:
    item = _writer(number, kind.item)

    def write(out: bytearray, value: Any) -> None:
        for entry in value:
            item(out, entry)

    return write


def _map_writer(number: int, kind: MapOf) -> _Writer:
    write_value = _writer(2, kind.value)

    def write(out: bytearray, value: Any) -> None:
        for key in sorted(value):
            entry = bytearray()
            put_bytes(entry, 1, key.encode())
            write_value(entry, value[key])
            put_bytes(out, number, bytes(entry))

    return write
