"""Request bodies: JSON, YAML and protobuf decoded into an object of an expected kind.

Rules kept here (docs/protocol/negotiation.md, docs/protocol/requests.md):
* Content-Type selects the decoder. An empty one means JSON; an unknown one is 415 with a list of the accepted types.
* Bodies above `MAX_BODY` are 413. Whatever cannot be decoded is 400 in the words of kube-apiserver. A message quotes at most the
  beginning of a body, and nothing of a kind that may begin with a secret.
* The first unknown and duplicate fields are returned with the object; they become warnings or one error by `?fieldValidation=`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mooring.apimachinery.codec.goerrors import JSON_TYPES, unmarshal_error
from mooring.apimachinery.codec.json import MAX_BODY, MAX_REPORTED, body_too_large, decode_json, duplicate_keys
from mooring.apimachinery.codec.protobuf import decode_envelope, decode_message
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.apimachinery.codec.yaml import decode_yaml
from mooring.apimachinery.negotiation import MEDIA_TYPES, Media
from mooring.apimachinery.resource import unexpected_kind, unexpected_options
from mooring.apimachinery.schema import Message, Obj
from mooring.errors import ApiError, BadRequestError, UnsupportedMediaTypeError, quoted

MAX_GVK = 256
"""Characters kept of an apiVersion and of a kind; real ones have fewer than sixty."""
MAX_SUMMARY = 30
"""Bytes of a body that an error quotes when the kind of the body could not be read."""
_SECRET_KINDS = frozenset(("Secret", "TokenReview"))


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """An object that fits its schema, with the unknown and duplicate fields of its body."""

    obj: Obj
    unknown: tuple[str, ...] = ()
    """Paths of fields that the schema does not have."""
    duplicates: tuple[str, ...] = ()
    """Warnings about keys that the body repeats."""


def body_media(content_type: str) -> Media:
    """Return the encoding that a Content-Type names; parameters are ignored. Raises UnsupportedMediaTypeError."""
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


def decode_body(
    body: bytes,
    content_type: str,
    schema: Message,
    *,
    kind: str,
    api_version: str,
) -> DecodedBody:
    """Decode a request body into an object that fits `schema`.

    A body without kind or apiVersion gets `kind` and `api_version`; a body with others is refused. An object whose schema has
    metadata always gets one. Raises BadRequestError, RequestEntityTooLargeError and UnsupportedMediaTypeError.
    """
    group = api_version.rpartition("/")[0]

    def check_kind(body_version: str, body_kind: str) -> None:
        if (body_version, body_kind) == (api_version, kind):
            return
        problem = unexpected_kind(body_version, body_kind, group, kind)
        if problem:
            raise BadRequestError(problem)

    try:
        decoded = _decode(body, content_type, schema, (api_version, kind), check_kind)
    except _UndecodableError as error:
        if error.gvk is None:
            raise BadRequestError(
                f"the object provided is unrecognized (must be of type {kind}): {error} ({_summary(body, kind)})"
            ) from None
        raise BadRequestError(cannot_be_handled(*error.gvk, kind, str(error))) from None
    body_version = decoded.obj["apiVersion"]
    if body_version != api_version:
        raise BadRequestError(
            f"the API version in the data ({body_version}) does not match the expected API version ({api_version})"
        )
    return decoded


def decode_options(body: bytes, content_type: str, schema: Message) -> Obj:
    """Decode the options of a DELETE, which clients send in any version. Raises the same errors as `decode_body`."""

    def check_kind(body_version: str, body_kind: str) -> None:
        if body_kind != "DeleteOptions":
            raise BadRequestError(unexpected_options(body_version, body_kind))

    try:
        return _decode(body, content_type, schema, ("meta.k8s.io/v1", "DeleteOptions"), check_kind).obj
    except _UndecodableError as error:
        raise BadRequestError(str(error)) from None


class _UndecodableError(Exception):
    """A body that is not of the expected kind; `gvk` is None when its kind could not be read."""

    def __init__(self, reason: str, gvk: tuple[str, str] | None = None) -> None:
        super().__init__(reason)
        self.gvk = gvk


def _decode(
    body: bytes,
    content_type: str,
    schema: Message,
    default_gvk: tuple[str, str],
    check_kind: Callable[[str, str], None],
) -> DecodedBody:
    """Decode a body. `default_gvk` is the apiVersion and kind of a body without them; `check_kind` refuses unexpected ones."""
    media = body_media(content_type)
    if len(body) > MAX_BODY:
        raise body_too_large()
    obj: Any
    duplicates: list[str] = []
    raw = b""
    try:
        if media == "protobuf":
            api_version, kind, raw = decode_envelope(body)
            obj = {"apiVersion": api_version, "kind": kind}
        elif media == "json":
            obj = _decode_json_body(body)
            duplicates = duplicate_fields(duplicate_keys(body))
        else:
            obj, duplicates = decode_yaml(_utf8(body))
        obj = {} if obj is None else obj
        gvk = _gvk_of(obj, *default_gvk)
    except BadRequestError as error:
        raise _UndecodableError(error.message) from None
    unknown: list[str] = []
    try:
        # The kind before the fields, which a body of another kind does not have.
        check_kind(*gvk)
        if media == "protobuf":
            obj = decode_message(raw, schema)
        else:
            unknown = unmarshal(obj, schema)
    except BadRequestError as error:
        raise _UndecodableError(error.message, gvk) from None
    # An unknown field is reported once, however often it is there.
    ignored = set(duplicate_fields(unknown))
    duplicates = [text for text in duplicates if text not in ignored]
    return DecodedBody(_with_type_meta(obj, *gvk, schema), tuple(unknown), tuple(duplicates))


def _decode_json_body(body: bytes) -> Any:
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


_TYPE_META_NAMES = {"apiversion": "apiVersion", "kind": "kind"}


def _gvk_of(obj: Any, default_version: str, default_kind: str) -> tuple[str, str]:
    """Return apiVersion and kind of a body, with the defaults for what the body leaves out.

    Go reads these two in any letter case, unlike every other field.
    """
    if not isinstance(obj, dict):
        raise BadRequestError(f"{_NO_KIND}: {unmarshal_error(obj, _TYPE_META)}")
    found = {"apiVersion": "", "kind": ""}
    for key, value in obj.items():
        name = _TYPE_META_NAMES.get(key.lower())
        if name is None or value is None:
            continue
        if not isinstance(value, str):
            json_type = JSON_TYPES.get(type(value), "number")
            raise BadRequestError(
                f"{_NO_KIND}: json: cannot unmarshal {json_type} into Go struct field .{name} of type string"
            )
        found[name] = value
    api_version = found["apiVersion"] or default_version
    if api_version.count("/") > 1:
        raise BadRequestError(f"unexpected GroupVersion string: {api_version[:MAX_GVK]}")
    return api_version[:MAX_GVK], (found["kind"] or default_kind)[:MAX_GVK]


def _summary(body: bytes, kind: str) -> str:
    """Return the beginning of a body for an error message. Bodies that may begin with a secret are not quoted."""
    if not body:
        return "<empty>"
    # The first bytes of a Secret or TokenReview may be a part of the secret.
    if kind in _SECRET_KINDS:
        return "not shown"
    start = body[:MAX_SUMMARY]
    text = start.decode(errors="replace") if body[:1] == b"{" else start.hex()
    return text if len(body) <= MAX_SUMMARY else f"{text} ..."


def cannot_be_handled(api_version: str, body_kind: str, kind: str, reason: str) -> str:
    """Return the message for a body of a known kind that cannot be decoded as an object of `kind`."""
    version = api_version.rpartition("/")[2]
    return f"{body_kind} in version {quoted(version)} cannot be handled as a {kind}: {reason}"


def _with_type_meta(obj: Obj, api_version: str, kind: str, schema: Message) -> Obj:
    """Return the object with kind, apiVersion and (where the schema has it) metadata first."""
    first: Obj = {"kind": kind, "apiVersion": api_version}
    if "metadata" in schema.by_name:
        first["metadata"] = obj.get("metadata", {})
    return first | {key: value for key, value in obj.items() if key not in first}


def unknown_fields(paths: Iterable[str]) -> list[str]:
    """Return a warning for each path of an unknown field."""
    return [f'unknown field "{path}"' for path in paths]


def duplicate_fields(paths: Iterable[str]) -> list[str]:
    """Return a warning for each path of a duplicate field."""
    return [f'duplicate field "{path}"' for path in paths]


def warn_or_refuse(policy: str, found: Sequence[str], strict_error: Callable[[str], ApiError]) -> Sequence[str]:
    """Return the warnings `found`; with the policy Strict raise the error that `strict_error` makes of them.

    `policy` is the value of `fieldValidation`; empty means Warn.
    """
    if policy == "Ignore":
        return ()
    if found and policy == "Strict":
        lines = [text for text in found if text.startswith("line ")]
        others = [text for text in found if not text.startswith("line ")]
        yaml_errors = ["\n  ".join(("yaml: unmarshal errors:", *lines))] if lines else []
        raise strict_error(", ".join((*yaml_errors, *others)))
    return found[:MAX_REPORTED]
