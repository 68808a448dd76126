"""Structured merge of objects by their schema: field sets, comparison, merge and removal for server-side apply.

Rules kept here:
* The schema decides which values are atomic and which have parts: messages and maps have members, lists with `list_keys` have items
  identified by those keys, lists with `list_set` have their values as items. Everything else (scalars, other lists, atomic messages
  and maps) is atomic and has one owner. kind and apiVersion have no owner and are ignored.
* Fields of a message are owned one by one, and the message itself only where it is empty or a pointer in Go. Members of a map and
  items of a list are owned themselves, beside their contents. An empty list of items cannot be owned.
* Merging takes an atomic value from the applied object and merges parts. Applied items keep their order, live items theirs, and
  live items come before new ones where both orders are possible.
* Items of a live list with the same keys cannot be told apart: these duplicates are one atomic value together. In an applied list
  an item without any of its keys, or with those of another item, is refused.
* Arguments are not changed; results may share parts with them.

Each `Message` is compiled once into a `Shape`, kept on the message itself.
Source: structured-merge-diff as used by kube-apiserver; docs/protocol/server-side-apply.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mooring.apimachinery.apply.fieldset import (
    FieldSet,
    Path,
    field_element,
    insert,
    is_member,
    key_element,
    node,
    path_text,
    value_element,
)
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Type
from mooring.errors import BadRequestError

KEY_DEFAULTS = {"protocol": "TCP"}
"""Defaults of list keys that may be left out: the only one among the list keys of Kubernetes."""
_SHAPE = "_structured_merge_shape"


class MergeForm(Enum):
    """Division of a value among owners."""

    ATOMIC = "one value"
    MESSAGE = "known fields"
    MAP = "any members"
    KEYED_LIST = "items by key"
    SET = "items by value"


@dataclass(frozen=True, slots=True)
class Shape:
    """Form of the value at one place in an object. `always`: Go has the value even when JSON leaves it out, so that an empty value
    and an absent one are equal."""

    form: MergeForm
    fields: dict[str, Shape] = field(default_factory=dict)
    item: Shape | None = None
    keys: tuple[str, ...] = ()
    always: bool = False

    def below(self, element: str) -> Shape:
        """Return the shape of a part."""
        return self.item or self.fields.get(element[2:], _ATOMIC)


_ATOMIC = Shape(MergeForm.ATOMIC)


def shape_of(schema: Message) -> Shape:
    """Return the shape of a whole object."""
    shape: Shape | None = schema.__dict__.get(_SHAPE)
    if shape is None:
        shape = schema.__dict__[_SHAPE] = _type_shape(schema, False)
    return shape


def _field_shape(declared: Field) -> Shape:
    kind = declared.type
    if isinstance(kind, ListOf):
        if declared.list_keys:
            return Shape(MergeForm.KEYED_LIST, item=_type_shape(kind.item, False), keys=declared.list_keys)
        return Shape(MergeForm.SET, item=_ATOMIC) if declared.list_set else _ATOMIC
    if isinstance(kind, MapOf) and declared.map_atomic:
        return _ATOMIC
    return _type_shape(kind, not declared.pointer)


def _type_shape(kind: Type, always: bool) -> Shape:
    if isinstance(kind, Message) and not kind.atomic:
        return Shape(MergeForm.MESSAGE, {item.name: _field_shape(item) for item in kind.fields}, always=always)
    if isinstance(kind, MapOf):
        return Shape(MergeForm.MAP, item=_type_shape(kind.value, False))
    return _ATOMIC


class _Duplicates(list[Any]):
    """Items of a list with equal keys, in their order."""


def _parts(value: Any, shape: Shape) -> dict[str, Any]:
    """Return the parts of a value by path element, in their order. Items of a list with equal keys are one part."""
    if shape.form is MergeForm.MESSAGE:
        return {field_element(name): item for name, item in value.items() if name in shape.fields}
    if shape.form is MergeForm.MAP:
        return {field_element(name): item for name, item in value.items()}
    parts: dict[str, Any] = {}
    # Go writes an empty list as null.
    for item in value or ():
        element = _item_element(item, shape)
        if element in parts:
            first = parts[element]
            if isinstance(first, _Duplicates):
                first.append(item)
            else:
                parts[element] = _Duplicates((first, item))
        else:
            parts[element] = item
    return parts


def _item_element(item: Any, shape: Shape) -> str:
    if shape.form is MergeForm.SET:
        return value_element(item)
    keys = {key: item.get(key, KEY_DEFAULTS.get(key)) for key in shape.keys}
    return key_element({key: value for key, value in keys.items() if value is not None})


def _is_atomic(value: Any, shape: Shape) -> bool:
    """Return whether a value has one owner."""
    return shape.form is MergeForm.ATOMIC or isinstance(value, _Duplicates) or not value


def typed_patch_error(obj: Obj, reason: str) -> BadRequestError:
    """Return the error for an applied object that does not fit its schema, as kube-apiserver words it."""
    metadata = obj.get("metadata", {})
    group, _, version = obj.get("apiVersion", "").rpartition("/")
    which = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {group}/{version}, Kind={obj.get('kind', '')}"
    return BadRequestError(f"failed to create typed patch object ({which}): {reason}")


def field_set(obj: Obj, schema: Message, *, strict: bool = False) -> FieldSet:
    """Return the fields that `obj` sets. With `strict`, for applied objects, list items without a unique key raise
    BadRequestError."""
    try:
        return _fields(obj, shape_of(schema), (), strict)
    except _ListKeyError as error:
        raise typed_patch_error(obj, str(error)) from None


class _ListKeyError(ValueError):
    """An item of an applied list without keys, or with the keys of another item."""


def _fields(value: Any, shape: Shape, path: Path, strict: bool) -> FieldSet:
    fields: FieldSet = {}
    if strict and shape.form is MergeForm.KEYED_LIST:
        _check_keys(value, shape, path)
    for element, part in _parts(value, shape).items():
        if strict and isinstance(part, _Duplicates):
            raise _ListKeyError(f"{path_text(path)}: duplicate entries for key {path_text((element,))}")
        below = shape.below(element)
        if not part and below.form in (MergeForm.KEYED_LIST, MergeForm.SET):
            continue
        whole = _is_atomic(part, below)
        children = {} if whole else _fields(part, below, (*path, element), strict)
        insert(fields, element, whole or shape.form is not MergeForm.MESSAGE, children)
    return fields


def _check_keys(items: list[Obj], shape: Shape, path: Path) -> None:
    for index, item in enumerate(items):
        if not any(key in item or key in KEY_DEFAULTS for key in shape.keys):
            keys = " ".join(f'"{key}"' for key in shape.keys)
            raise _ListKeyError(
                f"{path_text(path)}: element {index}: associative list with keys has an element that omits all key fields "
                f"[{keys}] (and doesn't have default values for any key fields)"
            )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Modified, added and removed fields between two objects."""

    modified: FieldSet = field(default_factory=dict)
    added: FieldSet = field(default_factory=dict)
    removed: FieldSet = field(default_factory=dict)


def compare(before: Obj, after: Obj, schema: Message) -> Comparison:
    """Return the differences of `after` from `before`."""
    found = Comparison()
    _compare(before, after, shape_of(schema), found)
    return found


def _compare(before: Any, after: Any, shape: Shape, found: Comparison) -> None:
    """Add the differences of two values with parts of `shape` to `found`, in place."""
    old, new = _parts(before, shape), _parts(after, shape)
    for element, part in new.items():
        below = shape.below(element)
        if element not in old:
            if part or not below.always:
                found.added[element] = _subtree(part, below)
        elif (other := old[element]) != part:
            if below.form is MergeForm.ATOMIC or isinstance(part, _Duplicates) or isinstance(other, _Duplicates):
                found.modified[element] = {}
            else:
                inner = Comparison()
                _compare(other, part, below, inner)
                insert(found.modified, element, False, inner.modified)
                insert(found.added, element, False, inner.added)
                insert(found.removed, element, False, inner.removed)
    for element, part in old.items():
        below = shape.below(element)
        if element not in new and (part or not below.always):
            found.removed[element] = _subtree(part, below)


def _subtree(value: Any, shape: Shape) -> FieldSet:
    """Return the node of a value that only one object has: the value itself and everything below."""
    if _is_atomic(value, shape):
        return {}
    children = {element: _subtree(part, shape.below(element)) for element, part in _parts(value, shape).items()}
    return node(not shape.always, children)


def merge(live: Obj, applied: Obj, schema: Message) -> Obj:
    """Return `live` merged with `applied`."""
    merged: Obj = _merge(live, applied, shape_of(schema))
    return merged


def _merge(live: Any, applied: Any, shape: Shape) -> Any:
    if shape.form is MergeForm.ATOMIC:
        return applied
    if shape.form in (MergeForm.MESSAGE, MergeForm.MAP):
        result = dict(live)
        for name, part in applied.items():
            result[name] = _merge(live[name], part, shape.below(field_element(name))) if name in live else part
        return result
    old, new = _parts(live, shape), _parts(applied, shape)
    merged: list[Any] = []
    for element in _merged_order(list(old), list(new)):
        if element not in new:
            merged += _items_of(old[element])
        elif element not in old or isinstance(old[element], _Duplicates):
            merged.append(new[element])
        else:
            merged.append(_merge(old[element], new[element], shape.below(element)))
    return merged


def _merged_order(old: list[str], new: list[str]) -> Iterator[str]:
    """Yield the items of a merged list by walking both lists at once, as structured-merge-diff does."""
    applied, live = set(new), set(old)
    # Those that were not yielded yet, in their order.
    shared = deque(element for element in new if element in live)
    yielded = set()
    left = right = 0
    while left < len(old) or right < len(new):
        current = old[left] if left < len(old) else None
        if current is not None and current not in applied:
            yield current
            left += 1
        # Its place is that in the applied list.
        elif current is not None and (current in yielded or current != shared[0]):
            left += 1
        else:
            yield new[right]
            if shared and shared[0] == new[right]:
                yielded.add(shared.popleft())
            right += 1


def _items_of(part: Any) -> list[Any]:
    return list(part) if isinstance(part, _Duplicates) else [part]


def remove(obj: Obj, fields: FieldSet, schema: Message) -> Obj:
    """Return `obj` without the members of `fields` and everything below them. Objects that become empty are left out."""
    kept: Obj = _remove(obj, fields, shape_of(schema))
    return kept


def _remove(value: Any, fields: FieldSet, shape: Shape) -> Any:
    # The set of a client may name parts of an atomic value.
    if shape.form is MergeForm.ATOMIC:
        return value
    if shape.form in (MergeForm.MESSAGE, MergeForm.MAP):
        result: Obj = {}
        for name, part in value.items():
            below = fields.get(field_element(name))
            if below is None:
                result[name] = part
            elif not is_member(below) and (rest := _remove(part, below, shape.below(field_element(name)))):
                result[name] = rest
        return result
    kept: list[Any] = []
    for element, part in _parts(value, shape).items():
        below = fields.get(element)
        if below is None:
            kept += _items_of(part)
        elif not is_member(below):
            kept += _items_of(part) if isinstance(part, _Duplicates) else [_remove(part, below, shape.below(element))]
    return kept


def with_enclosing_messages(fields: FieldSet, schema: Message) -> FieldSet:
    """Return `fields` and every message that contains one of them: a message is removed when all of its fields are."""
    return _with_enclosing_messages(fields, shape_of(schema))


def _with_enclosing_messages(fields: FieldSet, shape: Shape) -> FieldSet:
    result: FieldSet = {}
    for element, child in fields.items():
        below = shape.below(element)
        children = _with_enclosing_messages({key: part for key, part in child.items() if key != "."}, below)
        insert(
            result,
            element,
            is_member(child) or (below.form is MergeForm.MESSAGE and shape.form is MergeForm.MESSAGE),
            children,
        )
    return result
