"""Walking objects by their schema for server-side apply: which fields they have, how two differ, how two merge.

Rules kept here:
* The schema says what is one value and what has parts: messages and maps have members, lists with `list_keys` have items known
  by those keys, lists with `list_set` have their values as items. Everything else (scalars, other lists, atomic messages and
  maps) is one value that has one owner. kind and apiVersion belong to nobody and are not looked at.
* Fields of a message are owned one by one, and the message itself only where it is empty or a pointer in Go; members of a map and
  items of a list are owned themselves, beside what they contain. A list of items that has none is nothing that could be owned.
* Merging: what both have and is one value comes from the applied side; parts merge. Items that are applied stand in the order in
  which they are, the others in theirs, and before new ones where both could stand.
* An item of a live list that repeats a key is not to be told from its twin: such twins are one value together. In an applied
  list an item without any of its keys, or with those of another, is refused.
* Nothing given is changed; results may share parts with it.

Each `Message` is compiled once into a `Shape`, kept on the message itself.
Source: structured-merge-diff as used by kube-apiserver; docs/protocol/server-side-apply.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mooring.apimachinery.apply.fieldset import FieldSet, Path, insert, is_member, keyed, node, path_text, valued
from mooring.apimachinery.apply.fieldset import field as member
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Type
from mooring.errors import BadRequestError

KEY_DEFAULTS = {"protocol": "TCP"}
"""List keys that may be left out, and what they then are: the only default among the list keys of Kubernetes."""
_SHAPE = "_fieldwalk_shape"


class Form(Enum):
    """How a value is divided among owners."""

    VALUE = "one value"
    MESSAGE = "known members"
    MAP = "any members"
    ITEMS = "items by key"
    SET = "items by value"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a walk needs to know of one place in an object. `always`: Go has it even when JSON does not show it, so that it
    is no difference whether an empty one is there."""

    form: Form
    fields: dict[str, Shape] = field(default_factory=dict)
    item: Shape | None = None
    keys: tuple[str, ...] = ()
    always: bool = False

    def below(self, element: str) -> Shape:
        """The shape of a part."""
        return self.item or self.fields.get(element[2:], _VALUE)


_VALUE = Shape(Form.VALUE)


def shape_of(schema: Message) -> Shape:
    """The shape of a whole object."""
    shape: Shape | None = schema.__dict__.get(_SHAPE)
    if shape is None:
        shape = schema.__dict__[_SHAPE] = _type(schema, False)
    return shape


def _field(declared: Field) -> Shape:
    kind = declared.type
    if isinstance(kind, ListOf):
        if declared.list_keys:
            return Shape(Form.ITEMS, item=_type(kind.item, False), keys=declared.list_keys)
        return Shape(Form.SET, item=_VALUE) if declared.list_set else _VALUE
    if isinstance(kind, MapOf) and declared.map_atomic:
        return _VALUE
    return _type(kind, not declared.pointer)


def _type(kind: Type, always: bool) -> Shape:
    if isinstance(kind, Message) and not kind.atomic:
        return Shape(Form.MESSAGE, {item.name: _field(item) for item in kind.fields}, always=always)
    if isinstance(kind, MapOf):
        return Shape(Form.MAP, item=_type(kind.value, False))
    return _VALUE


def _parts(value: Any, shape: Shape) -> dict[str, Any]:
    """The parts of a value by path element, in their order. Twins in a list are a tuple."""
    if shape.form is Form.MESSAGE:
        return {member(name): item for name, item in value.items() if name in shape.fields}
    if shape.form is Form.MAP:
        return {member(name): item for name, item in value.items()}
    parts: dict[str, Any] = {}
    for item in value or ():  # null where Go writes an empty list
        element = _item_element(item, shape)
        if element in parts:
            twins = parts[element]
            parts[element] = (*twins, item) if isinstance(twins, tuple) else (twins, item)
        else:
            parts[element] = item
    return parts


def _item_element(item: Any, shape: Shape) -> str:
    if shape.form is Form.SET:
        return valued(item)
    keys = {key: item.get(key, KEY_DEFAULTS.get(key)) for key in shape.keys}
    return keyed({key: value for key, value in keys.items() if value is not None})


def _whole(value: Any, shape: Shape) -> bool:
    """Whether a value is owned as one."""
    return shape.form is Form.VALUE or isinstance(value, tuple) or not value


def untyped(obj: Obj, why: str) -> BadRequestError:
    """The refusal of an applied object that does not fit its schema, as kube-apiserver words it."""
    metadata = obj.get("metadata", {})
    group, _, version = obj.get("apiVersion", "").rpartition("/")
    which = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {group}/{version}, Kind={obj.get('kind', '')}"
    return BadRequestError(f"failed to create typed patch object ({which}): {why}")


def field_set(obj: Obj, schema: Message, *, strict: bool = False) -> FieldSet:
    """Every field that `obj` sets. With `strict`, as one applies it: BadRequestError for list items without a key of their own."""
    try:
        return _fields(obj, shape_of(schema), (), strict)
    except _KeylessError as error:
        raise untyped(obj, str(error)) from None


class _KeylessError(ValueError):
    """An item of an applied list that has no key of its own."""


def _fields(value: Any, shape: Shape, path: Path, strict: bool) -> FieldSet:
    fields: FieldSet = {}
    if strict and shape.form is Form.ITEMS:
        _check_keys(value, shape, path)
    for element, part in _parts(value, shape).items():
        if strict and isinstance(part, tuple):
            raise _KeylessError(f"{path_text(path)}: duplicate entries for key {path_text((element,))}")
        below = shape.below(element)
        if not part and below.form in (Form.ITEMS, Form.SET):
            continue
        whole = _whole(part, below)
        children = {} if whole else _fields(part, below, (*path, element), strict)
        insert(fields, element, whole or shape.form is not Form.MESSAGE, children)
    return fields


def _check_keys(items: list[Obj], shape: Shape, path: Path) -> None:
    for index, item in enumerate(items):
        if not any(key in item or key in KEY_DEFAULTS for key in shape.keys):
            keys = " ".join(f'"{key}"' for key in shape.keys)
            raise _KeylessError(
                f"{path_text(path)}: element {index}: associative list with keys has an element that omits all key fields "
                f"[{keys}] (and doesn't have default values for any key fields)"
            )


@dataclass(frozen=True, slots=True)
class Difference:
    """What became of an object, as sets of fields."""

    modified: FieldSet = field(default_factory=dict)
    added: FieldSet = field(default_factory=dict)
    removed: FieldSet = field(default_factory=dict)


def compare(before: Obj, after: Obj, schema: Message) -> Difference:
    """How `after` differs from `before`."""
    found = Difference()
    _compare(before, after, shape_of(schema), found)
    return found


def _compare(before: Any, after: Any, shape: Shape, found: Difference) -> None:
    """Both have parts of `shape`; writes into `found`, whose sets belong to the caller."""
    old, new = _parts(before, shape), _parts(after, shape)
    for element, part in new.items():
        below = shape.below(element)
        if element not in old:
            if part or not below.always:
                found.added[element] = _all(part, below)
        elif (other := old[element]) != part:
            if below.form is Form.VALUE or isinstance(part, tuple) or isinstance(other, tuple):
                found.modified[element] = {}
            else:
                inner = Difference()
                _compare(other, part, below, inner)
                insert(found.modified, element, False, inner.modified)
                insert(found.added, element, False, inner.added)
                insert(found.removed, element, False, inner.removed)
    for element, part in old.items():
        below = shape.below(element)
        if element not in new and (part or not below.always):
            found.removed[element] = _all(part, below)


def _all(value: Any, shape: Shape) -> FieldSet:
    """The node of a value that one side does not have at all: itself and everything below."""
    if _whole(value, shape):
        return {}
    children = {element: _all(part, shape.below(element)) for element, part in _parts(value, shape).items()}
    return node(not shape.always, children)


def merge(live: Obj, applied: Obj, schema: Message) -> Obj:
    """`live` with everything that `applied` says."""
    merged: Obj = _merge(live, applied, shape_of(schema))
    return merged


def _merge(live: Any, applied: Any, shape: Shape) -> Any:
    if shape.form is Form.VALUE:
        return applied
    if shape.form in (Form.MESSAGE, Form.MAP):
        result = dict(live)
        for name, part in applied.items():
            result[name] = _merge(live[name], part, shape.below(member(name))) if name in live else part
        return result
    old, new = _parts(live, shape), _parts(applied, shape)
    merged: list[Any] = []
    for element in _order(list(old), list(new)):
        if element not in new:
            merged += _listed(old[element])
        elif element not in old or isinstance(old[element], tuple):
            merged.append(new[element])
        else:
            merged.append(_merge(old[element], new[element], shape.below(element)))
    return merged


def _order(old: list[str], new: list[str]) -> Iterator[str]:
    """The items of a merged list: a walk along both lists at once, as structured-merge-diff goes."""
    applied, there = set(new), set(old)
    shared = deque(element for element in new if element in there)  # still to come, in the order in which they will
    came = set()
    left = right = 0
    while left < len(old) or right < len(new):
        here = old[left] if left < len(old) else None
        if here is not None and here not in applied:
            yield here
            left += 1
        elif here is not None and (here in came or here != shared[0]):  # it came already, or comes where it was applied
            left += 1
        else:
            yield new[right]
            if shared and shared[0] == new[right]:
                came.add(shared.popleft())
            right += 1


def _listed(part: Any) -> list[Any]:
    return list(part) if isinstance(part, tuple) else [part]


def remove(obj: Obj, fields: FieldSet, schema: Message) -> Obj:
    """`obj` without the members of `fields`, each with all that lies below it. What becomes empty is left out."""
    kept: Obj = _remove(obj, fields, shape_of(schema))
    return kept


def _remove(value: Any, fields: FieldSet, shape: Shape) -> Any:
    if shape.form is Form.VALUE:  # a client may have written a set that claims parts where there are none
        return value
    if shape.form in (Form.MESSAGE, Form.MAP):
        result: Obj = {}
        for name, part in value.items():
            below = fields.get(member(name))
            if below is None:
                result[name] = part
            elif not is_member(below) and (rest := _remove(part, below, shape.below(member(name)))):
                result[name] = rest
        return result
    kept: list[Any] = []
    for element, part in _parts(value, shape).items():
        below = fields.get(element)
        if below is None:
            kept += _listed(part)
        elif not is_member(below):
            kept += _listed(part) if isinstance(part, tuple) else [_remove(part, below, shape.below(element))]
    return kept


def with_messages(fields: FieldSet, schema: Message) -> FieldSet:
    """`fields` and every message that contains one of them: a message goes when all of it goes."""
    return _with_messages(fields, shape_of(schema))


def _with_messages(fields: FieldSet, shape: Shape) -> FieldSet:
    result: FieldSet = {}
    for element, child in fields.items():
        below = shape.below(element)
        children = _with_messages({key: part for key, part in child.items() if key != "."}, below)
        insert(
            result, element, is_member(child) or (below.form is Form.MESSAGE and shape.form is Form.MESSAGE), children
        )
    return result
