"""OpenAPI definitions of objects, derived from their schemas.

Source: docs/protocol/openapi.md, docs/protocol/patches.md#strategic-merge.

Rules kept here: each message is one component under its Kubernetes definition name; top-level objects also have kind, apiVersion
and `x-kubernetes-group-version-kind`; lists have their merge strategy (`x-kubernetes-list-type`, `-list-map-keys`,
`-patch-strategy`, `-patch-merge-key`). Quantities, times and similar scalars have definitions of their own.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar, Type

REF = "#/components/schemas/"

_SCALARS: dict[Scalar, Obj] = {
    Scalar.STRING: {"type": "string"},
    Scalar.BOOL: {"type": "boolean"},
    Scalar.INT32: {"type": "integer", "format": "int32"},
    Scalar.INT64: {"type": "integer", "format": "int64"},
    Scalar.DOUBLE: {"type": "number", "format": "double"},
    Scalar.BYTES: {"type": "string", "format": "byte"},
    Scalar.STRING_LIST: {"type": "array", "items": {"type": "string"}},
    Scalar.RAW: {"type": "object"},
}
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_NAMED: dict[Scalar, tuple[str, Obj]] = {
    Scalar.TIME: (
        _META + "Time",
        {"description": "A time as RFC 3339 writes it, to the second.", "type": "string", "format": "date-time"},
    ),
    Scalar.MICRO_TIME: (
        _META + "MicroTime",
        {"description": "A time as RFC 3339 writes it, to the microsecond.", "type": "string", "format": "date-time"},
    ),
    Scalar.QUANTITY: (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {
            "description": "A number with a suffix, such as 500m, 1.5, 2Gi or 1e3.",
            "oneOf": [{"type": "string"}, {"type": "number"}],
        },
    ),
    Scalar.INT_OR_STRING: (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {
            "description": "A whole number or a text, such as a port or its name.",
            "format": "int-or-string",
            "oneOf": [{"type": "integer"}, {"type": "string"}],
        },
    ),
    Scalar.FIELDS_V1: (
        _META + "FieldsV1",
        {"description": "A set of fields, as a tree of their names.", "type": "object"},
    ),
}
"""Scalars with definitions of their own, which `kubectl explain` names."""


class Schemas:
    """Collects the component schemas of one document, each once."""

    def __init__(self) -> None:
        self.components: Obj = {}

    def add_object(self, schema: Message, gvk: tuple[str, str, str]) -> Obj:
        """Add a top-level object with kind and apiVersion; return a reference to it."""
        group, version, kind = gvk
        component = self._message(schema)
        extra = {
            "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
            "kind": {"type": "string", "description": "Kind of this object, in CamelCase."},
        }
        component["properties"] = dict(sorted((extra | component["properties"]).items()))
        entry = {"group": group, "version": version, "kind": kind}
        known = component.setdefault("x-kubernetes-group-version-kind", [])
        if entry not in known:
            known.append(entry)
        return {"$ref": REF + schema.name}

    def _message(self, schema: Message) -> Obj:
        component: Obj | None = self.components.get(schema.name)
        if component is None:
            component = self.components[schema.name] = {"description": schema.doc, "type": "object", "properties": {}}
            component["properties"] = {
                field.name: self._field(field) for field in sorted(schema.fields, key=lambda field: field.name)
            }
            if required := sorted(field.name for field in schema.fields if field.required):
                component["required"] = required
            if schema.atomic:
                component["x-kubernetes-map-type"] = "atomic"
        return component

    def _field(self, field: Field) -> Obj:
        shape: Obj = self._type(field.type)
        if "$ref" in shape:
            shape = {"allOf": [shape]}
        shape = Obj({"description": field.doc}) | shape
        if field.enum:
            (shape["items"] if isinstance(field.type, ListOf) else shape)["enum"] = sorted(field.enum)
        if isinstance(field.type, ListOf):
            shape |= _list_extensions(field)
        elif field.patch == "replace":
            shape["x-kubernetes-patch-strategy"] = "replace"
        if field.map_atomic:
            shape["x-kubernetes-map-type"] = "atomic"
        return shape

    def _type(self, kind: Type) -> Obj:
        if isinstance(kind, Message):
            self._message(kind)
            return {"$ref": REF + kind.name}
        if isinstance(kind, ListOf):
            return {"type": "array", "items": self._type(kind.item)}
        if isinstance(kind, MapOf):
            return {"type": "object", "additionalProperties": self._type(kind.value)}
        if kind in _NAMED:
            name, shape = _NAMED[kind]
            self.components.setdefault(name, shape)
            return {"$ref": REF + name}
        return dict(_SCALARS[kind])


def _list_extensions(field: Field) -> Obj:
    extensions: Obj = {}
    if field.list_keys:
        extensions = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(field.list_keys)}
    elif field.list_set:
        extensions = {"x-kubernetes-list-type": "set"}
    elif field.patch == "atomic":
        extensions = {"x-kubernetes-list-type": "atomic"}
    if field.patch == "merge":
        extensions["x-kubernetes-patch-strategy"] = "merge"
        if field.patch_key:
            extensions["x-kubernetes-patch-merge-key"] = field.patch_key
    return extensions
