"""JSON Patch (RFC 6902), with the departures of the library that kube-apiserver uses.

Rules kept here (gopkg.in/evanphx/json-patch.v4):
* `replace` of a missing member adds it. `copy` of a missing member and `add` without a value give null. `test` of a missing member
  succeeds against null and against no value. Text before the first slash of a path is ignored. Indices may be negative, signed,
  or have leading zeros.
* A patch that is not a list of objects is 400. Every other mistake, in any operation, is 422 without detail: object and patch may
  both hold secrets. More operations than allowed are 413.
* The work is bounded by the size of the patch: operations are counted, `copy` is charged for the bytes that it copies, and
  insertion into a list and removal from one are charged for the items that they move.
* The result shares nothing with the inputs, and the inputs are unchanged, also when the patch fails.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from mooring.apimachinery.codec.goerrors import unmarshal_error
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.codec.limits import MAX_DEPTH, depth_exceeds
from mooring.apimachinery.patch.document import read_patch
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError, PatchRejectedError, RequestEntityTooLargeError

MAX_OPERATIONS = 10_000
"""Operations of one JSON Patch, as kube-apiserver allows."""
MAX_COPIED = 3 * 1024 * 1024
"""Bytes that all `copy` operations of a patch may copy: a request body's size. Without it each `copy` could double the object."""
MAX_MOVED = 32 * 1024 * 1024
"""List items that all operations of a patch may move, some 30 ms of work: inserting at the front moves all that follow."""
_ABSENT: Any = object()


def work_size(operations: Any, size: int) -> int:
    """Return the bytes about which the work of a patch of `size` bytes may be: `copy` makes a large object of a small one."""
    copies = isinstance(operations, list) and any(
        isinstance(one, dict) and one.get("op") == "copy" for one in operations
    )
    return size + MAX_COPIED if copies else size


def json_patch(obj: Obj, operations: bytes | list[Any]) -> Obj:
    """Return `obj` after all `operations`. Raises BadRequestError, PatchRejectedError, RequestEntityTooLargeError."""
    patched: Obj = apply_operations(deep_copy(obj), read_patch(operations))
    return patched


def apply_operations(document: Any, operations: Any) -> Any:
    """Apply `operations` to `document`, which may be changed in place, and return the result.

    Raises BadRequestError, PatchRejectedError, RequestEntityTooLargeError.
    """
    if not isinstance(operations, list):
        raise BadRequestError(f"error decoding patch: {unmarshal_error(operations, '[]handlers.jsonPatchOp')}")
    for operation in operations:
        if not isinstance(operation, dict | None):
            raise BadRequestError(f"error decoding patch: {unmarshal_error(operation, 'handlers.jsonPatchOp')}")
    if len(operations) > MAX_OPERATIONS:
        raise RequestEntityTooLargeError(
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{MAX_OPERATIONS}, got {len(operations)}"
        )
    patch = _Patch(document)
    try:
        for operation in operations:
            patch.apply(operation or {})
    except RecursionError:  # `move` can nest the object deeper than any request body
        _reject()
    if not isinstance(patch.document, dict) or depth_exceeds(patch.document, MAX_DEPTH):
        _reject()
    return patch.document


def _reject() -> NoReturn:
    raise PatchRejectedError()


class _Patch:
    """Applies operations to one document and counts their work."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self._copied_bytes = 0
        self._moved_items = 0

    def apply(self, operation: dict[str, Any]) -> None:
        path, value = operation.get("path"), operation.get("value", _ABSENT)
        if not isinstance(path, str):
            _reject()
        match operation.get("op"):
            case "add":
                self._add(path, None if value is _ABSENT else _copy_value(value))
            case "remove":
                self._remove(path)
            case "replace":
                self._replace(path, None if value is _ABSENT else _copy_value(value))
            case "test":
                self._test(path, None if value is _ABSENT else value)
            case "move":
                source = _source_path(operation)
                moved = _get(*self._find(source))
                self._remove(source)
                self._add(path, moved)
            case "copy":
                encoded = msgspec.json.encode(_null_if_absent(_get(*self._find(_source_path(operation)))))
                self._copied_bytes += len(encoded)
                if self._copied_bytes > MAX_COPIED:
                    _reject()
                self._add(path, msgspec.json.decode(encoded))
            case _:
                _reject()

    def _find(self, path: str) -> tuple[Any, str]:
        """Return the object or list that contains the target of `path`, and the last part of the path."""
        parts = path.split("/")
        if len(parts) < 2:
            _reject()
        parent = self.document
        for part in parts[1:-1]:
            parent = _get(parent, _unescape(part))
        if not isinstance(parent, dict | list):
            _reject()
        return parent, _unescape(parts[-1])

    def _add(self, path: str, value: Any) -> None:
        parent, key = self._find(path)
        value = _null_if_absent(value)
        if isinstance(parent, dict):
            parent[key] = value
        elif key == "-":
            parent.append(value)
        else:
            index = _index(key, len(parent) + 1)
            self._charge_moves(len(parent) - index)
            parent.insert(index, value)

    def _remove(self, path: str) -> None:
        parent, key = self._find(path)
        if isinstance(parent, dict):
            if parent.pop(key, _ABSENT) is _ABSENT:
                _reject()
        else:
            index = _index(key, len(parent))
            self._charge_moves(len(parent) - index)
            del parent[index]

    def _replace(self, path: str, value: Any) -> None:
        if not path:
            self.document = value
            return
        parent, key = self._find(path)
        if isinstance(parent, dict):
            parent[key] = value
        else:
            parent[_index(key, len(parent))] = value

    def _test(self, path: str, value: Any) -> None:
        present = _null_if_absent(_get(*self._find(path))) if path else self.document
        # 1, 1.0 and true are equal in Python. The encodings tell them apart; equal values are as large as the patch's own, so the
        # encodings cost no more than the patch does.
        if present != value or msgspec.json.encode(present, order="sorted") != msgspec.json.encode(
            value, order="sorted"
        ):
            _reject()

    def _charge_moves(self, items: int) -> None:
        self._moved_items += items
        if self._moved_items > MAX_MOVED:
            _reject()


def _copy_value(value: Any) -> Any:
    """Return a copy: later operations may change the value, and the same patch is applied again after a conflict."""
    return deep_copy(value) if isinstance(value, dict | list) else value


def _source_path(operation: dict[str, Any]) -> str:
    source = operation.get("from")
    if not isinstance(source, str):
        _reject()
    return source


def _null_if_absent(value: Any) -> Any:
    return None if value is _ABSENT else value


def _get(parent: Any, key: str) -> Any:
    """Return a member of an object, or `_ABSENT`; return an item of a list, or reject the patch."""
    if isinstance(parent, dict):
        return parent.get(key, _ABSENT)
    if isinstance(parent, list):
        return parent[_index(key, len(parent))]
    _reject()


def _index(key: str, size: int) -> int:
    """Return an index below `size` as Go's Atoi reads it; negative ones count from the end."""
    digits = key[1:] if key[:1] in ("-", "+") else key
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        _reject()
    index = int(key)
    if not -size <= index < size:
        _reject()
    return index + size if index < 0 else index


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part
