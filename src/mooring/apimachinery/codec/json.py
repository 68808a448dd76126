"""JSON of requests and objects, and the limits of every codec."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec

from mooring.apimachinery.codec.goerrors import json_syntax_error
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError, RequestEntityTooLargeError

# Field paths for errors and warnings, written out only when they are reported.
#
# A decoder visits every value but reports few. So it passes a chain of names down and writes the text on demand. Otherwise one
# long key above many values would cost its length once for each value.

FieldPath = tuple["FieldPath", str | int] | None
"""The path of the parent, and the name of a member or the index of an item; None is the body itself."""

MAX_REPORTED = 100
"""Unknown and duplicate fields reported for one body: more would fill the headers of the response."""
MAX_PATH = 512
"""Characters of a reported path. The deepest field of a Kubernetes kind takes some 150, a key of an annotation 317."""


def path_text(path: FieldPath) -> str:
    """Return the path as Kubernetes prints it, such as `spec.containers[0].name`; a long path is cut."""
    parts: list[str] = []
    while path is not None:
        path, name = path
        parts.append(f"[{name}]" if isinstance(name, int) else f".{name[: MAX_PATH + 1]}")
    text = "".join(reversed(parts)).removeprefix(".")
    return text if len(text) <= MAX_PATH else text[:MAX_PATH] + "..."


# Limits on request bodies: bytes, values and depth of nesting.
#
# A value costs far more memory than the three bytes that it may take: 3 MiB of `{},` are a million objects. So the values of JSON
# text are counted before anything is built of them, by byte searches that take about a millisecond for each MiB.

MAX_BODY = 3 * 1024 * 1024
"""Bytes of a request body: kube-apiserver's limit."""
MAX_DEPTH = 100
"""Levels of nesting in a body. The deepest Kubernetes kind has about 30. The bound keeps recursive code within the stack."""
MAX_VALUES = 100_000
"""Values in a body, aliases expanded. A Role of 8 000 rules has 64 000 and a full EndpointSlice 20 000. Each value costs the
server some microseconds and 60 bytes of memory, and 3 MiB could hold a million of them."""


def work_size(body: bytes, content_type: str) -> int:
    """Return the bytes about which the work of a body may be: the most, where aliases of YAML may repeat its content.

    A body of 14 kB has 90 000 values with them, some 0.2 s of work in all stages of a write.
    """
    is_yaml = "yaml" in content_type.lower()
    return MAX_BODY if is_yaml and b"&" in body and b"*" in body else len(body)


def body_too_large(limit: int = MAX_BODY) -> RequestEntityTooLargeError:
    """Return the error for a body of more than `limit` bytes, as kube-apiserver words it; programs search for these words."""
    return RequestEntityTooLargeError(f"Request entity too large: limit is {limit}")


def too_many_values() -> RequestEntityTooLargeError:
    """Return the error for a body of more than `MAX_VALUES` values."""
    return RequestEntityTooLargeError(
        f"Request entity too large: the body has more than {MAX_VALUES} values; split it into several objects"
    )


def count_values(text: bytes, enough: int = MAX_VALUES) -> int:
    """Return the number of values of JSON text: its commas and opening brackets outside strings.

    Every value counts at least once, except the outermost. A result above `enough` need not be exact, and the result for text that
    is not JSON has no meaning.
    """
    count = _count_separators(text)
    if count <= enough:  # separators inside strings are counted too, but even with them the limit is kept
        return count
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # without escapes every quote begins or ends a string
    most_quotes = 4 * (enough + 1)  # two strings, a key and a text, for every value
    parts = plain.split(b'"', most_quotes)
    return count if len(parts) > most_quotes else _count_separators(b"".join(parts[::2]))


def _count_separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"{") + text.count(b"[")


def depth_exceeds(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Return whether lists and objects nest deeper than `limit`. The search goes level by level and does not recurse."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


# JSON: decoding within limits, duplicate keys, canonical and indented encoding, base64 fields, deep copies.
#
# Rules kept here:
# * More than `MAX_VALUES` values are 413. Whatever else cannot be decoded is 400
#   in the words of Go's encoding/json. Depth, UTF-8 and numbers are checked, and no input leads to RecursionError.
# * Objects are encoded compactly with kind, apiVersion and metadata first, so that the beginning of stored bytes is predictable.

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
