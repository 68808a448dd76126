"""The protobuf form of OpenAPI v3 documents, decoded by Google's runtime with the messages of gnostic's OpenAPIv3.proto.

The messages are written down here once more, as far as the documents use them, so that a wrong number on one side shows.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from mooring.api.kinds import KINDS
from mooring.apimachinery.openapi.v3 import openapi_v3_document
from mooring.apimachinery.openapi.v3protobuf import ACCEPTED, CONTENT_TYPE, encode_document
from mooring.apimachinery.schema import Obj
from tests.support.shapes import RESOURCES

descriptor_pb2: Any = import_module("google.protobuf.descriptor_pb2")
descriptor_pool: Any = import_module("google.protobuf.descriptor_pool")
message_factory: Any = import_module("google.protobuf.message_factory")

MESSAGES = {
    "Document": "string openapi 1, Info info 2, Paths paths 4, Components components 5",
    "Info": "string title 1, string version 6",
    "Paths": "*NamedPathItem path 1",
    "NamedPathItem": "string name 1, PathItem value 2",
    "PathItem": "Operation get 4, Operation put 5, Operation post 6, Operation delete 7, Operation patch 10, "
    "*ParameterOrReference parameters 13",
    "Operation": "*string tags 1, string description 3, string operationId 5, *ParameterOrReference parameters 6, "
    "RequestBodyOrReference requestBody 7, Responses responses 8, *NamedAny extensions 13",
    "ParameterOrReference": "Parameter parameter 1",
    "Parameter": "string name 1, string in 2, string description 3, bool required 4, SchemaOrReference schema 10",
    "RequestBodyOrReference": "RequestBody request_body 1",
    "RequestBody": "MediaTypes content 2, bool required 3",
    "MediaTypes": "*NamedMediaType additional_properties 1",
    "NamedMediaType": "string name 1, MediaType value 2",
    "MediaType": "SchemaOrReference schema 1",
    "Responses": "*NamedResponseOrReference response_or_reference 2",
    "NamedResponseOrReference": "string name 1, ResponseOrReference value 2",
    "ResponseOrReference": "Response response 1",
    "Response": "string description 1, MediaTypes content 3",
    "Components": "SchemasOrReferences schemas 1, SecuritySchemesOrReferences securitySchemes 7",
    "SchemasOrReferences": "*NamedSchemaOrReference additional_properties 1",
    "NamedSchemaOrReference": "string name 1, SchemaOrReference value 2",
    "SchemaOrReference": "Schema schema 1, Reference reference 2",
    "Reference": "string ref 1",
    "Schema": "bool uniqueItems 20, *string required 23, *Any enum 24, string type 25, *SchemaOrReference allOf 26, "
    "*SchemaOrReference oneOf 27, ItemsItem items 30, Properties properties 31, "
    "AdditionalPropertiesItem additionalProperties 32, string description 34, string format 35, *NamedAny extensions 36",
    "ItemsItem": "*SchemaOrReference schema_or_reference 1",
    "Properties": "*NamedSchemaOrReference additional_properties 1",
    "AdditionalPropertiesItem": "SchemaOrReference schema_or_reference 1",
    "SecuritySchemesOrReferences": "*NamedSecuritySchemeOrReference additional_properties 1",
    "NamedSecuritySchemeOrReference": "string name 1, SecuritySchemeOrReference value 2",
    "SecuritySchemeOrReference": "SecurityScheme security_scheme 1",
    "SecurityScheme": "string type 1, string description 2, string name 3, string in 4",
    "NamedAny": "string name 1, Any value 2",
    "Any": "string yaml 2",
}
"""`*` marks what repeats; extensions are called `specification_extension` there."""


def _document_class() -> Any:
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="openapiv3.proto", package="openapi.v3", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            kind, key, number = field.split()
            one = field_type.LABEL_OPTIONAL
            added = message.field.add(
                name=key, number=int(number), label=field_type.LABEL_REPEATED if kind[0] == "*" else one
            )
            plain = kind.lstrip("*")
            if plain in ("string", "bool"):
                added.type = field_type.TYPE_STRING if plain == "string" else field_type.TYPE_BOOL
            else:
                added.type, added.type_name = field_type.TYPE_MESSAGE, f".openapi.v3.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("openapi.v3.Document"))


DOCUMENT = _document_class()


def _read(message: Any) -> Any:
    """A message in its JSON form."""
    name = message.DESCRIPTOR.name
    held = {field.name: value for field, value in message.ListFields()}
    if name == "Any":
        return json.loads(message.yaml)
    if name == "Reference":
        return {"$ref": message.ref}
    if name == "ItemsItem":
        (item,) = message.schema_or_reference
        return _read(item)
    if name.endswith(("OrReference", "AdditionalPropertiesItem")) and not name.startswith("Named"):
        (value,) = held.values()
        return _read(value)
    if name in ("Paths", "Responses", "Properties", "MediaTypes") or name.endswith("OrReferences"):
        return {entry.name: _read(entry.value) for entries in held.values() for entry in entries}
    extensions = {entry.name: _read(entry.value) for entry in held.pop("extensions", ())}
    return {key: _value(value) for key, value in held.items()} | extensions


def _value(value: Any) -> Any:
    if isinstance(value, str | bool):
        return value
    if hasattr(value, "DESCRIPTOR"):
        return _read(value)
    return [item if isinstance(item, str) else _read(item) for item in value]


def _without_nothing(value: Any, *, extension: bool = False) -> Any:
    """What is empty is absent in protobuf, but not inside an extension, which is text."""
    if isinstance(value, dict):
        held = {key: _without_nothing(item, extension=extension or key[:2] == "x-") for key, item in value.items()}
        return {key: item for key, item in held.items() if extension or item not in ("", [])}
    if isinstance(value, list):
        return [_without_nothing(item, extension=extension) for item in value]
    return value


def _group_versions(resources: Any) -> list[Any]:
    keys = sorted({(resource.group, resource.version) for resource in resources})
    return [[each for each in resources if (each.group, each.version) == key] for key in keys]


@pytest.mark.parametrize(
    "resources",
    _group_versions([*RESOURCES]) + _group_versions([kind.resource for kind in KINDS]),
    ids=lambda resources: f"{resources[0].api_version} with {resources[0].kind}",
)
def test_both_forms_are_equal(resources: Any) -> None:
    document = openapi_v3_document(resources)
    read = DOCUMENT()
    read.ParseFromString(encode_document(document))
    assert _read(read) == _without_nothing(document)


def test_both_spellings_of_the_media_type_are_known() -> None:
    assert [name.replace("@", ".") for name in ACCEPTED] == [CONTENT_TYPE] * 2


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"servers": []}, id="of the document"),
        pytest.param({"components": {"schemas": {"x": {"nullable": True}}}}, id="of a schema"),
    ],
)
def test_a_key_that_has_no_number_is_not_dropped(document: Obj) -> None:
    with pytest.raises(KeyError):
        encode_document(document)
