"""Strategic merge patch: a merge patch that merges lists by the keys of the schema.

Rules kept here:
* Objects merge member by member and null removes a member. Fields that the schema does not have merge as plain JSON.
* A list whose field has `patch="merge"` merges: elements with the same `patch_key` merge in place, others are added. Without a key
  the list is a set of primitives. Every other list is replaced; a directive in it is an unknown field of its element. Merging the
  same patch twice gives the same result.
* Order of a merged list: elements in the patch (or in `$setElementOrder/<field>`) are in the order given there, the others keep
  theirs, and both are interleaved as in kube-apiserver: an element outside the patch comes before one of the patch only if it did
  so already. So a new element comes before the remaining elements outside the patch.
* `$patch: replace` in an object: the rest of the patch replaces it; in a list: the other elements replace the list.
  `$patch: delete` in an object empties it; in a list element it removes the elements of the same key. `$patch: merge` is the
  default.
* `$deleteFromPrimitiveList/<field>` removes values. `$retainKeys` removes every member that it does not list, and the patch must
  not set an unlisted one. `$setElementOrder` must contain the elements that the patch adds, in the same order.
* Elements of a patch with the same key merge one after another, within a budget of copied bytes. Beyond it the patch is 422.
* The result has no nulls, and no directives but those unknown fields. Misused directives are 400, and no message quotes a value.
* The result shares nothing with the arguments, which are not changed.

Source: docs/protocol/patches.md#strategic-merge; the strategic merge patch design of the Kubernetes API conventions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import msgspec

from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.patch.document import read_object_patch
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Type
from mooring.errors import BadRequestError, PatchRejectedError

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
    return _merge_object(obj, read_object_patch(patch), schema, _Repeats())


class _Repeats:
    """Counts the bytes of elements that one patch merges again and again: each merge copies the element as it is by then."""

    def __init__(self) -> None:
        self._bytes = 0

    def charge(self, element: Obj) -> None:
        """Count one more merge of `element`. Raises PatchRejectedError."""
        self._bytes += len(msgspec.json.encode(element))
        if self._bytes > MAX_REPEATED:
            raise PatchRejectedError


def _merge_object(original: Obj, patch: Obj, schema: Type | None, repeats: _Repeats) -> Obj:
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
            after = _merge_value(before, members[key], field, order, repeats)
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
        raise PatchRejectedError  # kube-apiserver does not report the reason "patch content doesn't match retainKeys list"
    return {key: value for key, value in original.items() if key in retained}


def _declared_field(schema: Type | None, key: str) -> Field | None:
    """Return the declaration of one member; None for an unknown one."""
    if isinstance(schema, Message):
        return schema.by_name.get(key)
    return Field(key, 0, schema.value) if isinstance(schema, MapOf) else None


def _merge_value(before: Any, value: Any, field: Field | None, order: list[Any] | None, repeats: _Repeats) -> Any:
    if isinstance(value, dict):
        is_kept = isinstance(before, dict) and not (field is not None and field.patch == "replace")
        return _merge_object(before if is_kept else {}, value, field.type if field else None, repeats)
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
        return [_merge_object({}, element, item, repeats) for element in wanted]

    left = [element for element in before if _element_identity(element, key) not in deleted]
    merged = [deep_copy(element) for element in left]
    place = {_element_identity(element, key): index for index, element in reversed(list(enumerate(merged)))}
    met: set[Hashable] = set()
    for name, element in zip(names, wanted, strict=True):
        if name in met:
            repeats.charge(merged[place[name]])
        met.add(name)
        if name in place:
            merged[place[name]] = _merge_object(merged[place[name]], element, item, repeats)
        else:
            place[name] = len(merged)
            merged.append(_merge_object({}, element, item, repeats))
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
