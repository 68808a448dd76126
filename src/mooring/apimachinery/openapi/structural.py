"""Structural schemas of CustomResourceDefinitions, derived from the schemas of objects.

Rules kept here (Kubernetes documentation "Extend the Kubernetes API with CustomResourceDefinitions", structural schemas):
* A structural schema has no references: messages stand where they are used. Metadata is `type: object` and nothing more.
* What JSON writes in two forms has `x-kubernetes-int-or-string`; a part without a schema keeps its unknown fields.
* Merge strategies of strategic merge patch do not exist there; lists keep their type and keys for server-side apply.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar, Type

METADATA = "metadata"
_ANY: Obj = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SCALARS: dict[Scalar, Obj] = {
    Scalar.STRING: {"type": "string"},
    Scalar.BOOL: {"type": "boolean"},
    Scalar.INT32: {"type": "integer", "format": "int32"},
    Scalar.INT64: {"type": "integer", "format": "int64"},
    Scalar.DOUBLE: {"type": "number", "format": "double"},
    Scalar.BYTES: {"type": "string", "format": "byte"},
    Scalar.TIME: {"type": "string", "format": "date-time"},
    Scalar.MICRO_TIME: {"type": "string", "format": "date-time"},
    Scalar.QUANTITY: {"x-kubernetes-int-or-string": True},
    Scalar.INT_OR_STRING: {"x-kubernetes-int-or-string": True},
    Scalar.STRING_LIST: {"type": "array", "items": {"type": "string"}},
    Scalar.FIELDS_V1: _ANY,
    Scalar.RAW: _ANY,
}


def structural_schema(message: Message) -> Obj:
    """Return the structural schema of an object with this message, with kind and apiVersion."""
    schema = _message(message)
    properties = schema["properties"]
    schema["properties"] = {
        "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
        "kind": {"type": "string", "description": "Kind of this object, in CamelCase."},
        **{name: shape for name, shape in properties.items() if name != METADATA},
        METADATA: {"type": "object"},
    }
    return schema


def _message(message: Message) -> Obj:
    schema: Obj = {
        "type": "object",
        "description": message.doc,
        "properties": {field.name: _field(field) for field in message.fields},
    }
    if required := sorted(field.name for field in message.fields if field.required):
        schema["required"] = required
    if message.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def _field(field: Field) -> Obj:
    shape: Obj = {"description": field.doc} | _type(field.type)
    if field.enum:
        (shape["items"] if isinstance(field.type, ListOf) else shape)["enum"] = sorted(field.enum)
    if field.list_keys:
        shape |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(field.list_keys)}
    elif isinstance(field.type, ListOf):
        shape["x-kubernetes-list-type"] = "set" if field.list_set else "atomic"
    if field.map_atomic:
        shape["x-kubernetes-map-type"] = "atomic"
    return shape


def _type(kind: Type) -> Obj:
    if isinstance(kind, Message):
        return _message(kind)
    if isinstance(kind, ListOf):
        return {"type": "array", "items": _type(kind.item)}
    if isinstance(kind, MapOf):
        return {"type": "object", "additionalProperties": _type(kind.value)}
    return dict(_SCALARS[kind])
