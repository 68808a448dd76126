"""Bodies in, bodies out: JSON, YAML and protobuf, decoded strictly and encoded in one canonical order.

Rules kept here (reference/kubernetes.md 7.10, 7.12, 7.17):
* Content-Type decides how a body is read; an empty one means JSON; an unknown one is 415 that lists what is read.
* Bodies above 3 MiB and JSON of more than `MAX_VALUES` values are 413; anything that cannot be read is 400 in plain words: depth,
  UTF-8 and numbers are all checked, and no input leads to RecursionError. Messages never quote the body.
* The values of a JSON body are counted before anything is built of them.
* The first unknown and duplicate fields are returned with their paths; `apply_field_validation` turns them into warnings or into
  one `strict decoding error: …`.
* Objects are written compactly with kind, apiVersion, metadata first, so that stored bytes can be read by their beginning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mooring.errors import BadRequestError, RequestEntityTooLargeError, UnsupportedMediaTypeError
from mooring.wire import protobuf
from mooring.wire.accept import JSON, MEDIA_TYPES, PROTOBUF, YAML, Media
from mooring.wire.conform import MAX_DEPTH, MAX_VALUES, conform, depth_exceeds
from mooring.wire.fieldpath import MAX_REPORTED, FieldPath, path_text
from mooring.wire.jsonsize import count_values
from mooring.wire.schema import Message, Obj
from mooring.wire.yamltext import decode_yaml, encode_yaml

__all__ = [
    "JSON",
    "MAX_BODY",
    "MAX_DEPTH",
    "MAX_VALUES",
    "PROTOBUF",
    "YAML",
    "Decoded",
    "apply_field_validation",
    "body_media",
    "conform",
    "decode_body",
    "decode_json",
    "decode_yaml",
    "encode_json",
    "encode_yaml",
    "pretty",
]

MAX_BODY = 3 * 1024 * 1024
"""Bytes of a request body: kube-apiserver's limit (7.17)."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An object that fits its schema, and what was wrong with its spelling."""

    obj: Obj
    unknown: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()


def body_media(content_type: str) -> Media:
    """How to read a body of this Content-Type (parameters do not matter); UnsupportedMediaTypeError for others."""
    name = content_type.partition(";")[0].strip().lower()
    if not name:
        return "json"
    for media, text in MEDIA_TYPES.items():
        if name == text:
            return media
    raise UnsupportedMediaTypeError(
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(MEDIA_TYPES.values())
    )


def decode_json(body: bytes) -> tuple[Any, list[str]]:
    """The value, and the paths of the first duplicate keys (the last value counts).

    Raises BadRequestError, RequestEntityTooLargeError.
    """
    if count_values(body) > MAX_VALUES:
        raise RequestEntityTooLargeError(
            f"Request entity too large: the body has more than {MAX_VALUES} values; split it into several objects"
        )
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError:
        raise BadRequestError("json parse error: invalid UTF-8") from None
    except msgspec.MsgspecError as error:
        why = str(error).partition(" - at ")[0].replace("Input", "input").replace("Number", "number")
        raise BadRequestError(f"json parse error: {why}") from None
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and depth_exceeds(value):
        raise _too_deep()
    return value, _duplicates(body)


def _too_deep() -> BadRequestError:
    return BadRequestError(f"json parse error: exceeded max depth of {MAX_DEPTH}")


class _Repeated(dict[str, Any]):
    """An object that names a key more than once, with the first such keys."""

    repeated: tuple[str, ...] = ()


def _number(text: str) -> int:
    return 0  # the scan below looks only at keys


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    repeated = _Repeated(value)
    seen: set[str] = set()
    twice: dict[str, None] = {}
    for key, _ in pairs:
        if key in seen:
            twice[key] = None
            if len(twice) == MAX_REPORTED:
                break
        seen.add(key)
    repeated.repeated = tuple(twice)
    return repeated


def _duplicates(body: bytes) -> list[str]:
    """Paths of the first keys that occur more than once in their object. `body` is known to be valid and of bounded depth."""
    found = False

    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        value = _pairs(pairs)
        found = found or type(value) is _Repeated
        return value

    value = json.loads(body, strict=False, object_pairs_hook=hook, parse_int=_number, parse_float=_number)
    if not found:
        return []
    return [path_text(path) for path, _ in zip(_repeated_paths(value, None), range(MAX_REPORTED), strict=False)]


def _repeated_paths(value: Any, path: FieldPath) -> Iterator[FieldPath]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict | list):
                yield from _repeated_paths(item, (path, index))
    else:
        if isinstance(value, _Repeated):
            for key in value.repeated:
                yield (path, key)
        for key, item in value.items():
            if isinstance(item, dict | list):
                yield from _repeated_paths(item, (path, key))


def decode_body(
    body: bytes,
    content_type: str,
    schema: Message,
    *,
    kind: str = "",
    api_versions: Sequence[str] = (),
) -> Decoded:
    """Read a request body into an object that fits `schema`.

    `kind` and `api_versions` say what is expected: what the body leaves out is filled in from them (the first apiVersion),
    and what contradicts them is refused. Messages that have metadata always get one. Raises BadRequestError,
    RequestEntityTooLargeError and UnsupportedMediaTypeError.
    """
    media = body_media(content_type)
    if len(body) > MAX_BODY:
        raise RequestEntityTooLargeError(f"Request entity too large: limit is {MAX_BODY}")
    if media == "protobuf":
        return _decode_protobuf(body, schema, kind, api_versions)
    try:
        obj, duplicates = decode_json(body) if media == "json" else decode_yaml(_utf8(body))
    except BadRequestError as error:
        raise _unrecognized(kind, error.message) from None
    if not isinstance(obj, dict):
        raise _unrecognized(kind, "the body is not an object")
    gvk = _expect(obj.get("apiVersion") or "", obj.get("kind") or "", kind, api_versions)
    try:
        unknown = conform(obj, schema)
    except BadRequestError as error:
        raise _unhandled(*gvk, kind, error.message) from None
    return Decoded(_complete(obj, *gvk, schema), tuple(unknown), tuple(duplicates))


def _decode_protobuf(body: bytes, schema: Message, kind: str, api_versions: Sequence[str]) -> Decoded:
    try:
        api_version, given, raw = protobuf.decode_envelope(body)
    except BadRequestError as error:
        raise _unrecognized(kind, error.message) from None
    gvk = _expect(api_version, given, kind, api_versions)
    try:
        return Decoded(_complete(protobuf.decode(raw, schema), *gvk, schema))
    except BadRequestError as error:
        raise _unhandled(*gvk, kind, error.message) from None


def _utf8(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise BadRequestError("yaml parse error: invalid UTF-8") from None


def _expect(api_version: Any, given: Any, kind: str, api_versions: Sequence[str]) -> tuple[str, str]:
    """(apiVersion, kind) of the body, completed by what is expected; 400 when they contradict it."""
    if not isinstance(api_version, str) or not isinstance(given, str):
        raise _unrecognized(kind, "json: kind and apiVersion must be strings")
    given = given or kind
    api_version = api_version or next(iter(api_versions), "")
    if kind and given != kind:
        raise _unhandled(api_version, given, kind, "the kinds differ")
    if api_versions and api_version not in api_versions:
        raise BadRequestError(
            f"the API version in the data ({api_version}) does not match the expected API version ({api_versions[0]})"
        )
    return api_version, given


def _unrecognized(kind: str, why: str) -> BadRequestError:
    wanted = f" (must be of type {kind})" if kind else ""
    return BadRequestError(f"the object provided is unrecognized{wanted}: couldn't get version/kind; {why}")


def _unhandled(api_version: str, given: str, kind: str, why: str) -> BadRequestError:
    version = api_version.rpartition("/")[2]
    return BadRequestError(f'{given} in version "{version}" cannot be handled as a {kind or given}: {why}')


def _complete(obj: Obj, api_version: str, kind: str, schema: Message) -> Obj:
    """The object with kind, apiVersion and (where the message has it) metadata in front."""
    first: Obj = {"kind": kind, "apiVersion": api_version}
    if "metadata" in schema.by_name:
        first["metadata"] = obj.get("metadata", {})
    return first | {key: value for key, value in obj.items() if key not in first}


def apply_field_validation(policy: str, unknown: Sequence[str], duplicates: Sequence[str]) -> list[str]:
    """Warnings for a body with unknown or duplicate fields; BadRequestError when the policy is Strict (7.12).

    `policy` is the fieldValidation query value; empty means Warn.
    """
    if policy == "Ignore":
        return []
    found = [f'unknown field "{path}"' for path in unknown] + [f'duplicate field "{path}"' for path in duplicates]
    found = found[:MAX_REPORTED]
    if found and policy == "Strict":
        raise BadRequestError("strict decoding error: " + ", ".join(found))
    return found


def encode_json(obj: Obj) -> bytes:
    """Compact JSON with kind, apiVersion and metadata first; the other fields in the order they have."""
    first = {key: obj[key] for key in ("kind", "apiVersion", "metadata") if key in obj}
    if first:
        obj = first | obj
    return msgspec.json.encode(obj)


def pretty(raw: bytes) -> bytes:
    """JSON for people: two spaces of indent and a final newline."""
    return msgspec.json.format(raw, indent=2) + b"\n"
