"""CustomResourceDefinitions of kinds, for API servers that do not serve them otherwise, and their structural schemas."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from mooring.api.kind import Kind
from mooring.apimachinery.resource import Column
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar, Type
from mooring.apimachinery.table import AGE

# Structural schemas of CustomResourceDefinitions, derived from the schemas of objects.
#
# Rules kept here (Kubernetes documentation "Extend the Kubernetes API with CustomResourceDefinitions", structural schemas):
# * A structural schema has no references: messages stand where they are used. Metadata is `type: object` and nothing more.
# * What JSON writes in two forms has `x-kubernetes-int-or-string`; a part without a schema keeps its unknown fields.
# * Merge strategies of strategic merge patch do not exist there; lists keep their type and keys for server-side apply.

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


# CustomResourceDefinitions of kinds, for API servers that do not serve them otherwise.
#
# Rules kept here:
# * Everything follows from the declaration of the kind. Its functions are asked about sample objects: a print column that returns
#   the value of one field is given as the path of that field, and a field that an update may not change becomes a validation
#   rule.
# * Columns that compute something are left out, and so is validation that no schema expresses: a CustomResourceDefinition accepts
#   more than Mooring does. The controllers read such objects with care.

API_VERSION = "apiextensions.k8s.io/v1"
_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_SAMPLES: dict[Scalar, tuple[object, object]] = {
    Scalar.STRING: ("sample-1", "sample-2"),
    Scalar.INT32: (71, 72),
    Scalar.INT64: (73, 74),
    Scalar.TIME: ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"),
}
"""Two values of each type that can stand in a print column."""
Path = tuple[str, ...]


def custom_resource_definition(kind: Kind) -> Obj:
    """Return the CustomResourceDefinition of a kind."""
    resource = kind.resource
    schema = structural_schema(resource.schema)
    for path in _immutable(kind):
        _add_rule(schema, path)
    version: Obj = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if columns := [found for column in resource.columns if (found := _printer_column(column, resource.schema))]:
        version["additionalPrinterColumns"] = columns
    if any(one.name == "status" for one in resource.subresources):
        version["subresources"] = {"status": {}}
    names: Obj = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.singular,
    }
    names |= {"shortNames": list(resource.short_names)} if resource.short_names else {}
    names |= {"categories": list(resource.categories)} if resource.categories else {}
    return {
        "kind": "CustomResourceDefinition",
        "apiVersion": API_VERSION,
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def _printer_column(column: Column, schema: Message) -> Obj | None:
    """Return the column for `kubectl get`, or None where it shows no single field. `kubectl get` prints the name itself."""
    if column is AGE:
        return {"name": column.name, "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    for path, scalar in _leaves(schema):
        sample, other = _SAMPLES[scalar]
        if column.cell(_with(path, sample), _NOW) == sample and column.cell(_with(path, other), _NOW) == other:
            printed = {"name": column.name, "type": column.type, "jsonPath": "".join(f".{name}" for name in path)}
            described = {"description": column.description} if column.description else {}
            return printed | described | ({"priority": column.priority} if column.priority else {})
    return None


def _immutable(kind: Kind) -> Iterator[Path]:
    """Yield the paths of the fields that an update may not change."""
    for path, scalar in _leaves(kind.resource.schema):
        sample, other = _SAMPLES[scalar]
        errors = kind.validate_update(_with(path, other), _with(path, sample))
        if any(error.field == ".".join(path) and "immutable" in str(error) for error in errors):
            yield path


def _add_rule(schema: Obj, path: Path) -> None:
    """Add a rule to the object that holds a field, so that it also covers adding and removing the field."""
    *parents, name = path
    for parent in parents:
        schema = schema["properties"][parent]
    rule = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
    schema.setdefault("x-kubernetes-validations", []).append({"rule": rule, "message": f"{name} is immutable"})


def _leaves(message: Message, path: Path = ()) -> Iterator[tuple[Path, Scalar]]:
    """Yield the fields outside of lists and maps whose types have samples."""
    for field in message.fields:
        if isinstance(field.type, Message) and (*path, field.name) != (METADATA,):
            yield from _leaves(field.type, (*path, field.name))
        elif field.type in _SAMPLES:
            yield (*path, field.name), field.type


def _with(path: Path, value: object) -> Obj:
    """Return an object that has one field."""
    obj: Obj = {METADATA: {}}
    holder = obj
    for name in path[:-1]:
        holder = holder.setdefault(name, {})
    holder[path[-1]] = value
    return obj
