"""Unmarshal: make a decoded JSON object fit its schema, as decoding into a Go struct would.

Source: docs/protocol/requests.md#options, docs/protocol/objects.md.

Rules kept here:
* Unknown fields are dropped and their paths returned, for field validation.
* A value of the wrong JSON type, a number out of range, bad base64 and bad times are 400 in the words of Go's decoders, which name
  the fields above the value. Of several, the first time, quantity or port that cannot be read is reported, otherwise
  the first. Values are never quoted, except numbers and times: a body may contain secrets.
* null means absent, and so does a zero value unless the field is a `pointer` or `required` (`keeps_zero`). So an object is the same
  whether it was sent as JSON or as protobuf. null inside a list or map is the zero of its type, as in Go. Go's zero time is absent
  everywhere.
* A non-empty object has its `required` texts, numbers and truth values, with their zero when they were not sent.
* Base64, times and quantities are rewritten in their normal form.
* Field names are case-sensitive.

Each `Message` is compiled once into closures, which are kept on the message: this code runs on every write.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from mooring.apimachinery.codec.goerrors import (
    BEYOND_FLOAT,
    JSON_TYPES,
    MICRO_TIME_LAYOUT,
    TIME_LAYOUT,
    base64_error,
    time_error,
)
from mooring.apimachinery.codec.json import MAX_DEPTH, MAX_REPORTED, FieldPath, depth_exceeds, path_text
from mooring.apimachinery.quantity import BAD_FORMAT, canonical
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar, Type
from mooring.clock import ZERO_TIME, parse_rfc3339, rfc3339, rfc3339_micro
from mooring.errors import BadRequestError

Check = Callable[[Any, FieldPath, str | int, list[str]], Any]
"""(value, path of its parent, its name or index, unknown paths found so far) → normal form of the value."""

_PLAN = "_unmarshal_plan"
_NUMBERS = frozenset((Scalar.INT32, Scalar.INT64, Scalar.DOUBLE, Scalar.INT_OR_STRING))
"""Types for which encoding/json quotes a number that does not fit."""
_GO_KINDS = {str: "string", bool: "bool", int: "int64", float: "float64", dict: "map", list: "slice"}
_INT_RANGES = {Scalar.INT32: 2**31, Scalar.INT64: 2**63}
MAX_TIME = 256
"""Characters of a time that an error quotes; real ones have fewer than forty."""
_MICROSECONDS = re.compile(r"[0-9T:-]+\.[0-9]{6}(Z|[+-][0-9:]{5})", re.ASCII)
_UTC_SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
TIMES = frozenset((Scalar.TIME, Scalar.MICRO_TIME))
"""Types without a zero that is kept: the zero time means absent even where the field is a pointer or required."""
_WITH_DECODER = TIMES | {Scalar.QUANTITY, Scalar.INT_OR_STRING}
"""Types that Go decodes by a method of their own (UnmarshalJSON), which may fail."""
_WRITTEN_WHEN_REQUIRED = frozenset((Scalar.STRING, Scalar.BOOL, Scalar.INT32, Scalar.INT64))
"""Types whose required fields Go always writes and whose zero every client accepts."""
_GO_TYPES = {
    Scalar.STRING: "string",
    Scalar.BOOL: "bool",
    Scalar.INT32: "int32",
    Scalar.INT64: "int64",
    Scalar.DOUBLE: "float64",
    Scalar.BYTES: "[]uint8",
    Scalar.TIME: "string",
    Scalar.MICRO_TIME: "string",
    Scalar.QUANTITY: "string",
    Scalar.INT_OR_STRING: "int32",
    Scalar.STRING_LIST: "[]string",
    Scalar.FIELDS_V1: "map[string]interface {}",
    Scalar.RAW: "map[string]interface {}",
}


def keeps_zero(field: Field) -> bool:
    """Return whether a zero value of this field differs from an absent one."""
    return field.pointer or field.required


def required_zeros(schema: Message) -> tuple[tuple[str, Any], ...]:
    """Return the fields that every non-empty object of `schema` has, each with its zero."""
    return tuple(
        (field.name, zero(field.type))
        for field in schema.fields
        if field.required and isinstance(field.type, Scalar) and field.type in _WRITTEN_WHEN_REQUIRED
    )


class _MismatchError(Exception):
    """A value that does not fit its field."""

    def __init__(self, value: Any, at: FieldPath, reason: str = "") -> None:
        super().__init__(reason)
        self.value = value
        self.at = at
        self.reason = reason
        """Error of the type's own decoder; empty when encoding/json makes the error."""


def unmarshal(obj: Any, schema: Message, *, converted: bool = False) -> list[str]:
    """Change `obj` in place so that it fits `schema`; return the paths of the first unknown fields that were dropped.

    `kind` and `apiVersion` are fields of every outermost object. Raises BadRequestError in the words of encoding/json, or with
    `converted` in those of the converter that kube-apiserver uses after a strategic merge patch.
    """
    plan = schema.__dict__.get(_PLAN)
    if plan is None:
        plan = schema.__dict__[_PLAN] = _message_check(schema, root=True)
    unknown: list[str] = []
    try:
        plan(obj, None, "", unknown)
    except _MismatchError as first:
        # Go ends at the first error of a type's own decoder, and goes on after a wrong JSON type, which it reports last.
        error = first if converted else _decoder_mismatch(obj, schema, None) or first
        field = _locate(error.at, schema)
        reason = error.reason or _decoder_error(error.value, field.type)
        if not reason:
            reason = _conversion_error(error.value, field) if converted else _unmarshal_error(error.value, field)
        elif converted and field.type is Scalar.BYTES:
            reason = f"error decoding from json: {reason}"
        raise BadRequestError(reason) from None
    return unknown


def _decoder_mismatch(value: Any, kind: Type, at: FieldPath) -> _MismatchError | None:
    """Return the first value that the own decoder of its Go type refuses."""
    members: Iterable[tuple[str | int, Any, Type]] = ()
    if isinstance(kind, Message) and isinstance(value, dict):
        fields = kind.by_name
        members = ((name, item, fields[name].type) for name, item in value.items() if name in fields)
    elif isinstance(kind, ListOf) and isinstance(value, list):
        members = ((index, item, kind.item) for index, item in enumerate(value))
    elif isinstance(kind, MapOf) and isinstance(value, dict):
        members = ((name, item, kind.value) for name, item in value.items())
    for name, item, inner in members:
        if item is None:
            continue
        if inner in _WITH_DECODER:
            try:
                _check_for(inner)(item, at, name, [])
            except _MismatchError as error:
                return error
        elif found := _decoder_mismatch(item, inner, (at, name)):
            return found
    return None


@dataclass(frozen=True, slots=True)
class _Location:
    """A field as Go's errors name it."""

    owner: str
    """Name of the struct that has the field; empty for the object itself."""
    path: str
    """Names of fields, without map keys and indices."""
    type: Type
    named: str
    """Go name of the type of the field, or of its items or values; empty for an unnamed type."""


def _locate(at: FieldPath, schema: Message) -> _Location:
    steps: list[str | int] = []
    while at is not None:
        at, name = at
        steps.append(name)
    owner, named, kind = "", "", cast("Type", schema)
    names: list[str] = []
    for step in reversed(steps):
        if isinstance(kind, Message):
            name = str(step)
            owner = kind.name.rpartition(".")[2]
            # kind and apiVersion are in no schema.
            field = kind.by_name.get(name) or Field(name, 0, Scalar.STRING)
            named, kind = field.go_type, field.type
            names += (field.embedded, name) if field.embedded else (name,)
        elif isinstance(kind, ListOf):
            kind = kind.item
        else:
            kind = kind.value if isinstance(kind, MapOf) else Scalar.STRING
            named = "" if named.endswith("List") else named
    return _Location(owner, ".".join(names), kind, named)


def _go_type(kind: Type, named: str) -> str:
    if isinstance(kind, Message):
        return ".".join(kind.name.split(".")[-2:])
    if isinstance(kind, ListOf):
        return f"[]{_go_type(kind.item, named)}"
    if isinstance(kind, MapOf):
        return named if named.endswith("List") else f"map[string]{_go_type(kind.value, named)}"
    return named if named and kind in (Scalar.STRING, Scalar.STRING_LIST) else _GO_TYPES[kind]


def _unmarshal_error(value: Any, field: _Location) -> str:
    kind = _go_type(field.type, field.named)
    # Go reads a list as one of numbers.
    if field.type is Scalar.BYTES and isinstance(value, list) and value:
        value, kind = value[0], "uint8"
    json_type = JSON_TYPES.get(type(value))
    if json_type is None:
        json_type = f"number {value}" if field.type in _NUMBERS else "number"
    where = f"Go struct field {field.owner}.{field.path}" if field.path else "Go value"
    return f"json: cannot unmarshal {json_type} into {where} of type {kind}"


def _conversion_error(value: Any, field: _Location) -> str:
    go_kind = _GO_KINDS[type(value)]
    if isinstance(field.type, Message):
        return f"cannot restore struct from: {go_kind}"
    if isinstance(field.type, MapOf):
        return f"cannot restore map from {go_kind}"
    if isinstance(field.type, ListOf) or field.type in (Scalar.BYTES, Scalar.STRING_LIST):
        return f"cannot restore slice from {go_kind}"
    kind = _GO_TYPES[field.type]
    if type(value) in (int, float) and kind != "bool" and not (kind == "string" and type(value) is float):
        return f"cannot convert {go_kind} to {_go_type(field.type, field.named)}"
    return f"unrecognized type: {kind}"


def _decoder_error(value: Any, kind: Type) -> str:
    """Return the error of a type's own decoder for a value; empty for a type without one."""
    if kind is Scalar.QUANTITY:
        return BAD_FORMAT
    if not isinstance(value, str):
        return ""
    if kind is Scalar.BYTES:
        return base64_error(value)
    if kind in TIMES:
        return time_error(value[:MAX_TIME], MICRO_TIME_LAYOUT if kind is Scalar.MICRO_TIME else TIME_LAYOUT)
    return ""


def _message_check(schema: Message, root: bool = False) -> Check:
    rules: dict[str, tuple[Check, bool]] = {}
    if root:
        text = _scalar_check(Scalar.STRING)
        rules = {"kind": (text, False), "apiVersion": (text, False)}
    for field in schema.fields:
        always = (keeps_zero(field) and field.type not in TIMES) or (root and field.name == "metadata")
        rules[field.name] = (_check_for(field.type), always)
    zeros = required_zeros(schema)
    find = rules.get

    def check(value: Any, above: FieldPath, name: str | int, unknown: list[str]) -> Any:
        here = None if root else (above, name)
        if type(value) is not dict:
            raise _MismatchError(value, here)
        drop = []
        for key, member in value.items():
            rule = find(key)
            if rule is None:
                if len(unknown) < MAX_REPORTED:
                    unknown.append(path_text((here, key)))
                drop.append(key)
            elif member is None:
                drop.append(key)
            else:
                kept = rule[0](member, here, key, unknown)
                if kept is not member:
                    value[key] = kept
                if not kept and not rule[1]:
                    drop.append(key)
        for key in drop:
            del value[key]
        if value:
            # As Go writes a field without omitempty, and as protobuf always has it. Typed clients refuse objects
            # without them (lightkube, and the Python client from 36 on).
            for key, default in zeros:
                value.setdefault(key, default)
        return value

    return check


_ZEROS: dict[Scalar, Any] = {
    Scalar.BOOL: False,
    Scalar.INT32: 0,
    Scalar.INT64: 0,
    Scalar.DOUBLE: 0.0,
    Scalar.INT_OR_STRING: 0,
    Scalar.QUANTITY: "0",
}


def zero(kind: Type) -> Any:
    """Return a new zero value of a type, the meaning of null inside a list or map."""
    if isinstance(kind, ListOf) or kind is Scalar.STRING_LIST:
        return []
    if isinstance(kind, Message | MapOf) or kind in (Scalar.RAW, Scalar.FIELDS_V1):
        return {}
    return _ZEROS.get(kind, "")


def _check_for(kind: Type) -> Check:
    if isinstance(kind, Message):
        return _message_check(kind)
    if isinstance(kind, ListOf):
        return _list_check(kind)
    if isinstance(kind, MapOf):
        return _map_check(kind)
    return _scalar_check(kind)


def _list_check(kind: ListOf) -> Check:
    item_check = _check_for(kind.item)

    def check(value: Any, above: FieldPath, name: str | int, unknown: list[str]) -> Any:
        here = (above, name)
        if type(value) is not list:
            raise _MismatchError(value, here)
        for index, item in enumerate(value):
            value[index] = zero(kind.item) if item is None else item_check(item, here, index, unknown)
        return value

    return check


def _map_check(kind: MapOf) -> Check:
    item_check = _check_for(kind.value)

    def check(value: Any, above: FieldPath, name: str | int, unknown: list[str]) -> Any:
        here = (above, name)
        if type(value) is not dict:
            raise _MismatchError(value, here)
        for key, item in value.items():
            value[key] = zero(kind.value) if item is None else item_check(item, here, key, unknown)
        return value

    return check


def _scalar_check(kind: Scalar) -> Check:
    if kind is Scalar.STRING_LIST:
        return _list_check(ListOf(Scalar.STRING))
    types, normal = _SCALARS[kind]

    def check(value: Any, above: FieldPath, name: str | int, unknown: list[str]) -> Any:
        if type(value) not in types:
            raise _MismatchError(value, (above, name))
        if normal is None:
            return value
        try:
            return normal(value)
        except ValueError as error:
            raise _MismatchError(value, (above, name), str(error)) from None

    return check


def _integer_check(kind: Scalar) -> Callable[[int], int]:
    bound = _INT_RANGES[kind]

    def normal(value: int) -> int:
        if -bound <= value < bound:
            return value
        raise ValueError

    return normal


def _normal_double(value: float) -> float:
    if isinstance(value, int) and abs(value) >= BEYOND_FLOAT:
        raise ValueError
    return value


def _normal_base64(value: str) -> str:
    try:
        raw = binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        # Go's decoder ignores line ends.
        text = value.replace("\n", "").replace("\r", "")
        try:
            raw = binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            raise ValueError from None
    return binascii.b2a_base64(raw, newline=False).decode()


def _parse_time(value: str) -> datetime:
    try:
        return parse_rfc3339(value)
    except (ValueError, OverflowError):
        raise ValueError from None


def _normal_time(value: str) -> str:
    # The form of nearly every client: normal already, only the date is checked.
    if _UTC_SECONDS.fullmatch(value):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            raise ValueError from None
        return "" if value.startswith("0001-01-01T00:00:00") else value
    moment = _parse_time(value)
    return "" if moment == ZERO_TIME else rfc3339(moment)


def _normal_micro_time(value: str) -> str:
    if value and not _MICROSECONDS.fullmatch(value):
        raise ValueError
    moment = _parse_time(value)
    return "" if moment == ZERO_TIME else rfc3339_micro(moment)


def _normal_int_or_string(value: Any) -> Any:
    return value if type(value) is str else _integer_check(Scalar.INT32)(value)


def _bounded_depth(value: Any) -> Any:
    if depth_exceeds(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


_SCALARS: dict[Scalar, tuple[frozenset[type], Callable[[Any], Any] | None]] = {
    Scalar.STRING: (frozenset({str}), None),
    Scalar.BOOL: (frozenset({bool}), None),
    Scalar.INT32: (frozenset({int}), _integer_check(Scalar.INT32)),
    Scalar.INT64: (frozenset({int}), _integer_check(Scalar.INT64)),
    Scalar.DOUBLE: (frozenset({int, float}), _normal_double),
    Scalar.BYTES: (frozenset({str}), _normal_base64),
    Scalar.TIME: (frozenset({str}), _normal_time),
    Scalar.MICRO_TIME: (frozenset({str}), _normal_micro_time),
    Scalar.QUANTITY: (frozenset({str, int, float}), canonical),
    Scalar.INT_OR_STRING: (frozenset({str, int}), _normal_int_or_string),
    Scalar.FIELDS_V1: (frozenset({dict}), _bounded_depth),
    Scalar.RAW: (frozenset({dict}), _bounded_depth),
}
