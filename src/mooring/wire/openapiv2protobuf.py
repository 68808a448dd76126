"""The OpenAPI v2 document as a protobuf `openapi.v2.Document`: the form in which kubectl reads it (reference/kubernetes.md 7.3).

Rules kept here:
* Message shapes and field numbers are facts of gnostic's openapiv2/OpenAPIv2.proto. JSON maps are lists of named values there,
  and choices (`oneof`) are messages around the chosen one.
* What begins with `x-` is a vendor extension: its value travels as YAML text, for which JSON is good enough.
* A key without a number below is a mistake of ours, found by the tests and not dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mooring.wire.protobufwrite import put_bytes, put_number, wrap
from mooring.wire.schema import Obj

CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""What answers say."""
ACCEPTED = (CONTENT_TYPE, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
"""What clients say; the spelling with @ is no valid media type, and all that older ones know."""

_Put = Callable[[bytearray, int, Any], None]
_Build = Callable[[Any], bytes]


def encode_document(document: Obj) -> bytes:
    """The message of a document made by `mooring.wire.openapiv2`."""
    return _message(_DOCUMENT, 16, document)


def _message(fields: Mapping[str, tuple[int, _Put]], extensions: int, obj: Obj) -> bytes:
    """One message: its fields in the order of `obj`, extensions (`x-…`) under the number `extensions`."""
    out = bytearray()
    for key, value in obj.items():
        if key.startswith("x-"):
            put_bytes(out, extensions, _named(key, _any(value)))
        else:
            number, put = fields[key]
            put(out, number, value)
    return bytes(out)


def _any(value: Any) -> bytes:
    out = bytearray()
    put_bytes(out, 2, msgspec.json.encode(value))
    return bytes(out)


def _named(name: str, value: bytes) -> bytes:
    """A `Named…` message: one entry of what JSON says as a map."""
    out = bytearray()
    put_bytes(out, 1, name.encode())
    put_bytes(out, 2, value)
    return bytes(out)


def _chosen(number: int, value: bytes) -> bytes:
    """A message that is a choice, with alternative `number` taken."""
    out = bytearray()
    put_bytes(out, number, value)
    return bytes(out)


def _text(out: bytearray, number: int, value: str) -> None:
    put_bytes(out, number, value.encode())


def _flag(out: bytearray, number: int, value: bool) -> None:
    put_number(out, number, value)


def _one(build: _Build) -> _Put:
    return lambda out, number, value: put_bytes(out, number, build(value))


def _many(build: _Build) -> _Put:
    def put(out: bytearray, number: int, value: list[Any]) -> None:
        for item in value:
            put_bytes(out, number, build(item))

    return put


def _entries(build: _Build, at: int = 1) -> _Put:
    """A map, as a message whose field `at` repeats its named values."""

    def put(out: bytearray, number: int, value: Mapping[str, Any]) -> None:
        entries = bytearray()
        for name, held in value.items():
            put_bytes(entries, at, _named(name, build(held)))
        put_bytes(out, number, bytes(entries))

    return put


def _schema(obj: Obj) -> bytes:
    return _message(_SCHEMA, 31, obj)


def _parameter(obj: Obj) -> bytes:
    """ParametersItem > Parameter > BodyParameter, or > NonBodyParameter > the place it is in."""
    if obj["in"] == "body":
        return wrap(wrap(_message(_BODY_PARAMETER, 6, obj)))
    if obj["in"] == "query":
        return wrap(_chosen(2, _chosen(3, _message(_QUERY_PARAMETER, 23, obj))))
    return wrap(_chosen(2, _chosen(4, _message(_PATH_PARAMETER, 22, obj))))


def _requirement(obj: Obj) -> bytes:
    """SecurityRequirement > NamedStringArray > StringArray."""
    return wrap(*(_named(name, wrap(*(scope.encode() for scope in scopes))) for name, scopes in obj.items()))


_texts = _many(str.encode)
_in_one = _one(lambda value: wrap(_schema(value)))
"""ItemsItem, AdditionalPropertiesItem and SchemaItem: a schema as field 1 of another message."""

_SCHEMA: dict[str, tuple[int, _Put]] = {
    "$ref": (1, _text),
    "format": (2, _text),
    "description": (4, _text),
    "required": (19, _texts),
    "enum": (20, _many(_any)),
    "additionalProperties": (21, _in_one),
    "type": (22, _one(lambda value: wrap(value.encode()))),
    "items": (23, _in_one),
    "properties": (25, _entries(_schema)),
}
_BODY_PARAMETER: dict[str, tuple[int, _Put]] = {
    "description": (1, _text),
    "name": (2, _text),
    "in": (3, _text),
    "required": (4, _flag),
    "schema": (5, _one(_schema)),
}
_PARAMETER: dict[str, tuple[int, _Put]] = {
    "required": (1, _flag),
    "in": (2, _text),
    "description": (3, _text),
    "name": (4, _text),
}
_QUERY_PARAMETER = _PARAMETER | {"type": (6, _text), "uniqueItems": (20, _flag)}
_PATH_PARAMETER = _PARAMETER | {"type": (5, _text), "uniqueItems": (19, _flag)}
_RESPONSE: dict[str, tuple[int, _Put]] = {"description": (1, _text), "schema": (2, _in_one)}
_OPERATION: dict[str, tuple[int, _Put]] = {
    "tags": (1, _texts),
    "description": (3, _text),
    "operationId": (5, _text),
    "produces": (6, _texts),
    "consumes": (7, _texts),
    "parameters": (8, _many(_parameter)),
    "responses": (9, _entries(lambda value: wrap(_message(_RESPONSE, 5, value)))),
    "schemes": (10, _texts),
}
_operation = _one(lambda value: _message(_OPERATION, 13, value))
_PATH_ITEM: dict[str, tuple[int, _Put]] = {
    "get": (2, _operation),
    "put": (3, _operation),
    "post": (4, _operation),
    "delete": (5, _operation),
    "patch": (8, _operation),
    "parameters": (9, _many(_parameter)),
}
_API_KEY: dict[str, tuple[int, _Put]] = {
    "type": (1, _text),
    "name": (2, _text),
    "in": (3, _text),
    "description": (4, _text),
}
_DOCUMENT: dict[str, tuple[int, _Put]] = {
    "swagger": (1, _text),
    "info": (2, _one(lambda value: _message({"title": (1, _text), "version": (2, _text)}, 7, value))),
    "paths": (8, _entries(lambda value: _message(_PATH_ITEM, 10, value), at=2)),
    "definitions": (9, _entries(_schema)),
    "security": (12, _many(_requirement)),
    "securityDefinitions": (13, _entries(lambda value: _chosen(2, _message(_API_KEY, 5, value)))),
}
