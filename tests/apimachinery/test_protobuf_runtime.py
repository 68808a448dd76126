"""Our protobuf codec against Google's runtime, on descriptors made from the same schemas.

The runtime is a tool of this test only; where it is not installed the hand-made vectors of test_protobuf.py stand alone.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from hypothesis import given

from mooring.apimachinery.codec.protobuf import decode_message, encode_message
from mooring.apimachinery.schema import ListOf, MapOf, Message, Obj, Scalar, Type
from mooring.clock import parse_rfc3339
from tests.support.shapes import EXAMPLE, objects

descriptor_pb2: Any = import_module("google.protobuf.descriptor_pb2")
descriptor_pool: Any = import_module("google.protobuf.descriptor_pool")
message_factory: Any = import_module("google.protobuf.message_factory")

_F = descriptor_pb2.FieldDescriptorProto
_NUMBERS = {
    Scalar.STRING: _F.TYPE_STRING,
    Scalar.BOOL: _F.TYPE_BOOL,
    Scalar.INT32: _F.TYPE_INT32,
    Scalar.INT64: _F.TYPE_INT64,
    Scalar.DOUBLE: _F.TYPE_DOUBLE,
    Scalar.BYTES: _F.TYPE_BYTES,
}
_WRAPPERS: dict[Scalar, list[tuple[str, int, int, bool]]] = {
    Scalar.TIME: [("seconds", 1, _F.TYPE_INT64, False), ("nanos", 2, _F.TYPE_INT32, False)],
    Scalar.MICRO_TIME: [("seconds", 1, _F.TYPE_INT64, False), ("nanos", 2, _F.TYPE_INT32, False)],
    Scalar.QUANTITY: [("string", 1, _F.TYPE_STRING, False)],
    Scalar.INT_OR_STRING: [
        ("type", 1, _F.TYPE_INT64, False),
        ("intVal", 2, _F.TYPE_INT32, False),
        ("strVal", 3, _F.TYPE_STRING, False),
    ],
    Scalar.STRING_LIST: [("items", 1, _F.TYPE_STRING, True)],
    Scalar.FIELDS_V1: [("Raw", 1, _F.TYPE_BYTES, False)],
    Scalar.RAW: [("raw", 1, _F.TYPE_BYTES, False)],
}


class _Descriptors:
    """A proto2 file with one message per schema and wrapper."""

    def __init__(self) -> None:
        self.file = descriptor_pb2.FileDescriptorProto(name="shapes.proto", package="t", syntax="proto2")
        self.known: set[str] = set()

    def _fresh(self, name: str) -> Any:
        self.known.add(name)
        return self.file.message_type.add(name=name)

    def message(self, schema: Message) -> str:
        name = schema.name.rsplit(".", 1)[-1]
        if name not in self.known:
            target = self._fresh(name)
            for field in schema.fields:
                if field.number:
                    self._field(target, name, field.name, field.number, field.type)
        return f".t.{name}"

    def _wrapper(self, kind: Scalar) -> str:
        if kind.name not in self.known:
            target = self._fresh(kind.name)
            for name, number, type_, repeated in _WRAPPERS[kind]:
                label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
                target.field.add(name=name, number=number, type=type_, label=label)
        return f".t.{kind.name}"

    def _field(
        self, target: Any, owner: str, name: str, number: int, kind: Type, label: int = _F.LABEL_OPTIONAL
    ) -> None:
        if isinstance(kind, ListOf):
            self._field(target, owner, name, number, kind.item, _F.LABEL_REPEATED)
        elif isinstance(kind, MapOf):
            entry = target.nested_type.add(name=f"{name.capitalize()}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
            self._field(entry, owner, "value", 2, kind.value)
            type_name = f".t.{owner}.{entry.name}"
            target.field.add(
                name=name, number=number, type=_F.TYPE_MESSAGE, label=_F.LABEL_REPEATED, type_name=type_name
            )
        elif isinstance(kind, Message):
            type_name = self.message(kind)
            target.field.add(name=name, number=number, type=_F.TYPE_MESSAGE, label=label, type_name=type_name)
        elif kind in _NUMBERS:
            target.field.add(name=name, number=number, type=_NUMBERS[kind], label=label)
        else:
            type_name = self._wrapper(kind)
            target.field.add(name=name, number=number, type=_F.TYPE_MESSAGE, label=label, type_name=type_name)


def _class(schema: Message) -> Any:
    descriptors = _Descriptors()
    name = descriptors.message(schema).lstrip(".")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptors.file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


RUNTIME = _class(EXAMPLE)


def _value(held: Any, kind: Type) -> Any:
    """The JSON form of one value of the runtime, told by other means than our codec's."""
    if isinstance(kind, Message):
        return _object(held, kind)
    assert isinstance(kind, Scalar)
    match kind:
        case Scalar.BYTES:
            return base64.b64encode(held).decode()
        case Scalar.TIME | Scalar.MICRO_TIME:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=held.seconds, microseconds=held.nanos // 1000)
        case Scalar.QUANTITY:
            return held.string
        case Scalar.INT_OR_STRING:
            return held.strVal if held.type else held.intVal
        case Scalar.STRING_LIST:
            return list(held.items)
        case Scalar.FIELDS_V1:
            return json.loads(held.Raw)
        case Scalar.RAW:
            return json.loads(held.raw)
    return held


def _object(message: Any, schema: Message) -> Obj:
    found: Obj = {}
    for descriptor, held in message.ListFields():
        kind = schema.by_name[descriptor.name].type
        if isinstance(kind, ListOf):
            found[descriptor.name] = [_value(item, kind.item) for item in held]
        elif isinstance(kind, MapOf):
            found[descriptor.name] = {key: _value(held[key], kind.value) for key in held}
        else:
            found[descriptor.name] = _value(held, kind)
    return found


def _with_moments(value: Any, kind: Type) -> Any:
    """Our object with times as moments, so that the two forms compare."""
    if isinstance(kind, Message):
        return {key: _with_moments(item, kind.by_name[key].type) for key, item in value.items()}
    if isinstance(kind, ListOf):
        return [_with_moments(item, kind.item) for item in value]
    if isinstance(kind, MapOf):
        return {key: _with_moments(item, kind.value) for key, item in value.items()}
    return parse_rfc3339(value) if kind in (Scalar.TIME, Scalar.MICRO_TIME) else value


@given(objects(EXAMPLE))
def test_the_runtime_reads_what_we_write_and_we_read_what_it_writes(obj: Obj) -> None:
    message = RUNTIME()
    message.ParseFromString(encode_message(obj, EXAMPLE))
    assert _object(message, EXAMPLE) == _with_moments(obj, EXAMPLE)
    assert decode_message(message.SerializeToString(), EXAMPLE) == obj
