"""The OpenAPI v2 document as the protobuf message `openapi.v2.Document`, which kubectl reads.

Source: docs/protocol/openapi.md.

Rules kept here:
* Message shapes and field numbers are facts of gnostic's openapiv2/OpenAPIv2.proto; the encoding of maps, choices and extensions is
  in `mooring.apimachinery.openapi.gnostic`.
"""

from __future__ import annotations

from mooring.apimachinery.codec.protobuf import wrap
from mooring.apimachinery.openapi.gnostic import (
    Fields,
    anything,
    chosen,
    entries,
    flag,
    many,
    message,
    named,
    one,
    text,
    texts,
)
from mooring.apimachinery.schema import Obj

CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Content-Type of responses."""
ACCEPTED = (CONTENT_TYPE, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
"""Media types that clients send. The form with @ is not a valid media type, but the only one of older clients."""


def encode_document(document: Obj) -> bytes:
    """Return the message of a document made by `mooring.apimachinery.openapi.v2`."""
    return message(_DOCUMENT, 16, document)


def _schema(obj: Obj) -> bytes:
    return message(_SCHEMA, 31, obj)


def _parameter(obj: Obj) -> bytes:
    """ParametersItem > Parameter > BodyParameter, or > NonBodyParameter > the message of its place."""
    if obj["in"] == "body":
        return wrap(wrap(message(_BODY_PARAMETER, 6, obj)))
    if obj["in"] == "query":
        return wrap(chosen(2, chosen(3, message(_QUERY_PARAMETER, 23, obj))))
    return wrap(chosen(2, chosen(4, message(_PATH_PARAMETER, 22, obj))))


def _requirement(obj: Obj) -> bytes:
    """SecurityRequirement > NamedStringArray > StringArray."""
    return wrap(*(named(name, wrap(*(scope.encode() for scope in scopes))) for name, scopes in obj.items()))


_in_one = one(lambda value: wrap(_schema(value)))
"""ItemsItem, AdditionalPropertiesItem and SchemaItem: a schema as field 1 of another message."""

_SCHEMA: Fields = {
    "$ref": (1, text),
    "format": (2, text),
    "description": (4, text),
    "required": (19, texts),
    "enum": (20, many(anything)),
    "additionalProperties": (21, _in_one),
    "type": (22, one(lambda value: wrap(value.encode()))),
    "items": (23, _in_one),
    "properties": (25, entries(_schema)),
}
_BODY_PARAMETER: Fields = {
    "description": (1, text),
    "name": (2, text),
    "in": (3, text),
    "required": (4, flag),
    "schema": (5, one(_schema)),
}
_PARAMETER: Fields = {
    "required": (1, flag),
    "in": (2, text),
    "description": (3, text),
    "name": (4, text),
}
_QUERY_PARAMETER: Fields = {**_PARAMETER, "type": (6, text), "uniqueItems": (20, flag)}
_PATH_PARAMETER: Fields = {**_PARAMETER, "type": (5, text), "uniqueItems": (19, flag)}
_RESPONSE: Fields = {"description": (1, text), "schema": (2, _in_one)}
_OPERATION: Fields = {
    "tags": (1, texts),
    "description": (3, text),
    "operationId": (5, text),
    "produces": (6, texts),
    "consumes": (7, texts),
    "parameters": (8, many(_parameter)),
    "responses": (9, entries(lambda value: wrap(message(_RESPONSE, 5, value)))),
    "schemes": (10, texts),
}
_operation = one(lambda value: message(_OPERATION, 13, value))
_PATH_ITEM: Fields = {
    "get": (2, _operation),
    "put": (3, _operation),
    "post": (4, _operation),
    "delete": (5, _operation),
    "patch": (8, _operation),
    "parameters": (9, many(_parameter)),
}
_API_KEY: Fields = {
    "type": (1, text),
    "name": (2, text),
    "in": (3, text),
    "description": (4, text),
}
_INFO: Fields = {"title": (1, text), "version": (2, text)}
_DOCUMENT: Fields = {
    "swagger": (1, text),
    "info": (2, one(lambda value: message(_INFO, 7, value))),
    "paths": (8, entries(lambda value: message(_PATH_ITEM, 10, value), at=2)),
    "definitions": (9, entries(_schema)),
    "security": (12, many(_requirement)),
    "securityDefinitions": (13, entries(lambda value: chosen(2, message(_API_KEY, 5, value)))),
}
