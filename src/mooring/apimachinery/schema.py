"""Schemas of objects, declared once for JSON, protobuf, OpenAPI, patches and server-side apply.

Rules kept here: a `Message` is data without behaviour, and all codecs, OpenAPI and strategic merge read it (law 4). Objects are
plain JSON dicts (`Obj`): camelCase keys, bytes as base64 text, times as RFC 3339 text, absent rather than empty.

Source of field numbers: the generated.proto files of k8s.io/api and k8s.io/apimachinery
(docs/protocol/negotiation.md#field-numbers).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, Literal

Obj = dict[str, Any]
"""One API object as JSON. A stored object is shared and must not be changed: copy it first."""


class Scalar(Enum):
    """Leaf types. Each comment has the JSON form, then the protobuf form."""

    STRING = "string"  # text; string
    BOOL = "boolean"  # true/false; varint
    INT32 = "int32"  # number; varint
    INT64 = "int64"  # number; varint
    DOUBLE = "double"  # number; fixed64
    BYTES = "byte"  # base64 text; bytes
    TIME = "date-time"  # RFC 3339 seconds or null; message Time{int64 seconds=1; int32 nanos=2}
    MICRO_TIME = "micro-time"  # RFC 3339 microseconds or null; message MicroTime{seconds=1; nanos=2}
    QUANTITY = "quantity"  # text or number; message Quantity{string string=1}
    INT_OR_STRING = (
        "int-or-string"  # number or text; message IntOrString{int64 type=1; int32 intVal=2; string strVal=3}
    )
    STRING_LIST = "string-list"  # list of text; message {repeated string items=1} (ExtraValue, Verbs)
    FIELDS_V1 = "fields-v1"  # any object; message FieldsV1{bytes Raw=1} holding JSON
    RAW = "raw"  # any object; message RawExtension{bytes raw=1} holding JSON


@dataclass(frozen=True, slots=True)
class ListOf:
    """A JSON array; `repeated` in protobuf."""

    item: Type


@dataclass(frozen=True, slots=True)
class MapOf:
    """A JSON object with any text keys; `map<string, …>` in protobuf (entries: key=1, value=2)."""

    value: Type


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    `required`: OpenAPI `required`. `pointer`: a zero value is meaningful and kept when decoding protobuf (Go pointer, or no
    omitempty). In strategic merge patch a list with `patch="merge"` merges by `patch_key` (or as a set of primitives when no key),
    one with `patch="atomic"` is replaced, and so is an object with `patch="replace"`. For server-side apply `list_keys` are the
    keys of a list that is a map, and `list_set` means a set of scalars.
    `enum`: values that OpenAPI lists, of the items where the field is a list; the kind validates them.
    `map_atomic`: a map that is one value for server-side apply.
    `always`: whether Go writes the field even when it is zero (True: a list without omitempty; False: omitzero); None where the
    other attributes decide (`mooring.apimachinery.codec.zerofields`).
    `within`: number of the embedded message that has the field in protobuf, while JSON has it inline (Go's inlined structs,
    such as the source of a Volume); 0 for every other field.
    """

    name: str
    number: int
    type: Type
    doc: str = ""
    required: bool = False
    pointer: bool = False
    patch: Literal["atomic", "merge", "replace"] = "atomic"
    patch_key: str = ""
    list_keys: tuple[str, ...] = ()
    list_set: bool = False
    enum: tuple[str, ...] = ()
    within: int = 0
    map_atomic: bool = False
    always: bool | None = None


@dataclass(frozen=True)
class Message:
    """A JSON object with known fields. `name` is its OpenAPI definition name, e.g. `io.k8s.api.core.v1.Secret`."""

    name: str
    fields: tuple[Field, ...]
    doc: str = ""
    atomic: bool = False

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """The fields by name."""
        return {item.name: item for item in self.fields}

    @cached_property
    def embedded(self) -> dict[int, Message]:
        """The embedded messages that only protobuf has, by number."""
        return {
            number: Message(
                self.name, tuple(replace(item, within=0) for item in self.fields if item.within == number), self.doc
            )
            for number in sorted({item.within for item in self.fields if item.within})
        }


Type = Scalar | ListOf | MapOf | Message
