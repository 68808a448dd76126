"""Fields that a schema has beside those of an object: zero fields that Go writes, and unknown fields."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mooring.apimachinery.codec.unmarshal import TIMES, zero
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar, Type

# Zero fields: complete an object with the fields that Go writes even when they are zero.
#
# Go's `omitempty` has no effect on a struct that is not a pointer: clients rely on `node.status.nodeInfo` and `resources: {}`
# being present. `written_when_zero` derives these fields from the schema:
# * a message, a time, a quantity or an int-or-string that is not a `pointer`; a `required` scalar or list;
# * the field's `always`, where Go's declaration differs.
#
# A zero message is `{}` with its own such fields; a zero time and an empty list are null.
# Each `Message` is compiled once into closures, which are kept on the message: this code runs on every write.

Fill = Callable[[Any], bool]
"""Adds missing fields to a value, in place; returns whether any was missing."""

_PLAN = "_complete_plan"
_STRUCTS_INSIDE = "_complete_structs_inside"
_STRUCTS = TIMES | {Scalar.QUANTITY, Scalar.INT_OR_STRING}
"""Scalars that are structs in Go."""


def written_when_zero(field: Field) -> bool:
    """Return whether Go writes this field even when it is zero."""
    if field.always is not None:
        return field.always
    if isinstance(field.type, Message) or field.type in _STRUCTS:
        return not field.pointer
    return field.required and field.type is not Scalar.BYTES


def has_structs(schema: Message) -> bool:
    """Return whether an object of this kind, apart from its metadata, can lack a field other than a required scalar.

    Objects that were stored before such fields were written lack them; required scalars were always written.
    """
    known: bool | None = schema.__dict__.get(_STRUCTS_INSIDE)
    if known is None:
        known = any(_may_lack(field) for field in schema.fields if field.name != "metadata")
        schema.__dict__[_STRUCTS_INSIDE] = known
    return known


def _may_lack(field: Field) -> bool:
    if written_when_zero(field) and (not isinstance(field.type, Scalar) or field.type in _STRUCTS):
        return True
    kind: Type = field.type
    while isinstance(kind, ListOf | MapOf):
        kind = kind.item if isinstance(kind, ListOf) else kind.value
    return isinstance(kind, Message) and any(map(_may_lack, kind.fields))


def complete(obj: Obj, schema: Message) -> bool:
    """Add to `obj`, in place, every field that Go would write; return whether any was missing."""
    return _plan(schema)(obj)


def _plan(schema: Message) -> Fill:
    plan: Fill | None = schema.__dict__.get(_PLAN)
    if plan is None:
        plan = schema.__dict__[_PLAN] = _message_fill(schema)
    return plan


def _message_fill(schema: Message) -> Fill:
    zeros: list[tuple[str, Any]] = []
    structs: list[tuple[str, Fill]] = []
    others: list[tuple[str, Fill]] = []
    for field in schema.fields:
        fill = _type_fill(field.type)
        if not written_when_zero(field):
            pass
        elif isinstance(field.type, Message):
            structs.append((field.name, _plan(field.type)))
            continue
        else:
            zeros.append((field.name, _zero(field.type)))
        if fill is not None:
            others.append((field.name, fill))

    def fill_message(obj: Obj) -> bool:
        changed = False
        for name, empty in zeros:
            if name not in obj:
                obj[name] = empty
                changed = True
        for name, fill in structs:
            part = obj.get(name)
            if part is None:
                part = obj[name] = {}
                changed = True
            changed = fill(part) or changed
        for name, fill in others:
            part = obj.get(name)
            if part is not None:
                changed = fill(part) or changed
        return changed

    return fill_message


def _zero(kind: Type) -> Any:
    return None if not isinstance(kind, Scalar) or kind in TIMES else zero(kind)


def _type_fill(kind: Type) -> Fill | None:
    """Return the closure that completes a value of this type; None for types without parts."""
    if isinstance(kind, Message):
        return _plan(kind) if any(map(written_when_zero, kind.fields)) or _has_parts(kind) else None
    if isinstance(kind, ListOf):
        fill = _type_fill(kind.item)
        return partial(_fill_items, fill) if fill is not None else None
    if isinstance(kind, MapOf):
        fill = _type_fill(kind.value)
        return partial(_fill_values, fill) if fill is not None else None
    return None


def _has_parts(schema: Message) -> bool:
    return any(_type_fill(field.type) is not None for field in schema.fields)


def _fill_items(fill: Fill, items: list[Any]) -> bool:
    changed = False
    for item in items:
        changed = fill(item) or changed
    return changed


def _fill_values(fill: Fill, values: Obj) -> bool:
    return _fill_items(fill, list(values.values()))


# Unknown fields: tell whether an object has fields that its schema does not have.
#
# Rules kept here:
# * Objects come from storage, where a newer server may have written them. An update would drop such fields, so the registry looks
#   for them first (docs/protocol/storage.md#values).
# * Free-form values (`RAW`, `FIELDS_V1`) and the keys of maps are never unknown.
# * Each `Message` is compiled once into a closure, which is kept on the message: this code runs on every update.

Check = Callable[[Any], bool]
"""Returns whether a value has a field that its type does not have."""

_CHECK_PLAN = "_unknown_fields_plan"
_TYPE_META = frozenset({"kind", "apiVersion"})


def has_unknown_fields(obj: Obj, schema: Message) -> bool:
    """Return whether `obj`, which may have kind and apiVersion, has a field that `schema` has not, at any depth."""
    check: Check | None = schema.__dict__.get(_CHECK_PLAN)
    if check is None:
        check = schema.__dict__[_CHECK_PLAN] = _message_check(schema, _TYPE_META)
    return check(obj)


def _message_check(schema: Message, more: frozenset[str] = frozenset()) -> Check:
    known = frozenset(schema.by_name) | more
    parts = [(field.name, check) for field in schema.fields if (check := _type_check(field.type)) is not None]

    def check_message(obj: Any) -> bool:
        if not isinstance(obj, dict):
            return False
        if not known.issuperset(obj):
            return True
        for name, check in parts:
            part = obj.get(name)
            if part and check(part):
                return True
        return False

    return check_message


def _type_check(kind: Type) -> Check | None:
    """Return the check of a value of this type; None for types without fields."""
    if isinstance(kind, Message):
        return _message_check(kind)
    inner = (
        _type_check(kind.item if isinstance(kind, ListOf) else kind.value) if isinstance(kind, ListOf | MapOf) else None
    )
    if inner is None:
        return None
    return partial(_any_item if isinstance(kind, ListOf) else _any_value, inner)


def _any_item(check: Check, items: list[Any]) -> bool:
    return any(map(check, items))


def _any_value(check: Check, values: Obj) -> bool:
    return any(map(check, values.values()))
