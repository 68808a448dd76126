"""Bodies in, bodies out: JSON, YAML and protobuf, decoded strictly and encoded in one canonical order.

Rules kept here (docs/protocol/negotiation.md, docs/protocol/requests.md):
* Content-Type decides how a body is read; an empty one means JSON; an unknown one is 415 that lists what is read.
* Bodies above 3 MiB and JSON of more than `MAX_VALUES` values are 413; anything that cannot be read is 400 in the words of
  kube-apiserver. Depth, UTF-8 and numbers are checked, and no input leads to RecursionError. A message quotes at most the
  beginning of a body, and none of a kind that may begin with a secret.
* The values of a JSON body are counted before anything is built of them.
* The first unknown and duplicate fields are returned with their paths; `warn_or_refuse` turns them into warnings or into one
  `strict decoding error: …`.
* Objects are written compactly with kind, apiVersion, metadata first, so that stored bytes can be read by their beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mooring.apimachinery.codec.decode import MAX_DEPTH, MAX_VALUES, conform, depth_exceeds
from mooring.apimachinery.codec.fieldpath import MAX_REPORTED, FieldPath, path_text
from mooring.apimachinery.codec.goerrors import JSON_TYPES, json_syntax_error, unmarshal_error
from mooring.apimachinery.codec.jsonsize import count_values
from mooring.apimachinery.codec.protobuf import envelope as protobuf
from mooring.apimachinery.codec.yaml import decode_yaml, encode_yaml
from mooring.apimachinery.negotiation import JSON, MEDIA_TYPES, PROTOBUF, YAML, Media
from mooring.apimachinery.schema import Message, Obj
from mooring.apimachinery.scheme import unexpected_kind, unexpected_options
from mooring.errors import ApiError, BadRequestError, RequestEntityTooLargeError, UnsupportedMediaTypeError, quoted

__all__ = [
    "JSON",
    "MAX_BODY",
    "MAX_DEPTH",
    "MAX_VALUES",
    "PROTOBUF",
    "YAML",
    "Decoded",
    "body_media",
    "conform",
    "decode_body",
    "decode_json",
    "decode_options",
    "decode_yaml",
    "duplicate_fields",
    "encode_json",
    "encode_yaml",
    "pretty",
    "unhandled",
    "unknown_fields",
    "warn_or_refuse",
]

MAX_BODY = 3 * 1024 * 1024
"""Bytes of a request body: kube-apiserver's limit."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An object that fits its schema, and what was wrong with its spelling."""

    obj: Obj
    unknown: tuple[str, ...] = ()
    """Paths of fields that the schema does not know."""
    duplicates: tuple[str, ...] = ()
    """Sentences about keys that the body repeats."""


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
    return read_json(body), _duplicates(body)


def read_json(body: bytes) -> Any:
    """The value alone, several times faster than with duplicate keys. Raises as `decode_json`."""
    if count_values(body) > MAX_VALUES:
        raise RequestEntityTooLargeError(
            f"Request entity too large: the body has more than {MAX_VALUES} values; split it into several objects"
        )
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError:
        raise BadRequestError("invalid UTF-8 in string literal") from None
    except msgspec.MsgspecError as error:
        raise BadRequestError(json_syntax_error(body) or _limit_error(error)) from None
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and depth_exceeds(value):
        raise _too_deep()
    return value


def _limit_error(error: msgspec.MsgspecError) -> str:
    """What msgspec refuses although its syntax is right: numbers beyond float64 and halves of surrogate pairs."""
    return re.split(r" \(byte| - at ", str(error).removeprefix("JSON is malformed: "))[0].lower()


def _too_deep() -> BadRequestError:
    return BadRequestError(f"exceeded max depth of {MAX_DEPTH}")


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
    kind: str,
    api_version: str,
) -> Decoded:
    """Read a request body into an object that fits `schema`.

    `kind` and `api_version` say what is expected: what the body leaves out is filled in from them, and what contradicts them is
    refused. Messages that have metadata always get one. Raises BadRequestError, RequestEntityTooLargeError and
    UnsupportedMediaTypeError.
    """
    group = api_version.rpartition("/")[0]

    def check(given_version: str, given: str) -> None:
        if (given_version, given) == (api_version, kind):
            return
        why = unexpected_kind(given_version, given, group, kind)
        if why:
            raise BadRequestError(why)

    try:
        decoded = _decode(body, content_type, schema, (api_version, kind), check)
    except _UndecodableError as error:
        if error.gvk is None:
            raise BadRequestError(
                f"the object provided is unrecognized (must be of type {kind}): {error} ({_summary(body, kind)})"
            ) from None
        raise BadRequestError(unhandled(*error.gvk, kind, str(error))) from None
    given_version = decoded.obj["apiVersion"]
    if given_version != api_version:
        raise BadRequestError(
            f"the API version in the data ({given_version}) does not match the expected API version ({api_version})"
        )
    return decoded


def decode_options(body: bytes, content_type: str, schema: Message) -> Obj:
    """Read the options of a DELETE, which clients send in any version. Raises as `decode_body`."""

    def check(given_version: str, given: str) -> None:
        if given != "DeleteOptions":
            raise BadRequestError(unexpected_options(given_version, given))

    try:
        return _decode(body, content_type, schema, ("meta.k8s.io/v1", "DeleteOptions"), check).obj
    except _UndecodableError as error:
        raise BadRequestError(str(error)) from None


class _UndecodableError(Exception):
    """A body that is not of the kind wanted; `gvk` is None where not even its kind could be read."""

    def __init__(self, why: str, gvk: tuple[str, str] | None = None) -> None:
        super().__init__(why)
        self.gvk = gvk


def _decode(
    body: bytes,
    content_type: str,
    schema: Message,
    wanted: tuple[str, str],
    check: Callable[[str, str], None],
) -> Decoded:
    """`wanted` are the apiVersion and kind of a body that names none; `check` refuses those of a body that names others."""
    media = body_media(content_type)
    if len(body) > MAX_BODY:
        raise RequestEntityTooLargeError(f"Request entity too large: limit is {MAX_BODY}")
    obj: Any
    duplicates: list[str] = []
    raw = b""
    try:
        if media == "protobuf":
            api_version, kind, raw = protobuf.decode_envelope(body)
            obj = {"apiVersion": api_version, "kind": kind}
        elif media == "json":
            obj, repeated = _read_json(body)
            duplicates = duplicate_fields(repeated)
        else:
            obj, duplicates = decode_yaml(_utf8(body))
        obj = {} if obj is None else obj
        gvk = _kind_of(obj, *wanted)
    except BadRequestError as error:
        raise _UndecodableError(error.message) from None
    unknown: list[str] = []
    try:
        check(*gvk)
        if media == "protobuf":
            obj = protobuf.decode(raw, schema)
        else:
            unknown = conform(obj, schema)
    except BadRequestError as error:
        raise _UndecodableError(error.message, gvk) from None
    return Decoded(_complete(obj, *gvk, schema), tuple(unknown), tuple(duplicates))


def _read_json(body: bytes) -> tuple[Any, list[str]]:
    try:
        return decode_json(body)
    except BadRequestError as error:
        raise BadRequestError(f"{_NO_KIND}: {error.message}") from None


def _utf8(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise BadRequestError("yaml: invalid UTF-8") from None


_NO_KIND = "couldn't get version/kind; json parse error"
_TYPE_META = r'struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }'


def _kind_of(obj: Any, wanted_version: str, wanted: str) -> tuple[str, str]:
    """apiVersion and kind of a body, with those wanted for what it leaves out."""
    if not isinstance(obj, dict):
        raise BadRequestError(f"{_NO_KIND}: {unmarshal_error(obj, _TYPE_META)}")
    for name, value in obj.items():
        if name in ("apiVersion", "kind") and value is not None and not isinstance(value, str):
            given = JSON_TYPES.get(type(value), "number")
            raise BadRequestError(
                f"{_NO_KIND}: json: cannot unmarshal {given} into Go struct field .{name} of type string"
            )
    api_version = obj.get("apiVersion") or wanted_version
    if api_version.count("/") > 1:
        raise BadRequestError(f"unexpected GroupVersion string: {api_version[:MAX_NAME]}")
    return api_version[:MAX_NAME], (obj.get("kind") or wanted)[:MAX_NAME]


MAX_NAME = 256
"""Characters of an apiVersion and of a kind; real ones have below sixty."""
MAX_SUMMARY = 30
"""Bytes of a body that an error quotes when not even its kind could be read."""
_SECRET_KINDS = frozenset(("Secret", "TokenReview"))


def _summary(body: bytes, kind: str) -> str:
    """The beginning of a body: enough to see what it is. Bodies that may begin with a secret are not quoted."""
    if not body:
        return "<empty>"
    if kind in _SECRET_KINDS:
        return "not shown"
    start = body[:MAX_SUMMARY]
    text = start.decode(errors="replace") if body[:1] == b"{" else start.hex()
    return text if len(body) <= MAX_SUMMARY else f"{text} ..."


def unhandled(api_version: str, given: str, kind: str, why: str) -> str:
    """Return the sentence about a body of a known kind that cannot be read as one of `kind`."""
    version = api_version.rpartition("/")[2]
    return f"{given} in version {quoted(version)} cannot be handled as a {kind}: {why}"


def _complete(obj: Obj, api_version: str, kind: str, schema: Message) -> Obj:
    """The object with kind, apiVersion and (where the message has it) metadata in front."""
    first: Obj = {"kind": kind, "apiVersion": api_version}
    if "metadata" in schema.by_name:
        first["metadata"] = obj.get("metadata", {})
    return first | {key: value for key, value in obj.items() if key not in first}


def unknown_fields(paths: Iterable[str]) -> list[str]:
    return [f'unknown field "{path}"' for path in paths]


def duplicate_fields(paths: Iterable[str]) -> list[str]:
    return [f'duplicate field "{path}"' for path in paths]


def warn_or_refuse(policy: str, found: Sequence[str], refused: Callable[[str], ApiError]) -> Sequence[str]:
    """Return the warnings about `found`; raise what `refused` makes of them when the policy is Strict.

    `policy` is the fieldValidation query value; empty means Warn.
    """
    if policy == "Ignore":
        return ()
    if found and policy == "Strict":
        lines = [text for text in found if text.startswith("line ")]
        others = [text for text in found if not text.startswith("line ")]
        repeated = ["\n  ".join(("yaml: unmarshal errors:", *lines))] if lines else []
        raise refused(", ".join((*repeated, *others)))
    return found[:MAX_REPORTED]


def encode_json(obj: Obj) -> bytes:
    """Compact JSON with kind, apiVersion and metadata first; the other fields in the order they have."""
    first = {key: obj[key] for key in ("kind", "apiVersion", "metadata") if key in obj}
    if first:
        obj = first | obj
    return msgspec.json.encode(obj)


def pretty(raw: bytes) -> bytes:
    """JSON for people: two spaces of indent and a final newline."""
    return msgspec.json.format(raw, indent=2) + b"\n"
