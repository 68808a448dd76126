"""Apply configurations: decoding the body of a server-side apply.

Rules kept here (docs/protocol/server-side-apply.md):
* The body is YAML or JSON. It has the apiVersion and kind of the resource, and no managedFields.
* A field that the schema does not have is refused whatever fieldValidation is, because it could not be owned. Duplicate keys are
  returned to the caller.
* A zero value in the configuration stays, where other bodies lose it (`mooring.apimachinery.codec.unmarshal`): it is owned, and it
  overrides. null and Go's zero time are not owned, nor are the zero values of `required` fields that other bodies get.
"""

from __future__ import annotations

from typing import Any

from mooring.apimachinery.apply.structuredmerge import typed_patch_error
from mooring.apimachinery.codec.goerrors import unmarshal_error
from mooring.apimachinery.codec.json import MAX_BODY, body_too_large, decode_json, deep_copy, duplicate_keys
from mooring.apimachinery.codec.requestbody import DecodedBody
from mooring.apimachinery.codec.unmarshal import TIMES, unmarshal, zero
from mooring.apimachinery.codec.yaml import decode_yaml
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import ListOf, MapOf, Message, Obj, Type
from mooring.errors import BadRequestError

APPLY_PATCH = "application/apply-patch+yaml"
MAX_UNKNOWN = 20
"""Unknown fields that one error names."""


def decode_apply(body: bytes, resource: Resource) -> DecodedBody:
    """Return the configuration in normal form. Raises BadRequestError, RequestEntityTooLargeError."""
    if len(body) > MAX_BODY:
        raise body_too_large()
    decoded, duplicates = _decode(body)
    decoded = {} if decoded is None else decoded
    if not isinstance(decoded, dict):
        reason = unmarshal_error(decoded, "map[string]interface {}")
        raise BadRequestError(f"error decoding patch: error unmarshaling JSON: while decoding JSON: {reason}")
    api_version, kind = decoded.get("apiVersion") or "", decoded.get("kind") or ""
    if (api_version, kind) != (resource.api_version, resource.kind):
        group, _, version = str(api_version).rpartition("/")
        raise BadRequestError(f"invalid object type: {group}/{version}, Kind={kind}")
    config = deep_copy(decoded)
    unknown = unmarshal(config, resource.schema)
    if unknown:
        reasons = ", ".join(f".{path}: field not declared in schema" for path in sorted(unknown)[:MAX_UNKNOWN])
        raise typed_patch_error(config, reasons)
    config = _restore_zeros(decoded, config, resource.schema)
    config.setdefault("metadata", {})
    if "managedFields" in config["metadata"]:
        raise BadRequestError("metadata.managedFields must be nil")
    return DecodedBody(config, duplicates=tuple(duplicates))


def _decode(body: bytes) -> tuple[Any, list[str]]:
    if body.lstrip()[:1] == b"{":
        try:
            value = decode_json(body)
            # The YAML reader reports duplicates with their lines.
            if not duplicate_keys(body):
                return value, []
        except BadRequestError:
            # A YAML document may begin with a brace too, and errors of the YAML reader have lines.
            pass
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise BadRequestError("error encoding patch: invalid UTF-8") from None
    try:
        return decode_yaml(text)
    except BadRequestError as error:
        raise BadRequestError(f"error encoding patch: {error.message}") from None


def _restore_zeros(decoded: Any, normal: Any, schema: Type) -> Any:
    """Return `normal`, changed in place: with the zeros of `decoded` that unmarshal dropped, and without those that it added."""
    if decoded is None:
        return normal
    if isinstance(schema, Message):
        for field in schema.fields:
            value = decoded.get(field.name)
            if value is None:
                normal.pop(field.name, None)
                continue
            if field.name not in normal:
                if field.type in TIMES:
                    continue
                normal[field.name] = zero(field.type)
            _restore_zeros(value, normal[field.name], field.type)
    elif isinstance(schema, ListOf):
        for before, after in zip(decoded, normal, strict=True):
            _restore_zeros(before, after, schema.item)
    elif isinstance(schema, MapOf):
        for key, after in normal.items():
            _restore_zeros(decoded[key], after, schema.value)
    return normal


def drop_empty_zeros(obj: Obj, schema: Message) -> Obj:
    """Return a copy of a merged object without the zeros that stored objects leave out."""
    obj = deep_copy(obj)
    unmarshal(obj, schema)
    return obj
