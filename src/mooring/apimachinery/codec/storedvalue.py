"""Values of the store: decode an object that any server wrote, and tell whether it has the shape of its schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from mooring.apimachinery.codec.protobuf import MAGIC, decode_envelope, decode_stored_message
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar, Type
from mooring.errors import BadRequestError

# Values of the store: decode an object that any server wrote, as JSON or as protobuf.
#
# Rules kept here (docs/protocol/storage.md#values):
# * A value that begins with `k8s\0` is protobuf in its envelope; any other value is JSON.
# * A value has kind and apiVersion, by which its schema is found. JSON without them, and of an unknown kind, is refused alike.
# * Any bytes give an object or BadRequestError. The work is linear in the bytes, whose size storage has bounded.

Schemas = Mapping[tuple[str, str], Message]
"""Schema by apiVersion and kind."""

_decode: Callable[[bytes], object] = msgspec.json.Decoder().decode


def decode_stored_value(value: bytes, schemas: Schemas) -> tuple[Obj, bool]:
    """Return the object, and whether protobuf fields with unknown numbers were skipped. Raises BadRequestError."""
    if value.startswith(MAGIC):
        api_version, kind, message = decode_envelope(value)
        obj, has_unknown = decode_stored_message(message, _schema(schemas, api_version, kind))
        return {"kind": kind, "apiVersion": api_version, **obj}, has_unknown
    try:
        decoded = _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequestError("it is neither valid JSON nor protobuf") from None
    if not isinstance(decoded, dict):
        raise BadRequestError("it is no JSON object")
    _schema(schemas, decoded.get("apiVersion"), decoded.get("kind"))
    return decoded, False


def _schema(schemas: Schemas, api_version: object, kind: object) -> Message:
    for known, schema in schemas.items():
        if known == (api_version, kind):
            return schema
    known_versions = " or ".join(f"{known_kind} of {version}" for version, known_kind in schemas)
    raise BadRequestError(f"it is no {known_versions}")


# Shapes of stored objects: tell whether JSON is an object of its schema throughout, before anything reads a field of it.
#
# Rules kept here:
# * Every field that is present has the type that its schema says; what Go may write as null may be null. Code that judges by an
#   object need not expect another type in it: one such value would be an error for whomever it concerns, or for all.
# * Of a field whose name is damaged nothing is left but its absence, which may grant what the field took away. An `exact` shape
#   refuses names that the schema does not have, and an object without a required message. Metadata is left out: it judges
#   nothing.
# * Each `Message` is compiled once, and kept on the message: this code runs for every value that another process wrote.

Decode = Callable[[bytes], Any]
"""Returns the object, with its fields as attributes whose names end in `_`. Raises msgspec.DecodeError."""

_DECODERS = ("_shape_decoder", "_exact_shape_decoder")
_SHAPES = ("_shape", "_exact_shape")

_TIME = Annotated[datetime, msgspec.Meta(tz=True)]
_SCALARS: dict[Scalar, Any] = {
    Scalar.STRING: str,
    Scalar.BOOL: bool,
    Scalar.INT32: int,
    Scalar.INT64: int,
    Scalar.DOUBLE: float,
    Scalar.BYTES: str,
    Scalar.TIME: _TIME,
    Scalar.MICRO_TIME: _TIME,
    Scalar.QUANTITY: str | int | float,
    Scalar.INT_OR_STRING: str | int,
    Scalar.STRING_LIST: list[str],
    Scalar.FIELDS_V1: Any,
    Scalar.RAW: Any,
}


def shape_decoder(schema: Message, *, exact: bool = False) -> Decode:
    """Return what decodes an object of this schema, which may have kind and apiVersion."""
    decode: Decode | None = schema.__dict__.get(_DECODERS[exact])
    if decode is None:
        root = Message(
            schema.name, (*schema.fields, *(Field(name, 0, Scalar.STRING) for name in ("kind", "apiVersion")))
        )
        decode = schema.__dict__[_DECODERS[exact]] = msgspec.json.Decoder(_message_shape(root, exact)).decode
    return decode


def _message_shape(schema: Message, exact: bool) -> Any:
    exact = exact and schema is not OBJECT_META
    shape = schema.__dict__.get(_SHAPES[exact])
    if shape is None:
        shape = schema.__dict__[_SHAPES[exact]] = msgspec.defstruct(
            "Shape",
            [_field(field, exact) for field in sorted(schema.fields, key=lambda field: not _is_needed(field, exact))],
            rename={field.name + "_": field.name for field in schema.fields},
            forbid_unknown_fields=exact,
            gc=False,
        )
    return shape


def _is_needed(field: Field, exact: bool) -> bool:
    return exact and field.required and isinstance(field.type, Message)


def _field(field: Field, exact: bool) -> tuple[str, Any] | tuple[str, Any, None]:
    shape = _shape(field.type, exact)
    return (field.name + "_", shape) if _is_needed(field, exact) else (field.name + "_", shape | None, None)


def _shape(kind: Type, exact: bool) -> Any:
    if isinstance(kind, ListOf):
        return list[_shape(kind.item, exact)]  # type: ignore[misc] # a type that is made while the program runs
    if isinstance(kind, MapOf):
        return dict[str, _shape(kind.value, exact) | None]  # type: ignore[misc] # likewise
    return _message_shape(kind, exact) if isinstance(kind, Message) else _SCALARS[kind]
