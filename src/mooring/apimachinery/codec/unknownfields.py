"""Unknown fields: tell whether an object has fields that its schema does not have.

Rules kept here:
* Objects come from storage, where a newer server may have written them. An update would drop such fields, so the registry looks for
  them first (docs/protocol/storage.md#values).
* Free-form values (`RAW`, `FIELDS_V1`) and the keys of maps are never unknown.
* Each `Message` is compiled once into a closure, which is kept on the message: this code runs on every update.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mooring.apimachinery.schema import ListOf, MapOf, Message, Obj, Type

Check = Callable[[Any], bool]
"""Returns whether a value has a field that its type does not have."""

_PLAN = "_unknown_fields_plan"
_TYPE_META = frozenset({"kind", "apiVersion"})


def has_unknown_fields(obj: Obj, schema: Message) -> bool:
    """Return whether `obj`, which may have kind and apiVersion, has a field that `schema` has not, at any depth."""
    check: Check | None = schema.__dict__.get(_PLAN)
    if check is None:
        check = schema.__dict__[_PLAN] = _message_check(schema, _TYPE_META)
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
