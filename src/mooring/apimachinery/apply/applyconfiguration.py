"""The body of a server-side apply: the part of an object that its sender has an opinion about.

Rules kept here (docs/protocol/server-side-apply.md):
* YAML, of which JSON is a part. It says its apiVersion and kind, and those are the resource's; it says no managedFields.
* A field that the schema does not know is refused whatever fieldValidation says: nobody could own it. Duplicate keys are the
  caller's to judge.
* A zero that is said is an opinion and stays, where other bodies lose it (`mooring.apimachinery.codec.unmarshal`): it is owned, and
  it overrides.
  null is no opinion, nor is Go's zero time; and what other bodies get without saying it (a `required` field) is none either.
"""

from __future__ import annotations

from typing import Any

from mooring.apimachinery.apply.structuredmerge import untyped
from mooring.apimachinery.codec.goerrors import unmarshal_error
from mooring.apimachinery.codec.json import decode_json, deep_copy, duplicate_keys
from mooring.apimachinery.codec.limits import MAX_BODY
from mooring.apimachinery.codec.requestbody import Decoded
from mooring.apimachinery.codec.unmarshal import TIMES, unmarshal, zero
from mooring.apimachinery.codec.yaml import decode_yaml
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import ListOf, MapOf, Message, Obj, Type
from mooring.errors import BadRequestError, RequestEntityTooLargeError

APPLY_PATCH = "application/apply-patch+yaml"
MAX_TOLD = 20
"""Unknown fields that one answer names: enough to see the mistake."""


def decode_apply(body: bytes, resource: Resource) -> Decoded:
    """The configuration, in normal form. Raises BadRequestError, RequestEntityTooLargeError."""
    if len(body) > MAX_BODY:
        raise RequestEntityTooLargeError(f"Request entity too large: limit is {MAX_BODY}")
    given, duplicates = _value(body)
    given = {} if given is None else given
    if not isinstance(given, dict):
        why = unmarshal_error(given, "map[string]interface {}")
        raise BadRequestError(f"error decoding YAML: error unmarshaling JSON: while decoding JSON: {why}")
    api_version, kind = given.get("apiVersion") or "", given.get("kind") or ""
    if (api_version, kind) != (resource.api_version, resource.kind):
        group, _, version = str(api_version).rpartition("/")
        raise BadRequestError(f"invalid object type: {group}/{version}, Kind={kind}")
    config = deep_copy(given)
    unknown = unmarshal(config, resource.schema)
    if unknown:
        told = ", ".join(f".{path}: field not declared in schema" for path in sorted(unknown)[:MAX_TOLD])
        raise untyped(config, told)
    config = _restored(given, config, resource.schema)
    config.setdefault("metadata", {})
    if "managedFields" in config["metadata"]:
        raise BadRequestError("metadata.managedFields must be nil")
    return Decoded(config, duplicates=tuple(duplicates))


def _value(body: bytes) -> tuple[Any, list[str]]:
    if body.lstrip()[:1] == b"{":
        try:
            value = decode_json(body)
            if not duplicate_keys(body):  # the YAML reader reports duplicates with their lines
                return value, []
        except BadRequestError:
            pass  # a YAML document may begin with a brace, too; if it is none, its reader says so better
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise BadRequestError("error decoding YAML: invalid UTF-8") from None
    try:
        return decode_yaml(text)
    except BadRequestError as error:
        raise BadRequestError(f"error decoding YAML: error converting YAML to JSON: {error.message}") from None


def _restored(given: Any, normal: Any, schema: Type) -> Any:
    """`normal`, in place, with the zeros that `given` says and that conforming dropped, and without those that it put in."""
    if given is None:
        return normal
    if isinstance(schema, Message):
        for field in schema.fields:
            value = given.get(field.name)
            if value is None:
                normal.pop(field.name, None)
                continue
            if field.name not in normal:
                if field.type in TIMES:
                    continue
                normal[field.name] = zero(field.type)
            _restored(value, normal[field.name], field.type)
    elif isinstance(schema, ListOf):
        for before, after in zip(given, normal, strict=True):
            _restored(before, after, schema.item)
    elif isinstance(schema, MapOf):
        for key, after in normal.items():
            _restored(given[key], after, schema.value)
    return normal


def settled(obj: Obj, schema: Message) -> Obj:
    """A copy of an object that was merged with a configuration, without the zeros that say nothing in an object."""
    obj = deep_copy(obj)
    unmarshal(obj, schema)
    return obj
