"""JSON Patch and JSON merge patch.

Rules kept here:
* Every patch gives a new object that shares nothing with what went in; what went in is untouched, also when the patch fails.
* A patch that cannot be read (not JSON, not an object, nested too deeply) is 400.
* JSON Patch itself is `mooring.apimachinery.patch.json`.
* What comes out is an object that nests no deeper than any request body may.

Source: RFC 7386; docs/protocol/patches.md.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from mooring.apimachinery.codec.decode import MAX_DEPTH, depth_exceeds
from mooring.apimachinery.patch.json import apply_operations
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError

T = TypeVar("T")
_decode = msgspec.json.Decoder().decode


def copied(value: T) -> T:
    """A deep copy of JSON. Through its text is several times faster than by hand or by copy.deepcopy."""
    return cast("T", _decode(msgspec.json.encode(value)))


def read_patch(patch: Any) -> Any:
    """The JSON of a patch given as bytes; anything else must be JSON already. Refuses what nests too deeply (400)."""
    if isinstance(patch, bytes):
        try:
            patch = msgspec.json.decode(patch)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadRequestError("error decoding patch: it is not JSON") from None
    if depth_exceeds(patch):
        raise BadRequestError(f"error decoding patch: exceeded max depth of {MAX_DEPTH}")
    return patch


def read_object_patch(patch: Any) -> Obj:
    """As `read_patch`, for the patches that are an object themselves."""
    patch = read_patch(patch)
    if not isinstance(patch, dict):
        raise BadRequestError("error decoding patch: it must be a JSON object")
    return patch


def json_patch(obj: Obj, operations: bytes | list[Any]) -> Obj:
    """`obj` after all `operations` of RFC 6902, or none: raises BadRequestError, PatchRejectedError, RequestEntityTooLargeError."""
    patched: Obj = apply_operations(copied(obj), read_patch(operations))
    return patched


def merge_patch(obj: Obj, patch: bytes | Obj) -> Obj:
    """`obj` after a merge patch of RFC 7386: null removes, objects merge, everything else replaces. BadRequestError."""
    return _merged(obj, read_object_patch(patch))


def _merged(target: Any, patch: Obj) -> Obj:
    """Members keep their place in the object: a patch changes no more of the bytes than it says."""
    before: Obj = target if isinstance(target, dict) else {}
    result: Obj = {}
    for key, value in before.items():
        if key not in patch:
            result[key] = copied(value)
        elif patch[key] is not None:
            result[key] = _member(value, patch[key])
    for key, value in patch.items():
        if key not in before and value is not None:
            result[key] = _member(None, value)
    return result


def _member(before: Any, value: Any) -> Any:
    return _merged(before, value) if isinstance(value, dict) else copied(value)
