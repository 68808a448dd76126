"""Schemas of objects, declared once for JSON, protobuf, OpenAPI, patches and server-side apply.

Rules kept here:
* A `Message` is data without behaviour, and all codecs, OpenAPI and strategic merge read it (law 4). Objects are plain JSON dicts
  (`Obj`): camelCase keys, bytes as base64 text, times as RFC 3339 text, absent rather than empty.
* Messages stand in `data/api`, a file for each version of an API group, in the notation of Kubernetes' generated.proto. Numbers,
  types and patch markers are those of the generated.proto files of k8s.io/api and k8s.io/apimachinery
  (docs/protocol/negotiation.md#field-numbers). docs/architecture.md#a-kind has the markers.
* A file is read, and a message made, when something first asks for a message. A line that is no part of a message is an error.
* `kind` and `apiVersion` of a top-level object are not fields of its `Message`: in protobuf they are in the envelope, and the codec
  and OpenAPI add them to JSON.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, cached_property
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
    omitempty), or an empty list resets it (`managedFields`). In strategic merge patch a list with `patch="merge"` merges by
    `patch_key` (or as a set of primitives when no key), one with `patch="atomic"` is replaced, and so is an object with
    `patch="replace"`. For server-side apply `list_keys` are the keys of a list that is a map; `list_set` means a set of scalars.
    `enum`: values that OpenAPI lists, of the items where the field is a list; the kind validates them.
    `map_atomic`: a map that is one value for server-side apply.
    `always`: whether Go writes the field even when it is zero (True: a list without omitempty; False: omitzero); None where the
    other attributes decide (`mooring.apimachinery.codec.zerofields`).
    `within`: number of the embedded message that has the field in protobuf, while JSON has it inline (Go's inlined structs,
    such as the source of a Volume); 0 for every other field. `embedded`: name of that struct.
    `go_type`: named type of the value, or of its items, where it is no message: errors of encoding/json contain it (`types.go`).
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
    embedded: str = ""
    go_type: str = ""
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
                self.name,
                tuple(replace(item, within=0, embedded="") for item in self.fields if item.within == number),
                self.doc,
            )
            for number in sorted({item.within for item in self.fields if item.within})
        }


Type = Scalar | ListOf | MapOf | Message

_MESSAGE = r"(?:// (.+)\n)?message (\w+) \{( // \+structType=atomic)?\n+((?: .*\n+)*)\}\n+"
_FIELD = r"(?:  // (?!\+)(.+)\n)?  (?:optional|(repeated)|(map)<string,) (\.?[\w.-]+)(?(3)>) (\w+) = (\d+);(?: // \+(.+))?\n+"
_LEAVES = {
    "string": Scalar.STRING,
    "bool": Scalar.BOOL,
    "int32": Scalar.INT32,
    "int64": Scalar.INT64,
    "double": Scalar.DOUBLE,
    "bytes": Scalar.BYTES,
    "Time": Scalar.TIME,
    "MicroTime": Scalar.MICRO_TIME,
    "Quantity": Scalar.QUANTITY,
    "IntOrString": Scalar.INT_OR_STRING,
    "AttestationValue": Scalar.STRING_LIST,
    "ExtraValue": Scalar.STRING_LIST,
    "Verbs": Scalar.STRING_LIST,
    "FieldsV1": Scalar.FIELDS_V1,
}
"""Leaf types by the last word of their name."""
_MARKERS: dict[str, dict[str, Any]] = {
    "required": {"required": True},
    "pointer": {"pointer": True},
    "always": {"always": True},
    "omitzero": {"always": False},
    "patchStrategy=merge": {"patch": "merge"},
    "patchStrategy=replace": {"patch": "replace"},
    "listType=map": {},
    "listType=set": {"list_set": True},
    "mapType=atomic": {"map_atomic": True},
}
"""Attributes of a field by marker. `required`, patch strategies and types are markers of Kubernetes."""


@cache
def message(name: str) -> Message:
    """Return the message with this OpenAPI name. Raises LookupError when the file of its package has none, or FileNotFoundError."""
    package, _, word = name.rpartition(".")
    found = _messages(package).get(word)
    if found is None:
        raise LookupError(f"{_path(package)}: no message {word}")
    fields = tuple(_field(item, package) for item in _each(_FIELD, package, found.string, *found.span(4)))
    return Message(name, fields, found[1] or "", atomic=bool(found[3]))


@cache
def _messages(package: str) -> dict[str, re.Match[str]]:
    content = pkgutil.get_data("mooring", _path(package))
    assert content is not None, "the loader of this package reads no data"
    text = content.decode()
    return {found[2]: found for found in _each(_MESSAGE, package, text, 0, len(text))}


def _path(package: str) -> str:
    return f"data/api/{package}.proto"


def _each(pattern: str, package: str, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    """Yield matches that follow one another from `start` to `end`. Raises ValueError when something stands between them."""
    # Compiled when the first message is asked for: most commands ask for none. `re` keeps what it has compiled.
    for found in re.compile(pattern).finditer(text, start, end):
        if found.start() != start:
            break
        yield found
        start = found.end()
    if start < end:
        raise _error(package, text, start)


def _error(package: str, text: str, at: int) -> ValueError:
    number = text.count("\n", 0, at)
    return ValueError(f"{_path(package)}:{number + 1}: not understood: {text.splitlines()[number].strip()!r}")


def _field(found: re.Match[str], package: str) -> Field:
    doc, repeated, mapped, word, name, number, markers = found.groups()
    try:
        kind: Type = _LEAVES.get(word.rpartition(".")[2]) or message(_name(word, package))
        attributes = _attributes(markers) if markers else {}
    except (LookupError, FileNotFoundError) as error:
        raise _error(package, found.string, found.start(4)) from error
    if repeated or mapped:
        kind = ListOf(kind) if repeated else MapOf(kind)
    return Field(name, int(number), kind, doc or "", **attributes)


def _name(word: str, package: str) -> str:
    """Return the OpenAPI name: that of `.k8s.io.api.core.v1.Pod` begins with io.k8s."""
    if not word.startswith("."):
        return f"{package}.{word}"
    return f"io.k8s.{word.removeprefix('.k8s.io.')}"


@cache
def _attributes(markers: str) -> dict[str, Any]:
    """Return the attributes of a field. Raises KeyError for an unknown marker."""
    attributes: dict[str, Any] = {}
    for marker in markers.split(" +"):
        key, _, value = marker.partition("=")
        match key:
            case "patchMergeKey":
                attributes["patch_key"] = value
            case "listMapKey":
                attributes["list_keys"] = (*attributes.get("list_keys", ()), value)
            case "enum":
                attributes["enum"] = tuple(value.split("|"))
            case "within" if (number := value.partition(":")[0]).isdecimal():
                attributes |= {"within": int(number), "embedded": value.partition(":")[2]}
            case "goType":
                attributes["go_type"] = value
            case _:
                attributes |= _MARKERS[marker]
    return attributes
