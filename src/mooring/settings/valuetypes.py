"""Types of values that a setting takes, and how the configuration file writes each.

- A type has a name for the reference page, and reads a value of the configuration file strictly: a number in quotes is a text.
- An error says which type to give and never repeats the value, which may be a secret.
- The command line has its own parser for each type: `mooring.cli.options.declared`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from mooring.duration import parse_long_duration

T = TypeVar("T")

MAX_PORT = 65535


@dataclass(frozen=True, slots=True, eq=False)
class ValueType(Generic[T]):
    """Type of the values of a setting."""

    name: str
    """Type as the reference page names it."""
    from_file: Callable[[Any], T]
    """Return the value for one of the configuration file. Raises ValueError that says what to give."""
    normalise: Callable[[Any], T] = lambda value: value
    """Return the value for one of the command line, after it was parsed."""
    choices: tuple[str, ...] = ()
    """The only values, where they are listed."""


def split_commas(values: Sequence[str]) -> tuple[str, ...]:
    """Return the items of texts that may hold several, with commas between; empty items are dropped, order is kept."""
    return tuple(item for value in values for item in (part.strip() for part in value.split(",")) if item)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text_from_file(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("give a text; put quotes around one that looks like a number")
    return value


def _boolean_from_file(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError("give true or false")
    return value


def _integer_from_file(value: Any) -> Any:
    if not _is_number(value) or not isinstance(value, int):
        raise ValueError("give a whole number")
    return value


def _count_from_file(value: Any) -> Any:
    if value == "auto":
        return value
    if not _is_number(value) or not isinstance(value, int):
        raise ValueError("give a whole number, or auto")
    return str(value)


def _port_from_file(value: Any) -> Any:
    port = _integer_from_file(value)
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"{port} is not in the range 0<=x<={MAX_PORT}")
    return port


def _number_from_file(value: Any) -> Any:
    if not _is_number(value):
        raise ValueError("give a number")
    return value


def duration_from_file(value: Any) -> timedelta:
    """Return the duration of a text, which is not negative; a bare 0 is accepted, too. Raises ValueError."""
    if isinstance(value, str) or (_is_number(value) and value == 0):
        with suppress(ValueError):
            found = parse_long_duration(str(value))
            if found >= timedelta():
                return found
    if _is_number(value) or (isinstance(value, str) and value.isdecimal()):
        raise ValueError("a duration needs a unit: give 5s, 10m or 1h30m")
    raise ValueError("give a duration, such as 5s, 10m or 1h30m")


def _texts_from_file(value: Any) -> Any:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ValueError("give a text or a list of texts")
    return tuple(listed)


def one_of(*choices: str) -> ValueType[str]:
    """Return the type of a text that is one of `choices`, or empty where none is given."""

    def from_file(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"give {', '.join(choices[:-1])} or {choices[-1]}")
        return str(value)

    return ValueType("text", from_file, lambda value: value or "", choices)


TEXT: ValueType[str] = ValueType("text", _text_from_file)
OPTIONAL_TEXT: ValueType[str | None] = ValueType("text", _text_from_file)
"""A text whose absence differs from an empty one."""
BOOLEAN: ValueType[bool] = ValueType("boolean", _boolean_from_file)
SWITCH: ValueType[bool] = ValueType("boolean", _boolean_from_file)
"""A boolean whose flag takes no value, for commands with arguments."""
OPTIONAL_BOOLEAN: ValueType[bool | None] = ValueType("boolean", _boolean_from_file)
"""A boolean whose absence differs from its default."""
INTEGER: ValueType[int] = ValueType("integer", _integer_from_file)
COUNT: ValueType[str] = ValueType("integer or auto", _count_from_file)
"""A whole number, or `auto` for one that depends on the machine."""
PORT: ValueType[int] = ValueType("integer", _port_from_file)
"""A TCP port, or 0 for any free one."""
OPTIONAL_PORT: ValueType[int | None] = ValueType("integer", _port_from_file)
NUMBER: ValueType[float] = ValueType("number", _number_from_file)
DURATION: ValueType[timedelta] = ValueType("duration", duration_from_file)
"""A duration as Go writes it (`24h0m0s`, `90s`), or with days and weeks (`7d`, `1w`)."""
OPTIONAL_DURATION: ValueType[timedelta | None] = ValueType("duration", duration_from_file)
TEXTS: ValueType[tuple[str, ...]] = ValueType("list of texts", _texts_from_file, tuple)
"""A flag that may be repeated; each value is one item, which may hold a comma."""
LINES: ValueType[tuple[str, ...]] = ValueType("list of texts", _texts_from_file, tuple)
"""A flag that may be repeated; an item may hold blanks, and a variable has one on each line."""
COMMA_SEPARATED: ValueType[tuple[str, ...]] = ValueType("list of texts", _texts_from_file, split_commas)
"""A flag that may be repeated, and whose values may hold several items with commas between."""
