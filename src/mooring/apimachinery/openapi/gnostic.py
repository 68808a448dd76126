"""Protobuf encoding of OpenAPI documents in the format of gnostic, for every version.

Source: docs/protocol/openapi.md.

Rules kept here:
* JSON maps are lists of named values, and choices (`oneof`) are messages around the chosen one.
* A key that begins with `x-` is a vendor extension, whose value is YAML text; JSON is valid YAML.
* A key without a number raises KeyError, so that tests find it.

The messages themselves are in `mooring.apimachinery.openapi.v2` and `mooring.apimachinery.openapi.v3protobuf`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mooring.apimachinery.codec.protobuf import put_bytes, put_number
from mooring.apimachinery.schema import Obj

Put = Callable[[bytearray, int, Any], None]
"""Appends one field of a message: the message so far, the number of the field, its value."""
Build = Callable[[Any], bytes]
"""Encodes a message from its JSON form."""
Fields = Mapping[str, tuple[int, Put]]
"""The fields of a message by their JSON names."""


def message(fields: Fields, extensions: int, obj: Obj) -> bytes:
    """Return one message with its fields in the order of `obj`, extensions (`x-…`) under the number `extensions`."""
    out = bytearray()
    for key, value in obj.items():
        if key.startswith("x-"):
            put_bytes(out, extensions, named(key, anything(value)))
        else:
            number, put = fields[key]
            put(out, number, value)
    return bytes(out)


def anything(value: Any) -> bytes:
    """Return an `Any`: a value as text."""
    return chosen(2, msgspec.json.encode(value))


def named(name: str, value: bytes) -> bytes:
    """Return a `Named…` message: one entry of a JSON map."""
    out = bytearray()
    put_bytes(out, 1, name.encode())
    put_bytes(out, 2, value)
    return bytes(out)


def chosen(number: int, value: bytes) -> bytes:
    """Return a message that is a choice, with alternative `number`."""
    out = bytearray()
    put_bytes(out, number, value)
    return bytes(out)


def text(out: bytearray, number: int, value: str) -> None:
    """Append a string."""
    put_bytes(out, number, value.encode())


def flag(out: bytearray, number: int, value: bool) -> None:
    """Append a bool."""
    put_number(out, number, value)


def one(build: Build) -> Put:
    """Return the function that appends a message."""
    return lambda out, number, value: put_bytes(out, number, build(value))


def many(build: Build) -> Put:
    """Return the function that appends a list of messages."""

    def put(out: bytearray, number: int, value: list[Any]) -> None:
        for item in value:
            put_bytes(out, number, build(item))

    return put


def entries(build: Build, at: int = 1) -> Put:
    """Return the function that appends a map as a message whose field `at` repeats its named values."""

    def put(out: bytearray, number: int, value: Mapping[str, Any]) -> None:
        map_message = bytearray()
        for name, item in value.items():
            put_bytes(map_message, at, named(name, build(item)))
        put_bytes(out, number, bytes(map_message))

    return put


texts = many(str.encode)
"""Append a list of strings."""
