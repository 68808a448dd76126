"""CustomResourceDefinitions of kinds, for API servers that do not serve them otherwise.

Rules kept here:
* Everything follows from the declaration of the kind. Its functions are asked about sample objects: a print column that returns the
  value of one field is given as the path of that field, and a field that an update may not change becomes a validation rule.
* Columns that compute something are left out, and so is validation that no schema expresses: a CustomResourceDefinition accepts
  more than Mooring does. The controllers read such objects with care.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from mooring.api.kind import Kind
from mooring.apimachinery.openapi.structural import METADATA, structural_schema
from mooring.apimachinery.resource import Column
from mooring.apimachinery.schema import Message, Obj, Scalar
from mooring.apimachinery.table import AGE

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
