"""Protobuf decoding of messages by their schema.

Source: docs/protocol/negotiation.md#field-numbers.

Rules kept here:
* proto2 wire format (protobuf.dev, "Encoding"): varints, fixed 32 and 64, length-delimited; repeated scalars packed or not; maps
  as entries key=1 value=2; the last value of a field counts, and repeated occurrences of one message are merged. Unknown field
  numbers are skipped; groups, which Kubernetes never had, are refused. Fields `within` an embedded message are inline in the
  object.
* The result equals the same object sent as JSON: base64, RFC 3339, absent rather than empty. Go writes every non-pointer field even
  when zero, so zeros are dropped unless the field `keeps_zero`; an empty Time message is Go's zero time, and absent.
* Any input gives an object, BadRequestError or RequestEntityTooLargeError: lengths are checked before they are used, and nesting is
  bounded by the schema, because unknown fields are skipped.
* Every field of every message counts against `MAX_VALUES`, and so do the values of embedded JSON: a message can be two bytes.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from mooring.apimachinery.codec.limits import MAX_VALUES, count_values, depth_exceeds, too_many_values
from mooring.apimachinery.codec.unmarshal import keeps_zero, zero
from mooring.apimachinery.quantity import canonical
from mooring.apimachinery.schema import ListOf, MapOf, Message, Obj, Scalar, Type
from mooring.clock import ZERO_TIME, rfc3339, rfc3339_micro
from mooring.errors import BadRequestError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types: the low three bits of a tag."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MASK = (1 << 64) - 1
_PLAN = "_protobuf_read_plan"  # compiled once for each message and kept on it


class ValueBudget:
    """Counts down the values that one body may still have."""

    __slots__ = ("has_unknown", "left")

    def __init__(self, values: int = MAX_VALUES) -> None:
        self.left = values
        self.has_unknown = False
        """A field with an unknown number and a value was skipped."""

    def spend(self, values: int = 1) -> None:
        """Count values. Raises RequestEntityTooLargeError beyond `MAX_VALUES`."""
        self.left -= values
        if self.left < 0:
            raise too_many_values()


_Reader = Callable[[int, Any, Any, ValueBudget], Any]
"""(wire type, value on the wire, JSON value decoded so far or None, budget) → JSON value."""


class MessageError(ValueError):
    """Bytes that are not a message; `decode_message` turns it into a BadRequestError."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:  # nearly all tags and lengths
        return data[at], at + 1
    result = shift = 0
    while True:
        if at >= len(data):
            raise MessageError("unexpected EOF")
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & MASK, at
        shift += 7
        if shift >= 70:
            raise MessageError("integer overflow")


def fields(data: bytes, budget: ValueBudget) -> Iterator[tuple[int, int, Any]]:
    """Yield (number, wire type, value) of each field of one message."""
    at, end = 0, len(data)
    while at < end:
        budget.spend()
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise MessageError(f"illegal tag {number}")
        value: Any
        if wire == VARINT:
            value, at = _varint(data, at)
        elif wire == BYTES:
            size, at = _varint(data, at)
            value = data[at : at + size] if size <= end - at else b""
            at += size
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            value = data[at : at + size]
            at += size
        else:
            raise MessageError(f"illegal wire type {wire}")
        if at > end:
            raise MessageError("unexpected EOF")
        yield number, wire, value


def decode_message(data: bytes, schema: Message) -> Obj:
    """Return the message as a JSON object. Raises BadRequestError, RequestEntityTooLargeError."""
    try:
        return _read_message(schema, data, {}, ValueBudget())
    except MessageError as error:
        raise _bad_message(schema, error) from None


def decode_stored_message(data: bytes, schema: Message) -> tuple[Obj, bool]:
    """Return a message from storage as a JSON object, and whether fields with unknown numbers were skipped. Raises BadRequestError.

    The number of values is bounded by the size of the message, which storage has accepted. Skipped zeros are not reported: Go
    writes fields that it no longer uses as zeros.
    """
    budget = ValueBudget(2 * len(data))
    try:
        return _read_message(schema, data, {}, budget), budget.has_unknown
    except MessageError as error:
        raise _bad_message(schema, error) from None


def _bad_message(schema: Message, error: MessageError) -> BadRequestError:
    return BadRequestError(f"protobuf: {schema.name.rsplit('.', 1)[-1]}: {error}")


def _read_message(schema: Message, data: bytes, obj: Obj, budget: ValueBudget) -> Obj:
    plan: dict[int, tuple[str, _Reader, bool]] | None = schema.__dict__.get(_PLAN)
    if plan is None:
        plan = schema.__dict__[_PLAN] = {
            field.number: (field.name, _reader(field.type), keeps_zero(field))
            for field in schema.fields
            if not field.within
        } | {number: ("", _embedded_reader(inner), False) for number, inner in schema.embedded.items()}
    always = set()
    for number, wire, value in fields(data, budget):
        entry = plan.get(number)
        if entry is None:
            budget.has_unknown = budget.has_unknown or bool(value)
            continue
        name, read, keep = entry
        if not name:
            inlined = read(wire, value, obj, budget)
            obj |= inlined
            always |= inlined.keys()
            continue
        try:
            obj[name] = read(wire, value, obj.get(name), budget)
        except MessageError as error:
            raise MessageError(f"{name}: {error}") from None
        if keep:
            always.add(name)
    return {name: value for name, value in obj.items() if value or (value is not None and name in always)}


def expect_wire_type(wire: int, wanted: int) -> None:
    if wire != wanted:
        raise MessageError(f"wrong wire type {wire}")


def utf8_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MessageError("invalid UTF-8") from None


def _signed_integer(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _decode_double(raw: bytes) -> float:
    (value,) = struct.unpack("<d", raw)
    if value - value != 0:  # infinities and NaN, which JSON does not have
        raise MessageError("number out of range")
    return float(value)


_NUMBERS: dict[Scalar, Callable[[int], Any]] = {
    Scalar.BOOL: bool,
    Scalar.INT32: lambda value: _signed_integer(value, 32),
    Scalar.INT64: lambda value: _signed_integer(value, 64),
}


def _decode_time(raw: bytes, micro: bool, budget: ValueBudget) -> str | None:
    if not raw:
        return None
    seconds = nanos = 0
    for number, wire, value in fields(raw, budget):
        if number in (1, 2):
            expect_wire_type(wire, VARINT)
            if number == 1:
                seconds = _signed_integer(value, 64)
            else:
                nanos = _signed_integer(value, 32)
    try:
        moment = EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000 if micro else 0)
    except OverflowError:
        raise MessageError("time out of range") from None
    if moment == ZERO_TIME:
        return None
    return rfc3339_micro(moment) if micro else rfc3339(moment)


def wrapped(raw: bytes, budget: ValueBudget) -> list[bytes]:
    """Return the values of field 1 of a message that wraps text or bytes (Quantity, ExtraValue, FieldsV1, RawExtension)."""
    found = []
    for number, wire, value in fields(raw, budget):
        if number == 1:
            expect_wire_type(wire, BYTES)
            found.append(value)
    return found


def _decode_int_or_string(raw: bytes, budget: ValueBudget) -> Any:
    kind, integer, text = 0, 0, ""
    for number, wire, value in fields(raw, budget):
        if number in (1, 2):
            expect_wire_type(wire, VARINT)
            if number == 1:
                kind = _signed_integer(value, 64)
            else:
                integer = _signed_integer(value, 32)
        elif number == 3:
            expect_wire_type(wire, BYTES)
            text = utf8_text(value)
    return text if kind == 1 else integer


def _decode_json_object(raw: bytes, budget: ValueBudget) -> Any:
    text = b"".join(wrapped(raw, budget)[-1:])
    if not text:
        return None
    budget.spend(count_values(text, budget.left))
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MessageError("not JSON") from None
    if not isinstance(value, dict) or depth_exceeds(value):
        raise MessageError("not a JSON object of reasonable depth")
    return value


def _decode_quantity(raw: bytes, budget: ValueBudget) -> str:
    text = "".join(utf8_text(item) for item in wrapped(raw, budget)[-1:])
    try:
        return canonical(text or "0")
    except ValueError as error:
        raise MessageError(str(error)) from None


_LENGTH_DELIMITED: dict[Scalar, Callable[[bytes, ValueBudget], Any]] = {
    Scalar.STRING: lambda raw, budget: utf8_text(raw),
    Scalar.BYTES: lambda raw, budget: binascii.b2a_base64(raw, newline=False).decode(),
    Scalar.TIME: lambda raw, budget: _decode_time(raw, False, budget),
    Scalar.MICRO_TIME: lambda raw, budget: _decode_time(raw, True, budget),
    Scalar.QUANTITY: _decode_quantity,
    Scalar.INT_OR_STRING: _decode_int_or_string,
    Scalar.STRING_LIST: lambda raw, budget: [utf8_text(item) for item in wrapped(raw, budget)],
    Scalar.FIELDS_V1: _decode_json_object,
    Scalar.RAW: _decode_json_object,
}


def _reader(kind: Type) -> _Reader:
    if isinstance(kind, Message):
        return _message_reader(kind)
    if isinstance(kind, ListOf):
        return _list_reader(kind)
    if isinstance(kind, MapOf):
        return _map_reader(kind)
    return _scalar_reader(kind)


def _message_reader(schema: Message) -> _Reader:
    def read(wire: int, value: Any, previous: Any, budget: ValueBudget) -> Any:
        expect_wire_type(wire, BYTES)
        return _read_message(schema, value, previous or {}, budget)

    return read


def _embedded_reader(schema: Message) -> _Reader:
    """Return a reader of fields that JSON has inline: the value so far is the object around them."""

    def read(wire: int, value: Any, previous: Any, budget: ValueBudget) -> Any:
        expect_wire_type(wire, BYTES)
        before = {name: previous[name] for name in schema.by_name if name in previous}
        return _read_message(schema, value, before, budget)

    return read


def _scalar_reader(kind: Scalar) -> _Reader:
    if kind in _LENGTH_DELIMITED:
        convert = _LENGTH_DELIMITED[kind]

        def read_blob(wire: int, value: Any, previous: Any, budget: ValueBudget) -> Any:
            expect_wire_type(wire, BYTES)
            return convert(value, budget)

        return read_blob
    wanted, number = (FIXED64, _decode_double) if kind is Scalar.DOUBLE else (VARINT, _NUMBERS[kind])

    def read(wire: int, value: Any, previous: Any, budget: ValueBudget) -> Any:
        expect_wire_type(wire, wanted)
        return number(value)

    return read


def _list_reader(kind: ListOf) -> _Reader:
    item = _reader(kind.item)
    packed = _packed_splitter(kind.item)

    def read(wire: int, value: Any, previous: Any, budget: ValueBudget) -> Any:
        items: list[Any] = previous or []
        if packed is not None and wire == BYTES:
            parts = packed(value)
            budget.spend(len(parts))
            items += [item(wanted, part, None, budget) for wanted, part in parts]
        else:
            items.append(item(wire, value, None, budget))
        return items

    return read


def _packed_splitter(kind: Type) -> Callable[[bytes], list[tuple[int, Any]]] | None:
    """Return the function that splits a packed field of this type; None for types that cannot be packed."""
    if kind is Scalar.DOUBLE:
        return _split_doubles
    return _split_varints if kind in _NUMBERS else None


def _split_doubles(data: bytes) -> list[tuple[int, Any]]:
    if len(data) % 8:
        raise MessageError("unexpected EOF")
    return [(FIXED64, data[at : at + 8]) for at in range(0, len(data), 8)]


def _split_varints(data: bytes) -> list[tuple[int, Any]]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append((VARINT, value))
    return found


def _map_reader(kind: MapOf) -> _Reader:
    item = _reader(kind.value)

    def read(wire: int, value: Any, previous: Any, budget: ValueBudget) -> Any:
        expect_wire_type(wire, BYTES)
        entries: Obj = previous or {}
        key, map_value = "", zero(kind.value)
        for number, inner, part in fields(value, budget):
            if number == 1:
                expect_wire_type(inner, BYTES)
                key = utf8_text(part)
            elif number == 2:
                map_value = item(inner, part, map_value, budget)
        entries[key] = map_value
        return entries

    return read
