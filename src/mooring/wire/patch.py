"""JSON Patch and JSON merge patch.

Rules kept here:
* Every patch gives a new object that shares nothing with what went in; what went in is untouched, also when the patch fails.
* A patch that cannot be read (not JSON, not a list of operations, not an object, nested too deeply) is 400. A JSON Patch
  that can be read but not carried out (a failed test, a path that is not there) is 422. More operations, or more copied
  bytes, than allowed are 413.
* `test` of a member that is not there against null holds, other than RFC 6902 says: kube-apiserver's library takes it so, and
  clients ask in this way whether a member is absent.
* No message shows a value, of the object or of the patch: either may be a Secret.
* The work is bounded by the size of the patch: operations are counted, and `copy`, the one operation whose effect can be
  larger than itself, is charged for what it copies.
* What comes out is an object that nests no deeper than any request body may.

Source: RFC 6902, RFC 7386; reference/kubernetes.md 7.11.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import jsonpatch
import jsonpointer
import msgspec

from mooring.errors import ApiError, BadRequestError, InvalidError, RequestEntityTooLargeError
from mooring.wire.conform import MAX_DEPTH, depth_exceeds
from mooring.wire.schema import Obj

MAX_OPERATIONS = 10_000
"""Operations of one JSON Patch, as kube-apiserver allows."""
MAX_COPIED = 3 * 1024 * 1024
"""Bytes that all `copy` operations of a patch may copy: a request body's size. Without it each `copy` could double the object."""

T = TypeVar("T")
_decode = msgspec.json.Decoder().decode
_NEEDS = {"add": "value", "replace": "value", "test": "value", "move": "from", "copy": "from", "remove": "path"}
_REJECTED = "the server rejected our request due to an error in our request"


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
    """`obj` after all `operations` of RFC 6902, or none: raises BadRequestError, InvalidError, RequestEntityTooLargeError."""
    listed = read_patch(operations)
    if not isinstance(listed, list):
        raise BadRequestError("error decoding patch: a JSON patch is a list of operations")
    if len(listed) > MAX_OPERATIONS:
        raise RequestEntityTooLargeError(
            f"Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(listed)}"
        )
    for number, operation in enumerate(listed):
        _check(operation, number)
    result: Any = copied(obj)
    budget = MAX_COPIED
    for number, operation in enumerate(listed):
        try:
            if operation["op"] == "copy":
                budget -= _size(result, operation["from"])
                if budget < 0:
                    raise RequestEntityTooLargeError(
                        f"Request entity too large: a JSON patch may copy at most {MAX_COPIED} bytes"
                    )
            if operation["op"] == "test" and operation["value"] is None and _absent(result, operation["path"]):
                continue
            result = jsonpatch.JsonPatch([operation]).apply(result, in_place=True)
        except jsonpatch.JsonPatchTestFailed:
            raise _rejected(operation, number, "the test failed") from None
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError):
            raise _rejected(operation, number, "its path does not fit the object") from None
        except RecursionError:
            raise _rejected(operation, number, "it nests the object too deeply") from None
    if not isinstance(result, dict) or depth_exceeds(result):
        raise InvalidError(f"{_REJECTED}: the patch must leave an object of at most {MAX_DEPTH} levels")
    return result


def _check(operation: Any, number: int) -> None:
    """The shape of one operation (RFC 6902 section 4)."""
    op = operation.get("op") if isinstance(operation, dict) else None
    if not isinstance(op, str) or op not in _NEEDS:
        raise BadRequestError(f"error decoding patch: operation {number} has no op that JSON patch knows")
    if _NEEDS[op] not in operation:
        raise BadRequestError(f'error decoding patch: operation {number} ({op}) needs "{_NEEDS[op]}"')
    for pointer in ("path", "from") if _NEEDS[op] == "from" else ("path",):
        path = operation.get(pointer)
        if not isinstance(path, str) or (path and path[0] != "/"):
            raise BadRequestError(f'error decoding patch: "{pointer}" of operation {number} is not a JSON pointer')


def _absent(document: Any, pointer: str) -> bool:
    """Whether an object is where the member would be, and the member is not."""
    holder, name = jsonpointer.JsonPointer(pointer).to_last(document)
    return isinstance(holder, dict) and name is not None and name not in holder


def _size(document: Any, pointer: str) -> int:
    return len(msgspec.json.encode(jsonpointer.JsonPointer(pointer).resolve(document)))


def _rejected(operation: Obj, number: int, why: str) -> ApiError:
    return InvalidError(f"{_REJECTED}: operation {number} ({operation['op']} {operation['path'][:256]}): {why}")


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
