"""Makes a decoded JSON object fit its schema, as decoding into a Go struct would (reference/kubernetes.md 7.12, 7.13).

Rules kept here:
* Unknown fields are dropped and their paths returned; fieldValidation decides what becomes of them.
* A value of the wrong JSON type, a number out of range, bad base64 and bad times are 400 with the path of the field. Values are
  never echoed, except numbers: a body may hold secrets.
* null means absent, and so does a zero value unless the field is a `pointer` or `required` (`keeps_zero`): objects look the
  same whether they came as JSON or as protobuf. Null inside a list or map is that type's zero, as in Go. Go's zero time is
  absent wherever it stands.
* In a part that says anything, a `required` text, number or truth value that was not given is there with its zero, as Go
  writes a field without omitempty: typed clients refuse objects without it (lightkube, and the Python client from 36 on).
  In protobuf such fields are always sent.
* Base64, times and quantities are rewritten in their one normal form.
* Field names match exactly, letter case included.

Each `Message` is compiled once into closures, kept on the message itself: this runs on every write.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from mooring.clock import ZERO_TIME, parse_rfc3339, rfc3339, rfc3339_micro
from mooring.errors import BadRequestError
from mooring.wire.fieldpath import MAX_REPORTED, FieldPath, path_text
from mooring.wire.quantity import canonical
from mooring.wire.schema import Field, ListOf, MapOf, Message, Scalar, Type

MAX_DEPTH = 100
"""Levels of nesting in a body. The deepest Kubernetes kind has about 30; recursion elsewhere must never run out of stack."""
MAX_VALUES = 100_000
"""Values in a body, aliases expanded. A Role of 8 000 rules has 64 000 and a full EndpointSlice 20 000. Each costs the server some
microseconds and 60 bytes of memory, and 3 MiB could hold a million of them."""

Check = Callable[[Any, FieldPath, str | int, list[str]], Any]
"""(value, path above it, its name or index, unknown paths found so far) → normal form of the value."""

_PLAN = "_conform_plan"
_JSON_TYPES = {str: "string", bool: "bool", dict: "object", list: "array"}
_INT_RANGES = {Scalar.INT32: 2**31, Scalar.INT64: 2**63}
_UTC_SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
TIMES = frozenset((Scalar.TIME, Scalar.MICRO_TIME))
"""Types without a zero that could be kept: the zero time is absence also where the field is a pointer or required."""
_ALWAYS_SHOWN = frozenset((Scalar.STRING, Scalar.BOOL, Scalar.INT32, Scalar.INT64))
"""Types whose required fields Go always writes and whose zero every client reads."""
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
    Scalar.INT_OR_STRING: "string",
    Scalar.STRING_LIST: "[]string",
    Scalar.FIELDS_V1: "map[string]interface {}",
    Scalar.RAW: "map[string]interface {}",
}


def keeps_zero(field: Field) -> bool:
    """Whether a zero value of this field says something that absence does not."""
    return field.pointer or field.required


def shown_when_missing(schema: Message) -> tuple[tuple[str, Any], ...]:
    """The fields of `schema` that whatever is not empty shows, with the zero value that stands for nothing given."""
    return tuple(
        (field.name, zero(field.type))
        for field in schema.fields
        if field.required and isinstance(field.type, Scalar) and field.type in _ALWAYS_SHOWN
    )


def conform(obj: Any, schema: Message) -> list[str]:
    """Change `obj` in place so that it fits `schema`; return the paths of the first unknown fields that were dropped.

    `kind` and `apiVersion` are known at the top of every object. Raises BadRequestError.
    """
    plan = schema.__dict__.get(_PLAN)
    if plan is None:
        plan = schema.__dict__[_PLAN] = _message(schema, root=True)
    unknown: list[str] = []
    plan(obj, None, "", unknown)
    return unknown


def depth_exceeds(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Whether lists and objects nest deeper than `limit`; looks level by level, so that it needs no stack itself."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


def _go_type(kind: Type) -> str:
    if isinstance(kind, Message):
        return ".".join(kind.name.split(".")[-2:])
    if isinstance(kind, ListOf):
        return f"[]{_go_type(kind.item)}"
    if isinstance(kind, MapOf):
        return f"map[string]{_go_type(kind.value)}"
    return _GO_TYPES[kind]


def _wrong(value: Any, at: FieldPath, owner: str, wanted: str) -> BadRequestError:
    given = _JSON_TYPES.get(type(value)) or f"number {value}"
    path = path_text(at)
    where = f"Go struct field {owner}.{path}" if path else "Go value"
    return BadRequestError(f"json: cannot unmarshal {given} into {where} of type {wanted}")


def _bad(path: str, why: str) -> BadRequestError:
    return BadRequestError(f"json: cannot unmarshal field {path}: {why}")


def _message(schema: Message, root: bool = False) -> Check:
    owner = schema.name.rsplit(".", 1)[-1]
    rules: dict[str, tuple[Check, bool]] = {}
    if root:
        text = _scalar(Scalar.STRING, owner)
        rules = {"kind": (text, False), "apiVersion": (text, False)}
    for field in schema.fields:
        always = (keeps_zero(field) and field.type not in TIMES) or (root and field.name == "metadata")
        rules[field.name] = (_check(field.type, owner), always)
    shown = shown_when_missing(schema)
    find = rules.get
    go_type = _go_type(schema)

    def check(value: Any, above: FieldPath, name: str | int, unknown: list[str]) -> Any:
        here = None if root else (above, name)
        if type(value) is not dict:
            raise _wrong(value, here, owner, go_type)
        drop = []
        for key, given in value.items():
            rule = find(key)
            if rule is None:
                if len(unknown) < MAX_REPORTED:
                    unknown.append(path_text((here, key)))
                drop.append(key)
            elif given is None:
                drop.append(key)
            else:
                kept = rule[0](given, here, key, unknown)
                if kept is not given:
                    value[key] = kept
                if not kept and not rule[1]:
                    drop.append(key)
        for key in drop:
            del value[key]
        if value:
            for key, nothing in shown:
                value.setdefault(key, nothing)
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
    """A fresh zero value of a type: what null means inside a list or map."""
    if isinstance(kind, ListOf) or kind is Scalar.STRING_LIST:
        return []
    if isinstance(kind, Message | MapOf) or kind in (Scalar.RAW, Scalar.FIELDS_V1):
        return {}
    return _ZEROS.get(kind, "")


def _check(kind: Type, owner: str) -> Check:
    if isinstance(kind, Message):
        return _message(kind)
    if isinstance(kind, ListOf):
        return _list(kind, owner)
    if isinstance(kind, MapOf):
        return _map(kind, owner)
    return _scalar(kind, owner)


def _list(kind: ListOf, owner: str) -> Check:
    item_check = _check(kind.item, owner)
    go_type = _go_type(kind)

    def check(value: Any, above: FieldPath, name: str | int, unknown: list[str]) -> Any:
        here = (above, name)
        if type(value) is not list:
            raise _wrong(value, here, owner, go_type)
        for index, item in enumerate(value):
            value[index] = zero(kind.item) if item is None else item_check(item, here, index, unknown)
        return value

    return check


def _map(kind: MapOf, owner: str) -> Check:
    item_check = _check(kind.value, owner)
    go_type = _go_type(kind)

    def check(value: Any, above: FieldPath, name: str | int, unknown: list[str]) -> Any:
        here = (above, name)
        if type(value) is not dict:
            raise _wrong(value, here, owner, go_type)
        for key, item in value.items():
            value[key] = zero(kind.value) if item is None else item_check(item, here, key, unknown)
        return value

    return check


def _scalar(kind: Scalar, owner: str) -> Check:
    if kind is Scalar.STRING_LIST:
        return _list(ListOf(Scalar.STRING), owner)
    wanted = _GO_TYPES[kind]
    types, normal = _SCALARS[kind]

    def check(value: Any, above: FieldPath, name: str | int, unknown: list[str]) -> Any:
        if type(value) not in types:
            raise _wrong(value, (above, name), owner, wanted)
        if normal is None:
            return value
        try:
            return normal(value)
        except _OutOfRangeError:
            raise _wrong(value, (above, name), owner, wanted) from None
        except ValueError as error:
            raise _bad(path_text((above, name)), str(error)) from None

    return check


class _OutOfRangeError(ValueError):
    """A number that its type cannot hold."""


def _integer(kind: Scalar) -> Callable[[int], int]:
    bound = _INT_RANGES[kind]

    def normal(value: int) -> int:
        if -bound <= value < bound:
            return value
        raise _OutOfRangeError

    return normal


def _base64(value: str) -> str:
    try:
        raw = binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        text = value.replace("\n", "").replace("\r", "")  # Go's decoder passes over line ends
        try:
            raw = binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            raise ValueError("illegal base64 data") from None
    return binascii.b2a_base64(raw, newline=False).decode()


def _moment(value: str) -> datetime:
    try:
        return parse_rfc3339(value)
    except (ValueError, OverflowError):
        raise ValueError("not an RFC 3339 time") from None


def _time(value: str) -> str:
    if _UTC_SECONDS.fullmatch(value):  # what nearly every client sends: already normal, only the calendar to check
        try:
            datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("not an RFC 3339 time") from None
        return "" if value.startswith("0001-01-01T00:00:00") else value
    moment = _moment(value)
    return "" if moment == ZERO_TIME else rfc3339(moment)


def _micro_time(value: str) -> str:
    moment = _moment(value)
    return "" if moment == ZERO_TIME else rfc3339_micro(moment)


def _int_or_string(value: Any) -> Any:
    return value if type(value) is str else _integer(Scalar.INT32)(value)


def _any(value: Any) -> Any:
    if depth_exceeds(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


_SCALARS: dict[Scalar, tuple[frozenset[type], Callable[[Any], Any] | None]] = {
    Scalar.STRING: (frozenset({str}), None),
    Scalar.BOOL: (frozenset({bool}), None),
    Scalar.INT32: (frozenset({int}), _integer(Scalar.INT32)),
    Scalar.INT64: (frozenset({int}), _integer(Scalar.INT64)),
    Scalar.DOUBLE: (frozenset({int, float}), None),
    Scalar.BYTES: (frozenset({str}), _base64),
    Scalar.TIME: (frozenset({str}), _time),
    Scalar.MICRO_TIME: (frozenset({str}), _micro_time),
    Scalar.QUANTITY: (frozenset({str, int, float}), canonical),
    Scalar.INT_OR_STRING: (frozenset({str, int}), _int_or_string),
    Scalar.FIELDS_V1: (frozenset({dict}), _any),
    Scalar.RAW: (frozenset({dict}), _any),
}
