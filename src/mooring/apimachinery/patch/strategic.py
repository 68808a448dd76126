"""Strategic merge patch: a merge patch that knows from the schema which lists merge, and by which key.

Rules kept here:
* Objects merge member by member, null removes, and what the schema does not know merges as plain JSON (lists replace).
* A list whose field says `patch="merge"` merges: elements with the same `patch_key` merge in place, others are added; without
  a key it is a set of primitives. Every other list is replaced, and an element that is a directive is one without members there.
  Merging twice changes nothing more.
* The order of a merged list: elements named by the patch (or by `$setElementOrder/<field>`) stand in the order given there,
  the others keep theirs, and the two are woven as kube-apiserver weaves them: an unnamed element goes before a named one only
  if it stood before it already. So an element that is new comes before the unnamed ones that are left.
* `$patch: replace` in an object: the rest of the patch replaces it; in a list: the list is replaced by the other elements.
  `$patch: delete` in an object empties it; in a list element: elements with its key go. `$patch: merge` is what happens anyway.
* `$deleteFromPrimitiveList/<field>` removes values; `$retainKeys` drops every member it does not list, and the patch must not
  set one that it does not list. What `$setElementOrder` orders must contain what the patch adds, in the same order.
* Directives and nulls never reach the result. Misused directives are 400, and no message shows a value.
* The result shares nothing with what went in, and what went in is untouched.

Source: docs/protocol/patches.md#strategic-merge; the strategic merge patch design of the Kubernetes API conventions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.patch.document import read_object_patch
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Type
from mooring.errors import BadRequestError, PatchRejectedError

DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
DELETE_FROM = "$deleteFromPrimitiveList/"
SET_ORDER = "$setElementOrder/"

_MERGE, _REPLACE, _DELETE = "merge", "replace", "delete"


def strategic_merge_patch(obj: Obj, patch: bytes | Obj, schema: Message) -> Obj:
    """`obj` after `patch`, with the merge keys of `schema`. Raises BadRequestError."""
    return _object(obj, read_object_patch(patch), schema)


def _object(original: Obj, patch: Obj, schema: Type | None) -> Obj:
    directive = _directive(patch)
    if directive == _DELETE:
        return {}
    if directive == _REPLACE:
        return {key: _plain(value) for key, value in patch.items() if value is not None and not _is_directive(key)}
    members = {key: value for key, value in patch.items() if not _is_directive(key)}
    orders, removals = _of(patch, SET_ORDER), _of(patch, DELETE_FROM)
    kept = original
    if RETAIN_KEYS in patch:
        kept = _retained(original, members, patch[RETAIN_KEYS])

    result: Obj = {}
    for key in (*kept, *(key for key in (*members, *orders) if key not in kept)):
        before = kept.get(key)
        if key in members and members[key] is None:
            continue
        field = _field(schema, key)
        if key in removals and isinstance(before, list):
            gone = {_identity(value) for value in removals[key]}
            before = [value for value in before if _identity(value) not in gone]
        order = orders.get(key)
        if key in members:
            after = _value(before, members[key], field, order)
        elif key not in kept:
            continue
        else:
            after = deep_copy(before)
        if order is not None and isinstance(after, list):
            previous = before if isinstance(before, list) else []
            after = _ordered(after, order, previous, field.patch_key if field else "")
        result[key] = after
    return result


def _is_directive(key: str) -> bool:
    return key in (DIRECTIVE, RETAIN_KEYS) or key.startswith((SET_ORDER, DELETE_FROM))


def _directive(patch: Obj) -> str:
    directive = patch.get(DIRECTIVE, _MERGE)
    if directive not in (_MERGE, _REPLACE, _DELETE):
        raise BadRequestError(f"unknown patch type in {DIRECTIVE}: it is merge, replace or delete")
    return str(directive)


def _of(patch: Obj, prefix: str) -> dict[str, list[Any]]:
    """Field name → list, for the directives that carry the field in their name."""
    found = {key[len(prefix) :]: value for key, value in patch.items() if key.startswith(prefix)}
    for name, value in found.items():
        if not isinstance(value, list):
            raise BadRequestError(f"invalid patch: {prefix}{name} must be a list")
    return found


def _retained(original: Obj, members: Obj, keys: Any) -> Obj:
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise BadRequestError("invalid patch format of retainKeys")
    if any(value is not None and key not in keys for key, value in members.items()):
        raise PatchRejectedError  # "patch content doesn't match retainKeys list", which kube-apiserver does not tell
    return {key: value for key, value in original.items() if key in keys}


def _field(schema: Type | None, key: str) -> Field | None:
    """What the schema says of one member; every member of a map is alike."""
    if isinstance(schema, Message):
        return schema.by_name.get(key)
    return Field(key, 0, schema.value) if isinstance(schema, MapOf) else None


def _value(before: Any, value: Any, field: Field | None, order: list[Any] | None) -> Any:
    if isinstance(value, dict):
        return _object(before if isinstance(before, dict) else {}, value, field.type if field else None)
    if isinstance(value, list):
        if field is not None and field.patch == "merge" and isinstance(field.type, ListOf):
            return _list(before if isinstance(before, list) else [], value, field, field.type.item, order)
        return _plain(value)
    return value


def _plain(value: Any) -> Any:
    """Patch content taken as it is: a copy without nulls in objects and without directives."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None and not _is_directive(key)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _list(before: list[Any], patch: list[Any], field: Field, item: Type, order: list[Any] | None) -> list[Any]:
    """A list that merges; primitives as a set, objects by the field's key."""
    if not field.patch_key:
        if any(isinstance(value, dict | list) for value in patch):
            raise BadRequestError(f"invalid patch: {field.name} is a list of primitives")
        _agrees([_identity(value) for value in patch], [_identity(value) for value in order or ()], field, order)
        merged = list({_identity(value): value for value in (*before, *patch)}.values())
        return _ordered(merged, patch, before, "")

    key = field.patch_key
    wanted: list[Obj] = []
    gone: set[Hashable] = set()
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
            gone.add(_identity(element[key]))
        else:
            wanted.append(element)
    names = [_identity(element[key]) for element in wanted]
    _agrees(names, [_key(element, key) for element in order or ()], field, order)
    if replace:
        return [_object({}, element, item) for element in wanted]

    left = [element for element in before if _key(element, key) not in gone]
    merged = [deep_copy(element) for element in left]
    place = {_key(element, key): index for index, element in reversed(list(enumerate(merged)))}
    for name, element in zip(names, wanted, strict=True):
        if name in place:
            merged[place[name]] = _object(merged[place[name]], element, item)
        else:
            place[name] = len(merged)
            merged.append(_object({}, element, item))
    return _ordered(merged, wanted, left, key)


def _agrees(names: Sequence[Hashable], ordered: Sequence[Hashable], field: Field, order: list[Any] | None) -> None:
    """`$setElementOrder` lists what the patch adds, in the same order."""
    if order is None:
        return
    rest = iter(ordered)
    if not all(name in rest for name in names):
        raise BadRequestError(
            f"invalid patch: the order in the patch of {field.name} does not match its {SET_ORDER} list"
        )


def _identity(value: Any) -> Hashable:
    """Equal for equal JSON primitives only: true is not 1. Anything else is nothing's equal but its own kind's."""
    return (type(value).__name__, value if isinstance(value, str | int | float | bool) else None)


def _key(element: Any, key: str) -> Hashable:
    """What names a list element: itself, or its member `key`. In a keyed list a primitive is nobody."""
    if not key:
        return _identity(element)
    return _identity(element.get(key)) if isinstance(element, dict) else ("", None)


def _ordered(merged: list[Any], named: Iterable[Any], before: Iterable[Any], key: str) -> list[Any]:
    """`merged` with the elements of `named` in that order, woven with the others in the order of `before`."""
    wanted = _places(named, key)
    stood = _places(before, key)
    first = sorted((item for item in merged if _key(item, key) in wanted), key=lambda item: wanted[_key(item, key)])
    others = [item for item in merged if _key(item, key) not in wanted]
    woven: list[Any] = []
    left = 0
    for item in first:
        place = stood.get(_key(item, key), -1)
        while left < len(others) and stood.get(_key(others[left], key), len(stood)) < place:
            woven.append(others[left])
            left += 1
        woven.append(item)
    return woven + others[left:]


def _places(items: Iterable[Any], key: str) -> dict[Hashable, int]:
    places: dict[Hashable, int] = {}
    for index, item in enumerate(items):
        places.setdefault(_key(item, key), index)
    return places
