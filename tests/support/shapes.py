"""Schemas, and objects that match them, for tests of code that reads schemas."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from mooring.apimachinery.codec.unmarshal import keeps_zero, required_zeros
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar, Type
from mooring.clock import rfc3339, rfc3339_micro

EXAMPLE_PART = Message(
    "io.example.v1.Part",
    (Field("id", 1, Scalar.STRING, "Its id.", required=True), Field("size", 2, Scalar.INT32)),
    "A part.",
)
EXAMPLE = Message(
    "io.example.v1.Example",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata."),
        Field("text", 2, Scalar.STRING, "Some text."),
        Field("flag", 3, Scalar.BOOL),
        Field("sure", 4, Scalar.BOOL, "Three-valued.", pointer=True),
        Field("small", 5, Scalar.INT32),
        Field("large", 6, Scalar.INT64),
        Field("ratio", 7, Scalar.DOUBLE),
        Field("blob", 8, Scalar.BYTES),
        Field("at", 9, Scalar.TIME),
        Field("precisely", 10, Scalar.MICRO_TIME),
        Field("memory", 11, Scalar.QUANTITY),
        Field("port", 12, Scalar.INT_OR_STRING),
        Field("words", 13, ListOf(Scalar.STRING), patch="merge", list_set=True),
        Field("numbers", 14, ListOf(Scalar.INT64)),
        Field("ratios", 15, ListOf(Scalar.DOUBLE)),
        Field("data", 16, MapOf(Scalar.BYTES)),
        Field("extra", 17, MapOf(Scalar.STRING_LIST)),
        Field("part", 18, EXAMPLE_PART, "One part."),
        Field("spare", 19, EXAMPLE_PART, pointer=True),
        Field("parts", 20, ListOf(EXAMPLE_PART), patch="merge", patch_key="id", list_keys=("id",)),
        Field("named", 21, MapOf(EXAMPLE_PART)),
        Field("anything", 22, Scalar.RAW),
        Field("owned", 23, Scalar.FIELDS_V1),
        Field("limits", 24, MapOf(Scalar.QUANTITY)),
        Field("names", 25, Scalar.STRING_LIST),
        Field("switches", 26, ListOf(Scalar.BOOL)),
        Field("mode", 27, Scalar.STRING, "How.", enum=("Fast", "Slow")),
        Field("onlyJson", 0, Scalar.STRING, "Not in protobuf."),
    ),
    "One field of every type.",
)

WIDGETS = Resource(
    group="",
    version="v1",
    kind="Widget",
    plural="widgets",
    namespaced=True,
    schema=EXAMPLE,
    short_names=("wd",),
    categories=("all",),
    subresources=(
        Subresource("status", ("get", "update", "patch")),
        Subresource("token", ("create",), "PartRequest", "parts.example.io", "v1", EXAMPLE_PART),
    ),
    columns=(
        Column("Name", lambda obj, now: str(obj["metadata"]["name"]), format="name", description="Its name."),
        Column("Parts", lambda obj, now: len(obj.get("parts", [])), "integer", priority=1),
    ),
)
GADGETS = Resource(
    group="tools.k8s.io",
    version="v1",
    kind="Gadget",
    plural="gadgets",
    namespaced=False,
    schema=EXAMPLE,
    subresources=(Subresource("approval", ("get",), "Gadget"),),
)
OLD_GADGETS = Resource(
    group="tools.k8s.io",
    version="v1beta1",
    kind="Gadget",
    plural="gadgets",
    namespaced=False,
    schema=EXAMPLE,
)
REVIEWS = Resource(
    group="auth.k8s.io",
    version="v1",
    kind="Review",
    plural="reviews",
    namespaced=False,
    schema=EXAMPLE_PART,
    verbs=("create",),
)
RESOURCES = (WIDGETS, OLD_GADGETS, GADGETS, REVIEWS)

_text = st.text(st.characters(codec="utf-8"), max_size=12)
_moments = st.integers(-2_000_000_000_000_000, 7_000_000_000_000_000).map(
    lambda micros: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
)
_json_objects: st.SearchStrategy[Obj] = st.dictionaries(
    _text,
    st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _text, st.lists, max_leaves=4),
    min_size=1,
    max_size=3,
)
_SCALARS: dict[Scalar, st.SearchStrategy[Any]] = {
    Scalar.STRING: _text,
    Scalar.BOOL: st.booleans(),
    Scalar.INT32: st.integers(-(2**31), 2**31 - 1),
    Scalar.INT64: st.integers(-(2**63), 2**63 - 1),
    Scalar.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    Scalar.BYTES: st.binary(max_size=12).map(lambda raw: base64.b64encode(raw).decode()),
    Scalar.TIME: _moments.map(rfc3339),
    Scalar.MICRO_TIME: _moments.map(rfc3339_micro),
    Scalar.QUANTITY: st.from_regex(r"([1-9][0-9]{0,2}[1-9](m|G)?|[1-9][1357]{1,2}(Ki|Mi))", fullmatch=True),
    Scalar.INT_OR_STRING: st.integers(-(2**31), 2**31 - 1) | _text,
    Scalar.STRING_LIST: st.lists(_text, max_size=3),
    Scalar.FIELDS_V1: _json_objects,
    Scalar.RAW: _json_objects,
}


def values(kind: Type) -> st.SearchStrategy[Any]:
    """Generate values of a type in normal form."""
    match kind:
        case Message():
            return objects(kind)
        case ListOf():
            return st.lists(values(kind.item), max_size=3)
        case MapOf():
            return st.dictionaries(_text, values(kind.value), max_size=3)
        case Scalar():
            return _SCALARS[kind]


@st.composite
def objects(draw: st.DrawFn, schema: Message) -> Obj:
    """Generate objects of a schema in normal form: zeros only where they differ from absence or every object shows them."""
    obj: Obj = {}
    for field in schema.fields:
        if field.number and draw(st.booleans()):
            value = draw(values(field.type))
            listed = isinstance(field.type, ListOf | MapOf)
            if value or (keeps_zero(field) and not listed):
                obj[field.name] = value
    return dict(required_zeros(schema)) | obj if obj else obj


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Message:
    """Generate small messages over every type; some fields keep their zero."""
    kinds: list[st.SearchStrategy[Type]] = [st.sampled_from(list(Scalar))]
    if depth:
        inner: st.SearchStrategy[Type] = schemas(depth - 1) | st.sampled_from(
            [kind for kind in Scalar if kind not in (Scalar.TIME, Scalar.MICRO_TIME, Scalar.RAW, Scalar.FIELDS_V1)]
        )
        kinds += [inner, inner.map(ListOf), inner.map(MapOf)]
    numbers = draw(st.lists(st.integers(1, 2**29 - 1), unique=True, max_size=5))
    fields = [
        Field(f"f{index}", number, draw(st.one_of(kinds)), pointer=draw(st.booleans()))
        for index, number in enumerate(numbers)
    ]
    return Message("io.example.v1.Generated", tuple(fields))
