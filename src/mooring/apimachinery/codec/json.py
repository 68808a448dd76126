"""JSON: decoding within limits, duplicate keys, canonical and indented encoding, base64 fields, deep copies.

Rules kept here:
* More than `MAX_VALUES` values are 413. Whatever else cannot be decoded is 400
  in the words of Go's encoding/json. Depth, UTF-8 and numbers are checked, and no input leads to RecursionError.
* Objects are encoded compactly with kind, apiVersion and metadata first, so that the beginning of stored bytes is predictable.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec

from mooring.apimachinery.codec.goerrors import json_syntax_error
from mooring.apimachinery.codec.limits import (
    MAX_DEPTH,
    MAX_REPORTED,
    MAX_VALUES,
    FieldPath,
    count_values,
    depth_exceeds,
    path_text,
    too_many_values,
)
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError

T = TypeVar("T")


class JSONSyntaxError(BadRequestError):
    """400: a body is not JSON."""


_decode = msgspec.json.Decoder().decode


def decode_json(body: bytes) -> Any:
    """Return the value of JSON text; the last of duplicate keys counts.

    Raises JSONSyntaxError, BadRequestError for what other limits forbid, and RequestEntityTooLargeError.
    """
    # Before anything is built of the values: one of a byte or two takes much more memory as an object.
    if count_values(body) > MAX_VALUES:
        raise too_many_values()
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError:
        raise BadRequestError("invalid UTF-8 in string literal") from None
    except msgspec.MsgspecError as error:
        try:
            reason = json_syntax_error(body)
        except RecursionError:
            # Python's scanner has a few levels less than msgspec.
            raise _too_deep() from None
        if reason:
            raise JSONSyntaxError(reason) from None
        raise BadRequestError(_msgspec_limit(error)) from None
    # Only a text with so many brackets can nest so deep: the walk is left out for all others.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and depth_exceeds(value):
        raise _too_deep()
    return value


def _msgspec_limit(error: msgspec.MsgspecError) -> str:
    """Return the reason why msgspec rejects valid syntax: a number beyond float64, or half of a surrogate pair."""
    return re.split(r" \(byte| - at ", str(error).removeprefix("JSON is malformed: "))[0].lower()


def _too_deep() -> BadRequestError:
    return BadRequestError(f"exceeded max depth of {MAX_DEPTH}")


class _ObjectWithDuplicates(dict[str, Any]):
    """A JSON object that has a key more than once, with the first such keys."""

    duplicates: tuple[str, ...] = ()


def _skip_number(text: str) -> int:
    # The search for duplicates looks at keys only.
    return 0


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    marked = _ObjectWithDuplicates(value)
    seen: set[str] = set()
    duplicates: dict[str, None] = {}
    for key, _ in pairs:
        if key in seen:
            duplicates[key] = None
            if len(duplicates) == MAX_REPORTED:
                break
        seen.add(key)
    marked.duplicates = tuple(duplicates)
    return marked


def duplicate_keys(body: bytes) -> list[str]:
    """Return the paths of the first keys that occur more than once in their object.

    `body` must have been decoded before: it is valid JSON of bounded depth. This costs several times as much as decoding it.
    """
    found = False

    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        value = _object_of_pairs(pairs)
        found = found or type(value) is _ObjectWithDuplicates
        return value

    value = json.loads(body, strict=False, object_pairs_hook=hook, parse_int=_skip_number, parse_float=_skip_number)
    if not found:
        return []
    return [path_text(path) for path, _ in zip(_duplicate_paths(value, None), range(MAX_REPORTED), strict=False)]


def _duplicate_paths(value: Any, path: FieldPath) -> Iterator[FieldPath]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict | list):
                yield from _duplicate_paths(item, (path, index))
    else:
        if isinstance(value, _ObjectWithDuplicates):
            for key in value.duplicates:
                yield (path, key)
        for key, item in value.items():
            if isinstance(item, dict | list):
                yield from _duplicate_paths(item, (path, key))


def encode_json(obj: Obj) -> bytes:
    """Return compact JSON with kind, apiVersion and metadata first; the other fields keep their order."""
    first = {key: obj[key] for key in ("kind", "apiVersion", "metadata") if key in obj}
    if first:
        obj = first | obj
    return msgspec.json.encode(obj)


def indent_json(raw: bytes) -> bytes:
    """Return JSON text indented by two spaces, with a final newline."""
    return msgspec.json.format(raw, indent=2) + b"\n"


def base64_field(value: object) -> bytes:
    """Return the bytes of a base64 field of an object; none when the field is absent or not base64."""
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:
        return b""


def deep_copy(value: T) -> T:
    """Return a deep copy of a JSON value. Encoding and decoding is several times faster than copy.deepcopy."""
    return cast("T", _decode(msgspec.json.encode(value)))
