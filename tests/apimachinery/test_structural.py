"""Structural schemas: no references, the lists of server-side apply, and what has two JSON forms."""

from __future__ import annotations

import pytest

from mooring.api.customresource import structural_schema
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar, Type

ITEM = Message("x.Item", (Field("name", 1, Scalar.STRING, "A name.", required=True),), "An item.", atomic=True)


def of_field(kind: Type, **more: object) -> Obj:
    """Return the schema of one field of this type."""
    field = Field("f", 1, kind, "A field.", **more)  # type: ignore[arg-type] # parameters of the cases
    shape: Obj = structural_schema(Message("x.Thing", (field,), "A thing."))["properties"]["f"]
    assert shape.pop("description") == "A field." if not isinstance(kind, Message) else shape.pop("description")
    return shape


def test_an_object_has_kind_and_version_and_metadata_without_a_schema() -> None:
    message = Message(
        "x.Thing", (Field("metadata", 1, OBJECT_META, "M."), Field("a", 2, Scalar.BOOL, "A.", True)), "T."
    )
    schema = structural_schema(message)
    assert list(schema["properties"]) == ["apiVersion", "kind", "a", "metadata"]
    assert schema["properties"]["metadata"] == {"type": "object"}
    assert (schema["type"], schema["description"], schema["required"]) == ("object", "T.", ["a"])


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        (Scalar.INT32, {}, {"type": "integer", "format": "int32"}),
        (Scalar.TIME, {}, {"type": "string", "format": "date-time"}),
        (Scalar.QUANTITY, {}, {"x-kubernetes-int-or-string": True}),
        (Scalar.RAW, {}, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (Scalar.STRING, {"enum": ("b", "a")}, {"type": "string", "enum": ["a", "b"]}),
        (MapOf(Scalar.STRING), {}, {"type": "object", "additionalProperties": {"type": "string"}}),
        (
            MapOf(Scalar.STRING),
            {"map_atomic": True},
            {"type": "object", "additionalProperties": {"type": "string"}, "x-kubernetes-map-type": "atomic"},
        ),
        (
            ListOf(Scalar.STRING),
            {"enum": ("a",)},
            {"type": "array", "items": {"type": "string", "enum": ["a"]}, "x-kubernetes-list-type": "atomic"},
        ),
        (
            ListOf(Scalar.STRING),
            {"list_set": True},
            {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        ),
    ],
    ids=str,
)
def test_the_schema_of_a_field(kind: Type, more: dict[str, object], expected: Obj) -> None:
    assert of_field(kind, **more) == expected


def test_a_message_stands_where_it_is_used() -> None:
    shape = of_field(ListOf(ITEM), list_keys=("name",))
    assert shape["items"] == {
        "type": "object",
        "description": "An item.",
        "properties": {"name": {"type": "string", "description": "A name."}},
        "required": ["name"],
        "x-kubernetes-map-type": "atomic",
    }
    assert (shape["x-kubernetes-list-type"], shape["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    assert "$ref" not in str(of_field(ITEM))
