"""Objects with a long list or map in one place, made from a declared schema: the slowest bodies to validate.

Rules kept here: every list, set and map that the schema declares is a place. The rest of the object holds only required fields. All
text is `Word`, so that comparisons inside `in` count as work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mooring.apimachinery.schema import ListOf, MapOf, Message, Obj, Scalar, Type
from tests.support.work import Word

Place = tuple[str | int, ...]

MAX_LEVELS = 3
"""Levels of optional fields inside an item: rules look no deeper."""
_SCALARS: dict[Scalar, Any] = {
    Scalar.BOOL: True,
    Scalar.DOUBLE: 1.5,
    Scalar.BYTES: Word("YQ=="),
    Scalar.TIME: Word("2026-01-01T00:00:00Z"),
    Scalar.MICRO_TIME: Word("2026-01-01T00:00:00.000000Z"),
    Scalar.QUANTITY: Word("1"),
}
_OPEN = (Scalar.FIELDS_V1, Scalar.RAW)


def places(schema: Type, above: Place = (), inside: tuple[str, ...] = ()) -> Iterator[Place]:
    """Yield each place where `schema` has a list or a map."""
    if isinstance(schema, Message):
        if schema.name not in inside:
            for field in schema.fields:
                yield from places(field.type, (*above, field.name), (*inside, schema.name))
    elif isinstance(schema, ListOf | MapOf):
        yield above
        if isinstance(schema, ListOf):
            yield from places(schema.item, (*above, 0), inside)
        else:
            yield from places(schema.value, (*above, "k0"), inside)
    elif schema is Scalar.STRING_LIST or schema in _OPEN:
        yield above


def with_long(schema: Type, place: Place, numbers: range, *, is_same: bool = False) -> Any:
    """Return a value of `schema` with one item for each number at `place`; `is_same`: the items are equal."""
    if not place:
        return _long(schema, numbers, is_same)
    first, rest = place[0], place[1:]
    if isinstance(schema, ListOf):
        return [with_long(schema.item, rest, numbers, is_same=is_same)]
    if isinstance(schema, MapOf):
        return {Word(first): with_long(schema.value, rest, numbers, is_same=is_same)}
    assert isinstance(schema, Message)
    obj = {field.name: value(field.type, 0, MAX_LEVELS) for field in schema.fields if field.required}
    obj[str(first)] = with_long(schema.by_name[str(first)].type, rest, numbers, is_same=is_same)
    return obj


def _long(schema: Type, numbers: range, is_same: bool) -> Any:
    if schema is Scalar.STRING_LIST:
        schema = ListOf(Scalar.STRING)
    if isinstance(schema, ListOf):
        item = _maker(schema.item, 1)
        return [item(0 if is_same else number) for number in numbers]
    item = _maker(schema.value if isinstance(schema, MapOf) else Scalar.RAW, 1)
    return {Word(f"k{number}"): item(0 if is_same else number) for number in numbers}


def value(schema: Type, number: int, level: int) -> Any:
    """Return a small value of `schema`; different for different numbers, where the type has enough values."""
    return _maker(schema, level)(number)


def _maker(schema: Type, level: int) -> Callable[[int], Any]:
    """Return what makes values of `schema`. It reads the schema once: a list of thousands of items is made from it."""
    if isinstance(schema, Message):
        fields = [
            (field.name, _maker(field.type, level + 1))
            for field in schema.fields
            if field.required or level < MAX_LEVELS
        ]
        return lambda number: {name: make(number) for name, make in fields}
    if isinstance(schema, ListOf):
        item = _maker(schema.item, level + 1)
        return lambda number: [item(number)]
    if isinstance(schema, MapOf):
        of_key = _maker(schema.value, level + 1)
        return lambda number: {Word(f"k{number}"): of_key(number)}
    if schema is Scalar.STRING_LIST:
        return lambda number: [Word(f"a{number}")]
    if schema in _OPEN:
        return lambda number: {Word(f"f:a{number}"): {}}
    if schema in (Scalar.INT32, Scalar.INT64, Scalar.INT_OR_STRING):
        return lambda number: number + 1
    if schema is Scalar.STRING:
        return lambda number: Word(f"a{number}")
    same = _SCALARS[schema]
    return lambda number: same


def named(obj: Obj, kind: str, api_version: str) -> Obj:
    """Return `obj` as an object of a kind, with a name."""
    metadata = {**obj.get("metadata", {}), "name": Word("a"), "namespace": Word("b")}
    return {**obj, "kind": kind, "apiVersion": api_version, "metadata": metadata}
