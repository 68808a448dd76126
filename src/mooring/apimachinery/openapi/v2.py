"""OpenAPI v2: the document, and its protobuf form in the messages of gnostic."""

from __future__ import annotations

from collections.abc import Sequence

from mooring.apimachinery.codec.protobuf import wrap
from mooring.apimachinery.discovery import groups, resources_of, versions
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
from mooring.apimachinery.openapi.v3 import REF, openapi_v3_document
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj

# The OpenAPI v2 (Swagger 2.0) document, rewritten from the v3 documents of every group version.
#
# Source: docs/protocol/openapi.md.
#
# Rules kept here:
# * One document for the whole server. Its content comes from `mooring.apimachinery.openapi.v3` and only the form changes:
#   references point to `definitions`, bodies are parameters, media types are lists beside them, a value of several types is text.
# * A definition that several group versions share (DeleteOptions, Status) appears once with the kinds of all of them.
# * Old clients read v2 before they use server-side validation: kubectl up to 1.27 looks there for a PATCH of the kind with a
#   `fieldValidation` parameter. They read it as protobuf only, see `mooring.apimachinery.openapi.v2`.

DEFINITIONS = "#/definitions/"
GVK = "x-kubernetes-group-version-kind"
_ANY = ["*/*"]


def openapi_v2_document(resources: Sequence[Resource]) -> Obj:
    """Return the document of all `resources`, at least one."""
    paths: Obj = {}
    definitions: Obj = {}
    security: Obj = {}
    for group in groups(resources):
        for version in versions(resources, group):
            v3 = openapi_v3_document(resources_of(resources, group, version), old_watches=True)
            security = v3["components"]["securitySchemes"]
            paths |= {path: _path_item(item) for path, item in v3["paths"].items()}
            for name, schema in v3["components"]["schemas"].items():
                _define(definitions, name, _schema(schema))
    return {
        "swagger": "2.0",
        "info": {"title": "Mooring", "version": "v1"},
        "paths": dict(sorted(paths.items())),
        "definitions": dict(sorted(definitions.items())),
        "securityDefinitions": security,
        "security": [{name: [] for name in security}],
    }


def _define(definitions: Obj, name: str, schema: Obj) -> None:
    """Add a definition, or the kinds of this one to an existing definition."""
    known = definitions.setdefault(name, schema)
    for gvk in schema.get(GVK, ()):
        kinds = known.setdefault(GVK, [])
        if gvk not in kinds:
            kinds.append(gvk)


def _schema(v3: Obj) -> Obj:
    schema: Obj = {}
    for key, value in v3.items():
        match key:
            case "$ref":
                schema[key] = DEFINITIONS + value.removeprefix(REF)
            case "allOf":  # v3 wraps a reference that has a description
                schema |= _schema(value[0])
            case "oneOf":  # numbers are distinguished by their format, or are text
                schema["type"] = "string"
            case "properties":
                schema[key] = {name: _schema(held) for name, held in value.items()}
            case "items" | "additionalProperties":
                schema[key] = _schema(value)
            case _:
                schema[key] = value
    return schema


def _path_item(v3: Obj) -> Obj:
    return {key: _parameters(value) if key == "parameters" else _operation(value) for key, value in v3.items()}


def _parameters(v3: Sequence[Obj]) -> list[Obj]:
    return [{key: value for key, value in item.items() if key != "schema"} | item["schema"] for item in v3]


def _operation(v3: Obj) -> Obj:
    """Return a v3 operation with its request body and responses in the places of v2."""
    operation = {key: value for key, value in v3.items() if key != "requestBody"}
    parameters = _parameters(v3.get("parameters", ()))
    if "requestBody" in v3:
        content = v3["requestBody"]["content"]
        body: Obj = {"name": "body", "in": "body", "schema": _schema(next(iter(content.values()))["schema"])}
        if v3["requestBody"].get("required"):
            body["required"] = True
        parameters.insert(0, body)
        operation["consumes"] = list(content)
    else:
        operation["consumes"] = list(_ANY)
    if parameters:
        operation["parameters"] = parameters
    operation["produces"] = list(v3["responses"]["200"]["content"])
    operation["schemes"] = ["https"]
    operation["responses"] = {code: _response(response) for code, response in v3["responses"].items()}
    return operation


def _response(v3: Obj) -> Obj:
    response: Obj = {"description": v3["description"]}
    if "content" in v3:
        response["schema"] = _schema(next(iter(v3["content"].values()))["schema"])
    return response


# The OpenAPI v2 document as the protobuf message `openapi.v2.Document`, which kubectl reads.
#
# Source: docs/protocol/openapi.md.
#
# Rules kept here:
# * Message shapes and field numbers are facts of gnostic's openapiv2/OpenAPIv2.proto; the encoding of maps, choices and
#   extensions is in `mooring.apimachinery.openapi.gnostic`.

CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Content-Type of responses."""
ACCEPTED = (CONTENT_TYPE, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
"""Media types that clients send. The form with @ is not a valid media type, but the only one of older clients."""


def encode_document(document: Obj) -> bytes:
    """Return the message of a document made by `mooring.apimachinery.openapi.v2`."""
    return message(_DOCUMENT, 16, document)


def _schema_message(obj: Obj) -> bytes:
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


_in_one = one(lambda value: wrap(_schema_message(value)))
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
    "properties": (25, entries(_schema_message)),
}
_BODY_PARAMETER: Fields = {
    "description": (1, text),
    "name": (2, text),
    "in": (3, text),
    "required": (4, flag),
    "schema": (5, one(_schema_message)),
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
_operation_message = one(lambda value: message(_OPERATION, 13, value))
_PATH_ITEM: Fields = {
    "get": (2, _operation_message),
    "put": (3, _operation_message),
    "post": (4, _operation_message),
    "delete": (5, _operation_message),
    "patch": (8, _operation_message),
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
    "definitions": (9, entries(_schema_message)),
    "security": (12, many(_requirement)),
    "securityDefinitions": (13, entries(lambda value: chosen(2, message(_API_KEY, 5, value)))),
}
