"""The OpenAPI v2 (Swagger 2.0) document, rewritten from the v3 documents of every group version.

Source: docs/protocol/openapi.md.

Rules kept here:
* One document for the whole server. Its content comes from `mooring.apimachinery.openapi.v3` and only the form changes:
  references point to `definitions`, bodies are parameters, media types are lists beside them, a value of several types is text.
* A definition that several group versions share (DeleteOptions, Status) appears once with the kinds of all of them.
* Old clients read v2 before they use server-side validation: kubectl up to 1.27 looks there for a PATCH of the kind with a
  `fieldValidation` parameter. They read it as protobuf only, see `mooring.apimachinery.openapi.v2protobuf`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooring.apimachinery.discovery import groups, resources_of, versions
from mooring.apimachinery.openapi.v3 import REF, openapi_v3_document
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Obj

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
