"""JSON Patch (RFC 6902), with the departures of the library that kube-apiserver uses.

Rules kept here (gopkg.in/evanphx/json-patch.v4):
* `replace` of a missing member adds it, `copy` of one and `add` without a value give null, `test` of one holds against null and
  against no value. Text before the first slash of a path does not count. Indices may be negative, signed, or have leading zeros.
* A patch that is no list of objects is 400. Whatever else is wrong, in any operation, is 422 and says no more: object and patch
  may both hold secrets. More operations than allowed are 413.
* The work is bounded by the size of the patch: operations are counted, `copy` is charged for the bytes it copies, and inserting
  into a list or removing from one for the items that it moves.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from mooring.apimachinery.codec.decode import MAX_DEPTH, depth_exceeds
from mooring.apimachinery.codec.goerrors import unmarshal_error
from mooring.errors import BadRequestError, PatchRejectedError, RequestEntityTooLargeError

MAX_OPERATIONS = 10_000
"""Operations of one JSON Patch, as kube-apiserver allows."""
MAX_COPIED = 3 * 1024 * 1024
"""Bytes that all `copy` operations of a patch may copy: a request body's size. Without it each `copy` could double the object."""
MAX_MOVED = 32 * 1024 * 1024
"""List items that all operations of a patch may move, some 30 ms of work: inserting at the front moves all that follow."""
_ABSENT: Any = object()


def apply_operations(document: Any, operations: Any) -> Any:
    """Carry out `operations` on `document`, which belongs to the caller and may be changed; return the result.

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
    except RecursionError:  # moves nest an object deeper than any body may
        _reject()
    if not isinstance(patch.document, dict) or depth_exceeds(patch.document, MAX_DEPTH):
        _reject()
    return patch.document


def _reject() -> NoReturn:
    raise PatchRejectedError()


class _Patch:
    """One patch at work."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self._copied = 0
        self._moved = 0

    def apply(self, operation: dict[str, Any]) -> None:
        path, value = operation.get("path"), operation.get("value", _ABSENT)
        if not isinstance(path, str):
            _reject()
        match operation.get("op"):
            case "add":
                self._add(path, None if value is _ABSENT else _own(value))
            case "remove":
                self._remove(path)
            case "replace":
                self._replace(path, None if value is _ABSENT else _own(value))
            case "test":
                self._test(path, None if value is _ABSENT else value)
            case "move":
                source = _source(operation)
                moved = _get(*self._find(source))
                self._remove(source)
                self._add(path, moved)
            case "copy":
                copied = msgspec.json.encode(_present(_get(*self._find(_source(operation)))))
                self._copied += len(copied)
                if self._copied > MAX_COPIED:
                    _reject()
                self._add(path, msgspec.json.decode(copied))
            case _:
                _reject()

    def _find(self, path: str) -> tuple[Any, str]:
        """Return the object or list that holds what `path` names, and the last part of the path."""
        parts = path.split("/")
        if len(parts) < 2:
            _reject()
        holder = self.document
        for part in parts[1:-1]:
            holder = _get(holder, _unescaped(part))
        if not isinstance(holder, dict | list):
            _reject()
        return holder, _unescaped(parts[-1])

    def _add(self, path: str, value: Any) -> None:
        holder, key = self._find(path)
        value = _present(value)
        if isinstance(holder, dict):
            holder[key] = value
        elif key == "-":
            holder.append(value)
        else:
            index = _index(key, len(holder) + 1)
            self._charge(len(holder) - index)
            holder.insert(index, value)

    def _remove(self, path: str) -> None:
        holder, key = self._find(path)
        if isinstance(holder, dict):
            if holder.pop(key, _ABSENT) is _ABSENT:
                _reject()
        else:
            index = _index(key, len(holder))
            self._charge(len(holder) - index)
            del holder[index]

    def _replace(self, path: str, value: Any) -> None:
        if not path:
            self.document = value
            return
        holder, key = self._find(path)
        if isinstance(holder, dict):
            holder[key] = value
        else:
            holder[_index(key, len(holder))] = value

    def _test(self, path: str, value: Any) -> None:
        present = _present(_get(*self._find(path))) if path else self.document
        # equal values are as large as the patch's own, so that telling 1, 1.0 and true apart costs no more than it does
        if present != value or msgspec.json.encode(present, order="sorted") != msgspec.json.encode(
            value, order="sorted"
        ):
            _reject()

    def _charge(self, items: int) -> None:
        self._moved += items
        if self._moved > MAX_MOVED:
            _reject()


def _own(value: Any) -> Any:
    """Return a copy: later operations may change it, and the patch is applied again to a newer state."""
    return msgspec.json.decode(msgspec.json.encode(value)) if isinstance(value, dict | list) else value


def _source(operation: dict[str, Any]) -> str:
    source = operation.get("from")
    if not isinstance(source, str):
        _reject()
    return source


def _present(value: Any) -> Any:
    return None if value is _ABSENT else value


def _get(holder: Any, key: str) -> Any:
    """Return a member, or the mark of absence; items of a list must be there."""
    if isinstance(holder, dict):
        return holder.get(key, _ABSENT)
    if isinstance(holder, list):
        return holder[_index(key, len(holder))]
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


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part
