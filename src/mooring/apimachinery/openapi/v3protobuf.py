"""An OpenAPI v3 document as a protobuf `openapi.v3.Document`.

Source: docs/protocol/openapi.md.

Rules kept here:
* Message shapes and field numbers are facts of gnostic's openapiv3/OpenAPIv3.proto; the encoding of maps, choices and extensions is
  in `mooring.apimachinery.openapi.gnostic`.
* A value that may be a reference is a choice: the value itself is alternative 1, a `$ref` is alternative 2.

kubectl 1.23 to 1.26 and programs built on client-go's `openapi` package request this form; newer kubectl requests JSON.
"""

from __future__ import annotations

from mooring.apimachinery.codec.protobuf import wrap
from mooring.apimachinery.openapi.gnostic import (
    Build,
    Fields,
    anything,
    chosen,
    entries,
    flag,
    many,
    message,
    one,
    text,
    texts,
)
from mooring.apimachinery.schema import Obj

CONTENT_TYPE = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
"""Content-Type of responses."""
ACCEPTED = (CONTENT_TYPE, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf")
"""Media types that clients send. The form with @ is not a valid media type, but the only one of client-go."""


def encode_document(document: Obj) -> bytes:
    """Return the message of a document made by `mooring.apimachinery.openapi.v3`."""
    return message(_DOCUMENT, 9, document)


def _schema(obj: Obj) -> bytes:
    """SchemaOrReference."""
    return _reference(obj["$ref"]) if "$ref" in obj else wrap(message(_SCHEMA, 36, obj))


def _reference(target: str) -> bytes:
    return chosen(2, wrap(target.encode()))


def _never_reference(fields: Fields, extensions: int) -> Build:
    """Return the function for a `…OrReference` that is never a reference here."""
    return lambda obj: wrap(message(fields, extensions, obj))


_in_one = one(lambda value: wrap(_schema(value)))
"""ItemsItem and AdditionalPropertiesItem: a schema as field 1 of another message."""

_SCHEMA: Fields = {
    "uniqueItems": (20, flag),
    "required": (23, texts),
    "enum": (24, many(anything)),
    "type": (25, text),
    "allOf": (26, many(_schema)),
    "oneOf": (27, many(_schema)),
    "items": (30, _in_one),
    "properties": (31, entries(_schema)),
    "additionalProperties": (32, _in_one),
    "description": (34, text),
    "format": (35, text),
}
_PARAMETER: Fields = {
    "name": (1, text),
    "in": (2, text),
    "description": (3, text),
    "required": (4, flag),
    "schema": (10, one(_schema)),
}
_content = entries(lambda value: message({"schema": (1, one(_schema))}, 5, value))
_BODY: Fields = {"content": (2, _content), "required": (3, flag)}
_RESPONSE: Fields = {"description": (1, text), "content": (3, _content)}
_parameters = many(_never_reference(_PARAMETER, 14))
_OPERATION: Fields = {
    "tags": (1, texts),
    "description": (3, text),
    "operationId": (5, text),
    "parameters": (6, _parameters),
    "requestBody": (7, one(_never_reference(_BODY, 4))),
    "responses": (8, entries(_never_reference(_RESPONSE, 5), at=2)),
}
_operation = one(lambda value: message(_OPERATION, 13, value))
_PATH_ITEM: Fields = {
    "get": (4, _operation),
    "put": (5, _operation),
    "post": (6, _operation),
    "delete": (7, _operation),
    "patch": (10, _operation),
    "parameters": (13, _parameters),
}
_SECURITY_SCHEME: Fields = {
    "type": (1, text),
    "description": (2, text),
    "name": (3, text),
    "in": (4, text),
}
_COMPONENTS: Fields = {
    "schemas": (1, entries(_schema)),
    "securitySchemes": (7, entries(_never_reference(_SECURITY_SCHEME, 9))),
}
_INFO: Fields = {"title": (1, text), "version": (6, text)}
_DOCUMENT: Fields = {
    "openapi": (1, text),
    "info": (2, one(lambda value: message(_INFO, 7, value))),
    "paths": (4, entries(lambda value: message(_PATH_ITEM, 14, value))),
    "components": (5, one(lambda value: message(_COMPONENTS, 10, value))),
}
