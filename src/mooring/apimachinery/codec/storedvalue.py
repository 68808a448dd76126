"""Values of the store: decode an object that any server wrote, as JSON or as protobuf.

Rules kept here (docs/protocol/storage.md#values):
* A value that begins with `k8s\\0` is protobuf in its envelope; any other value is JSON.
* A value has kind and apiVersion, by which its schema is found. JSON without them, and of an unknown kind, is refused alike.
* Any bytes give an object or BadRequestError. The work is linear in the bytes, whose size storage has bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from mooring.apimachinery.codec.protobuf.decode import decode_stored_message
from mooring.apimachinery.codec.protobuf.envelope import MAGIC, decode_envelope
from mooring.apimachinery.schema import Message, Obj
from mooring.errors import BadRequestError

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
