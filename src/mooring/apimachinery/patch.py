"""The three kinds of patches: merge patch, JSON patch and strategic merge patch."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NoReturn

import msgspec

from mooring.apimachinery.codec.goerrors import unmarshal_error
from mooring.apimachinery.codec.json import MAX_DEPTH, deep_copy, depth_exceeds
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Type
from mooring.errors import BadRequestError, PatchRejectedError, RequestEntityTooLargeError

# Patch documents: decoding the body of a patch, and refusing one that nests too deeply.


def read_patch(patch: Any) -> Any:
    """Return the JSON value of a patch, which is bytes or decoded already. Raises BadRequestError when it nests too deeply."""
    if isinstance(patch, bytes):
        try:
            patch = msgspec.json.decode(patch)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadRequestError("error decoding patch: it is not JSON") from None
    if depth_exceeds(patch):
        raise BadRequestError(f"error decoding patch: exceeded max depth of {MAX_DEPTH}")
    return patch


def read_object_patch(patch: Any) -> Obj:
    """Return the object of a merge patch or strategic merge patch, with the checks of `read_patch`."""
    patch = read_patch(patch)
    if not isinstance(patch, dict):
        raise BadRequestError("error decoding patch: it must be a JSON object")
    return patch


# JSON merge patch (RFC 7386).
#
# Rules kept here:
# * A patch gives a new object that shares nothing with its inputs; the inputs are unchanged, also when the patch fails.
# * Members keep their place in the object, so that a patch changes as few of the stored bytes as possible.
# * A patch that is not a JSON object, or that nests too deeply, is 400.
#
# Source: RFC 7386; docs/protocol/patches.md.


def merge_patch(obj: Obj, patch: bytes | Obj) -> Obj:
    """Return `obj` after `patch`: null removes a member, objects merge, every other value replaces. Raises BadRequestError."""
    return _merge_object(obj, read_object_patch(patch))


def _merge_object(target: Any, patch: Obj) -> Obj:
    before: Obj = target if isinstance(target, dict) else {}
    result: Obj = {}
    for key, value in before.items():
        if key not in patch:
            result[key] = deep_copy(value)
        elif patch[key] is not None:
            result[key] = _merge_value(value, patch[key])
    for key, value in patch.items():
        if key not in before and value is not None:
            result[key] = _merge_value(None, value)
    return result


def _merge_value(before: Any, value: Any) -> Any:
    return _merge_object(before, value) if isinstance(value, dict) else deep_copy(value)


# JSON Patch (RFC 6902), with the departures of the library that kube-apiserver uses.
#
# Rules kept here (gopkg.in/evanphx/json-patch.v4):
# * `replace` of a missing member adds it. `copy` of a missing member and `add` without a value give null. `test` of a missing
#   member succeeds against null and against no value. Text before the first slash of a path is ignored. Indices may be negative,
#   signed, or have leading zeros.
# * A patch that is not a list of objects is 400. Every other mistake, in any operation, is 422 without detail: object and patch
#   may both hold secrets. More operations than allowed are 413.
# * The work is bounded by the size of the patch: operations are counted, `copy` is charged for the bytes that it copies, and
#   insertion into a list and removal from one are charged for the items that they move.
# * The result shares nothing with the inputs, and the inputs are unchanged, also when the patch fails.

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
    except RecursionError:
        # `move` can nest the object deeper than any request body.
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
                # Removed first (RFC 6902 4.4): the path of the target is that of the document without it.
                self._remove(source)
                self._add(path, moved)
            case "copy":
                encoded = msgspec.json.encode(_null_if_absent(_get(*self._find(_source_path(operation)))))
                self._copied_bytes += len(encoded)
                # Before it is decoded and added: each `copy` could double the object.
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


# Strategic merge patch: a merge patch that merges lists by the keys of the schema.
#
# Rules kept here:
# * Objects merge member by member and null removes a member. Fields that the schema does not have merge as plain JSON.
# * A list whose field has `patch="merge"` merges: elements with the same `patch_key` merge in place, others are added. Without a
#   key the list is a set of primitives. Every other list is replaced; a directive in it is an unknown field of its element.
#   Merging the same patch twice gives the same result.
# * Order of a merged list: elements in the patch (or in `$setElementOrder/<field>`) are in the order given there, the others keep
#   theirs, and both are interleaved as in kube-apiserver: an element outside the patch comes before one of the patch only if it
#   did so already. So a new element comes before the remaining elements outside the patch.
# * `$patch: replace` in an object: the rest of the patch replaces it; in a list: the other elements replace the list.
#   `$patch: delete` in an object empties it; in a list element it removes the elements of the same key. `$patch: merge` is the
#   default.
# * `$deleteFromPrimitiveList/<field>` removes values. `$retainKeys` removes every member that it does not list, and the patch
#   must not set an unlisted one. `$setElementOrder` must contain the elements that the patch adds, in the same order.
# * Elements of a patch with the same key merge one after another, within a budget of copied bytes. Beyond it the patch is 422.
# * The result has no nulls, and no directives but those unknown fields. Misused directives are 400, and no message quotes a
#   value.
# * The result shares nothing with the arguments, which are not changed.
#
# Source: docs/protocol/patches.md#strategic-merge; the strategic merge patch design of the Kubernetes API conventions.

DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
DELETE_FROM = "$deleteFromPrimitiveList/"
SET_ORDER = "$setElementOrder/"

MAX_REPEATED = 64 * 1024
"""Bytes of elements that a patch may merge again, some 25 ms of work: a small patch does it on the event loop. Clients send one
element for each key."""

_MERGE, _REPLACE, _DELETE = "merge", "replace", "delete"


def strategic_merge_patch(obj: Obj, patch: bytes | Obj, schema: Message) -> Obj:
    """Return `obj` after `patch`, with the merge keys of `schema`. Raises BadRequestError, PatchRejectedError."""
    return _merge_strategic_object(obj, read_object_patch(patch), schema, _Repeats())


class _Repeats:
    """Counts the bytes of elements that one patch merges again and again: each merge copies the element as it is by then."""

    def __init__(self) -> None:
        self._bytes = 0

    def charge(self, element: Obj) -> None:
        """Count one more merge of `element`. Raises PatchRejectedError."""
        self._bytes += len(msgspec.json.encode(element))
        if self._bytes > MAX_REPEATED:
            raise PatchRejectedError


def _merge_strategic_object(original: Obj, patch: Obj, schema: Type | None, repeats: _Repeats) -> Obj:
    directive = _directive(patch)
    if directive == _DELETE:
        return {}
    if directive == _REPLACE:
        return {
            key: _unmerged(value, None) for key, value in patch.items() if value is not None and not _is_directive(key)
        }
    members = {key: value for key, value in patch.items() if not _is_directive(key)}
    orders, removals = _list_directives(patch, SET_ORDER), _list_directives(patch, DELETE_FROM)
    kept = original
    if RETAIN_KEYS in patch:
        kept = _retain_keys(original, members, patch[RETAIN_KEYS])

    result: Obj = {}
    for key in (*kept, *(key for key in (*members, *orders) if key not in kept)):
        before = kept.get(key)
        if key in members and members[key] is None:
            continue
        field = _declared_field(schema, key)
        if key in removals and isinstance(before, list):
            deleted = {_identity(value) for value in removals[key]}
            before = [value for value in before if _identity(value) not in deleted]
        order = orders.get(key)
        if key in members:
            after = _merge_strategic_value(before, members[key], field, order, repeats)
        elif key not in kept:
            continue
        else:
            after = deep_copy(before)
        if order is not None and isinstance(after, list):
            previous = before if isinstance(before, list) else []
            after = _order_elements(after, order, previous, field.patch_key if field else "")
        result[key] = after
    return result


def _is_directive(key: str) -> bool:
    return key in (DIRECTIVE, RETAIN_KEYS) or key.startswith((SET_ORDER, DELETE_FROM))


def _directive(patch: Obj) -> str:
    directive = patch.get(DIRECTIVE, _MERGE)
    if directive not in (_MERGE, _REPLACE, _DELETE):
        raise BadRequestError(f"unknown patch type in {DIRECTIVE}: it is merge, replace or delete")
    return str(directive)


def _list_directives(patch: Obj, prefix: str) -> dict[str, list[Any]]:
    """Return field name → list for the directives whose name contains the field."""
    found = {key[len(prefix) :]: value for key, value in patch.items() if key.startswith(prefix)}
    for name, value in found.items():
        if not isinstance(value, list):
            raise BadRequestError(f"invalid patch: {prefix}{name} must be a list")
    return found


def _retain_keys(original: Obj, members: Obj, keys: Any) -> Obj:
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BadRequestError("invalid patch format of retainKeys")
    retained = set(keys)
    if any(value is not None and key not in retained for key, value in members.items()):
        # kube-apiserver does not report the reason "patch content doesn't match retainKeys list".
        raise PatchRejectedError
    return {key: value for key, value in original.items() if key in retained}


def _declared_field(schema: Type | None, key: str) -> Field | None:
    """Return the declaration of one member; None for an unknown one."""
    if isinstance(schema, Message):
        return schema.by_name.get(key)
    return Field(key, 0, schema.value) if isinstance(schema, MapOf) else None


def _merge_strategic_value(
    before: Any, value: Any, field: Field | None, order: list[Any] | None, repeats: _Repeats
) -> Any:
    if isinstance(value, dict):
        is_kept = isinstance(before, dict) and not (field is not None and field.patch == "replace")
        return _merge_strategic_object(before if is_kept else {}, value, field.type if field else None, repeats)
    if isinstance(value, list):
        if field is not None and field.patch == "merge" and isinstance(field.type, ListOf):
            return _merge_list(
                before if isinstance(before, list) else [], value, field, field.type.item, order, repeats
            )
        return _unmerged(value, field.type if field else None)
    return value


def _unmerged(value: Any, schema: Type | None) -> Any:
    """Return a copy of patch content that replaces what was there, without nulls in objects. A directive has no meaning there: it
    stays where the schema has fields, for which it is an unknown one."""
    if isinstance(value, dict):
        is_known = isinstance(schema, Message)
        members = {
            key: item for key, item in value.items() if item is not None and (is_known or not _is_directive(key))
        }
        fields = {key: _declared_field(schema, key) for key in members}
        return {key: _unmerged(item, field.type if (field := fields[key]) else None) for key, item in members.items()}
    if isinstance(value, list):
        return [_unmerged(item, schema.item if isinstance(schema, ListOf) else None) for item in value]
    return value


def _merge_list(
    before: list[Any], patch: list[Any], field: Field, item: Type, order: list[Any] | None, repeats: _Repeats
) -> list[Any]:
    """Merge a list: primitives as a set, objects by the key of the field."""
    if not field.patch_key:
        if any(isinstance(value, dict | list) for value in patch):
            raise BadRequestError(f"invalid patch: {field.name} is a list of primitives")
        _check_order([_identity(value) for value in patch], [_identity(value) for value in order or ()], field, order)
        merged = list({_identity(value): value for value in (*before, *patch)}.values())
        return _order_elements(merged, patch, before, "")

    key = field.patch_key
    wanted: list[Obj] = []
    deleted: set[Hashable] = set()
    replace = False
    for element in patch:
        if not isinstance(element, dict):
            raise BadRequestError(f"invalid patch: {field.name} is a list of objects")
        directive = _directive(element)
        if directive == _REPLACE:
            replace = True
            continue
        if key not in element:
            raise BadRequestError(
                f"invalid patch: an element of {field.name} does not contain declared merge key: {key}"
            )
        if directive == _DELETE:
            deleted.add(_identity(element[key]))
        else:
            wanted.append(element)
    names = [_identity(element[key]) for element in wanted]
    _check_order(names, [_element_identity(element, key) for element in order or ()], field, order)
    if replace:
        return [_merge_strategic_object({}, element, item, repeats) for element in wanted]

    left = [element for element in before if _element_identity(element, key) not in deleted]
    merged = [deep_copy(element) for element in left]
    place = {_element_identity(element, key): index for index, element in reversed(list(enumerate(merged)))}
    met: set[Hashable] = set()
    for name, element in zip(names, wanted, strict=True):
        if name in met:
            repeats.charge(merged[place[name]])
        met.add(name)
        if name in place:
            merged[place[name]] = _merge_strategic_object(merged[place[name]], element, item, repeats)
        else:
            place[name] = len(merged)
            merged.append(_merge_strategic_object({}, element, item, repeats))
    return _order_elements(merged, wanted, left, key)


def _check_order(names: Sequence[Hashable], ordered: Sequence[Hashable], field: Field, order: list[Any] | None) -> None:
    """Raise BadRequestError unless `$setElementOrder` contains the elements of the patch in their order."""
    if order is None:
        return
    rest = iter(ordered)
    if not all(name in rest for name in names):
        raise BadRequestError(
            f"invalid patch: the order in the patch of {field.name} does not match its {SET_ORDER} list"
        )


def _identity(value: Any) -> Hashable:
    """Return a value that is equal for equal JSON primitives only: true is not 1. Objects are equal to objects, lists to lists."""
    return (type(value).__name__, value if isinstance(value, str | int | float | bool) else None)


def _element_identity(element: Any, key: str) -> Hashable:
    """Return the identity of a list element: the primitive itself, or the member `key` of an object. In a keyed list a primitive
    has none."""
    if not key:
        return _identity(element)
    return _identity(element.get(key)) if isinstance(element, dict) else ("", None)


def _order_elements(merged: list[Any], named: Iterable[Any], before: Iterable[Any], key: str) -> list[Any]:
    """Return `merged` with the elements of `named` in that order, interleaved with the others in the order of `before`."""
    wanted = _positions(named, key)
    stood = _positions(before, key)
    first = sorted(
        (item for item in merged if _element_identity(item, key) in wanted),
        key=lambda item: wanted[_element_identity(item, key)],
    )
    others = [item for item in merged if _element_identity(item, key) not in wanted]
    interleaved: list[Any] = []
    left = 0
    for item in first:
        place = stood.get(_element_identity(item, key), -1)
        while left < len(others) and stood.get(_element_identity(others[left], key), len(stood)) < place:
            interleaved.append(others[left])
            left += 1
        interleaved.append(item)
    return interleaved + others[left:]


def _positions(items: Iterable[Any], key: str) -> dict[Hashable, int]:
    places: dict[Hashable, int] = {}
    for index, item in enumerate(items):
        places.setdefault(_element_identity(item, key), index)
    return places
