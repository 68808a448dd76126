"""Protobuf of Kubernetes: decoding, encoding, and the envelope of a message."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from mooring.apimachinery.codec.json import MAX_VALUES, count_values, depth_exceeds, too_many_values
from mooring.apimachinery.codec.unmarshal import keeps_zero, zero
from mooring.apimachinery.quantity import canonical
from mooring.apimachinery.schema import ListOf, MapOf, Message, Obj, Scalar, Type
from mooring.clock import ZERO_TIME, parse_rfc3339, rfc3339, rfc3339_micro
from mooring.errors import BadRequestError

# Protobuf decoding of messages by their schema.
#
# Source: docs/protocol/negotiation.md#field-numbers.
#
# Rules kept here:
# * proto2 wire format (protobuf.dev, "Encoding"): varints, fixed 32 and 64, length-delimited; repeated scalars packed or not;
#   maps as entries key=1 value=2; the last value of a field counts, and repeated occurrences of one message are merged. Unknown
#   field numbers are skipped; groups, which Kubernetes never had, are refused. Fields `within` an embedded message are inline in
#   the object.
# * The result equals the same object sent as JSON: base64, RFC 3339, absent rather than empty. Go writes every non-pointer field
#   even when zero, so zeros are dropped unless the field `keeps_zero`; an empty Time message is Go's zero time, and absent.
# * Any input gives an object, BadRequestError or RequestEntityTooLargeError. Nesting is bounded by the schema, because unknown
#   fields are skipped.
# * Every field of every message counts against `MAX_VALUES`, and so do the values of embedded JSON.

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types: the low three bits of a tag."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MASK = (1 << 64) - 1
_READ_PLAN = "_protobuf_read_plan"  # compiled once for each message and kept on it


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
    # Nearly all tags and lengths.
    if at < len(data) and data[at] < 0x80:
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
        # Each field counts: a message can be two bytes, and as an object many more.
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
            # The length is that of the sender: checked before it is used.
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
    plan: dict[int, tuple[str, _Reader, bool]] | None = schema.__dict__.get(_READ_PLAN)
    if plan is None:
        plan = schema.__dict__[_READ_PLAN] = {
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
    # Infinities and NaN, which JSON does not have.
    if value - value != 0:
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
    # Before it is decoded, as for a JSON body.
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


# Protobuf encoding of messages by their schema.
#
# Source: docs/protocol/negotiation.md#field-numbers.
#
# Rules kept here: fields are written in the order of their numbers and map keys are sorted, so that equal objects give equal
# bytes. Objects fit their schema already (`mooring.apimachinery.codec.unmarshal`). Fields without a number, and kind and
# apiVersion, are left out.

_WRITE_PLAN = "_protobuf_write_plan"  # compiled once for each message and kept on it
_INTEGERS = (Scalar.BOOL, Scalar.INT32, Scalar.INT64)

_Writer = Callable[[bytearray, Any], None]


def encode_message(obj: Obj, schema: Message) -> bytes:
    """Return the message of an object that fits `schema`."""
    plan: list[tuple[str, _Writer]] | None = schema.__dict__.get(_WRITE_PLAN)
    if plan is None:
        parts: dict[int, tuple[str, Type]] = {
            field.number: (field.name, field.type) for field in schema.fields if field.number and not field.within
        } | {number: ("", inner) for number, inner in schema.embedded.items()}
        plan = schema.__dict__[_WRITE_PLAN] = [
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


# Protobuf bodies of Kubernetes: the runtime.Unknown envelope around one message, and the frames of a watch.
#
# Rules kept here (docs/protocol/negotiation.md#protobuf-envelope, docs/protocol/watch.md):
# * A body is `k8s\0` and runtime.Unknown {typeMeta=1 {apiVersion=1, kind=2}, raw=2, contentEncoding=3, contentType=4}.
# * A watch frame is 4 bytes of big-endian length and WatchEvent {type=1, object=2 {raw=1}}, where raw is again a whole body.
# * Decoding any bytes gives a value, BadRequestError or RequestEntityTooLargeError.

MAGIC = b"k8s\x00"
"""First bytes of every protobuf body of Kubernetes."""


def decode_envelope(data: bytes) -> tuple[str, str, bytes]:
    """Return (apiVersion, kind, message) of a protobuf body. Raises BadRequestError, RequestEntityTooLargeError."""
    budget = ValueBudget()
    if not data:
        raise BadRequestError("empty data")
    if not data.startswith(MAGIC):
        raise BadRequestError("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    api_version = kind = ""
    raw = b""
    try:
        for number, wire, value in fields(data[len(MAGIC) :], budget):
            if number not in (1, 2, 3):
                continue
            expect_wire_type(wire, BYTES)
            if number == 1:
                for type_number, type_wire, name in fields(value, budget):
                    if type_number in (1, 2):
                        expect_wire_type(type_wire, BYTES)
                        if type_number == 1:
                            api_version = utf8_text(name)
                        else:
                            kind = utf8_text(name)
            elif number == 2:
                raw = value
            elif value:
                raise MessageError("a content encoding is not supported")
    except MessageError as error:
        raise BadRequestError(str(error)) from None
    return api_version, kind, raw


def encode_envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    """Return the protobuf body around one encoded message, as kube-apiserver writes it (empty fields 3 and 4 included)."""
    before, after = envelope_parts(api_version, kind, len(raw))
    return before + raw + after


def envelope_parts(api_version: str, kind: str, size: int) -> tuple[bytes, bytes]:
    """Return the bytes of a protobuf body before and after an encoded message of `size` bytes."""
    type_meta = bytearray()
    put_bytes(type_meta, 1, api_version.encode())
    put_bytes(type_meta, 2, kind.encode())
    before, after = bytearray(MAGIC), bytearray()
    put_bytes(before, 1, bytes(type_meta))
    put_length(before, 2, size)
    for number in (3, 4):
        put_bytes(after, number, b"")
    return bytes(before), bytes(after)


def encode_object(obj: Obj, schema: Message) -> bytes:
    """Return the protobuf body of an object that has its kind and apiVersion."""
    return encode_envelope(obj["apiVersion"], obj["kind"], encode_message(obj, schema))


def encode_watch_frame(event_type: str, envelope: bytes) -> bytes:
    """Return one frame of a protobuf watch around a whole protobuf body."""
    event = bytearray()
    put_bytes(event, 1, event_type.encode())
    put_bytes(event, 2, wrap(envelope))
    return struct.pack(">I", len(event)) + bytes(event)
