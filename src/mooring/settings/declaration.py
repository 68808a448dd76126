"""Declaration of settings: name, type, default, meaning and check, once; the types of values, and shared checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar, Unpack, overload
from urllib.parse import urlsplit

from mooring.duration import parse_long_duration
from mooring.errors import ConfigError
from mooring.settings.addresses import names_user, shown_value

# Types of values that a setting takes, and how the configuration file writes each.
#
# - A type has a name for the reference page, and reads a value of the configuration file strictly: a number in quotes is a text.
# - An error says which type to give and never repeats the value, which may be a secret.
# - The command line has its own parser for each type: `mooring.cli.options.declared`.

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


# Checks that several settings share: each takes a value and its key, and returns the value. They raise ConfigError.


def one_of_words(choices: Sequence[str]) -> Callable[[str, str], str]:
    """Return a check for one of a few words."""

    def check(text: str, key: str) -> str:
        if text not in choices:
            raise ConfigError(f'{key}: "{text}" is not one of {", ".join(choices)}')
        return text

    return check


def integer_within(least: int, most: int) -> Callable[[int, str], int]:
    """Return a check for whole numbers."""

    def check(value: int, key: str) -> int:
        if not least <= value <= most:
            raise ConfigError(f"{key}: {value} is not a number from {least} to {most}")
        return value

    return check


def duration_within(least: timedelta, most: timedelta) -> Callable[[timedelta, str], timedelta]:
    """Return a check for durations."""

    def check(value: timedelta, key: str) -> timedelta:
        if not least <= value <= most:
            raise ConfigError(f"{key}: give a duration from {_whole_hours(least)} to {_whole_hours(most)}")
        return value

    return check


def _whole_hours(value: timedelta) -> str:
    """Return `24h`, or seconds when there is a part of an hour."""
    seconds = int(value.total_seconds())
    return f"{seconds // 3600}h" if seconds and seconds % 3600 == 0 else f"{seconds}s"


def https_url(text: str, key: str) -> str:
    """Return `text` when it is an https URL of a host, without user, query or fragment."""
    if names_user(text):
        raise ConfigError(f"{key}: the URL must have no user, query or fragment; in a path, @ is written as %40")
    try:
        parts = urlsplit(text)
        named = parts.scheme == "https" and parts.hostname and parts.port != 0
    except ValueError:
        named = False
    if not named or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(f"{key}: {shown_value(text)} is not an https URL")
    if "?" in text or "#" in text:
        raise ConfigError(f"{key}: the URL must have no user, query or fragment")
    return text


# Declaration of a setting: its name, type, default, meaning and check, once.
#
# - The settings of one subject are a frozen dataclass below `Settings`. Each field is one setting, declared by `setting`, and the
#   type checker knows its type. Checks that need several values stand in `__post_init__`.
# - The name of a field is the flag with underscores: `audit_log_maxage` is `--audit-log-maxage`, `MOORING_AUDIT_LOG_MAXAGE` and
#   the key `audit-log-maxage`. Flags carry kube-apiserver's and kubeadm's names where those have one.
# - `Settings.read` checks values once and makes them typed. A ConfigError begins with the key and says what to give.

U = TypeVar("U")

_DECLARATION = "setting"
"""Key of the declaration in the metadata of a dataclass field."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """One declared setting."""

    name: str
    """The flag without its dashes, which is also the key of the configuration file."""
    value_type: ValueType[Any]
    default: Any
    """The value before `parse`, as the command line would give it."""
    meaning: str
    metavar: str = ""
    default_note: str = ""
    """Describes a default that depends on the machine or on other settings."""
    former_name: str = ""
    """Flag that kube-apiserver once had for this; it is accepted on the command line, and not documented."""
    secret: bool = False
    """The value appears in no `repr`. It may be any bytes: `parse` makes a Secret of it."""
    flag: bool = True
    """False for a setting that only the configuration file can hold."""
    short: str = ""
    """The flag of one letter, without its dash."""
    positional: bool = False
    """True for the arguments of the command, which have no flag."""
    everyday: bool = False
    """True for one that the short help of a command with many flags shows."""
    subject: str = ""
    """Heading of its subject."""
    own_variable: str = ""
    """Environment variable, where `MOORING_<FLAG>` means something else, or another program has one."""
    parse: Callable[[Any, str], Any] | None = None

    @property
    def field(self) -> str:
        """Name of the field of the dataclass, and of the command's parameter."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Environment variable of the setting."""
        return self.own_variable or f"MOORING_{self.field.upper()}"

    def checked(self, value: Any) -> Any:
        """Return the value to keep for the one that was given. Raises ConfigError naming the key."""
        normalised = self.value_type.normalise(value)
        # A secret may be any bytes.
        if not self.secret and not _is_encodable(normalised):
            raise ConfigError(f"{self.name}: the value is not valid UTF-8; choose a name of UTF-8 characters")
        return normalised if self.parse is None else self.parse(normalised, self.name)


def _is_encodable(value: Any) -> bool:
    """Return False for bytes of an argument, a variable or a path that are not UTF-8: URLs and objects cannot hold them."""
    if isinstance(value, tuple):
        return all(map(_is_encodable, value))
    return not isinstance(value, str) or not any("\ud800" <= character <= "\udfff" for character in value)


class _MoreOfFile(TypedDict, total=False):
    """Fields of a declaration that most leave out."""

    default_note: str
    former_name: str
    secret: bool
    flag: bool
    short: str
    positional: bool
    everyday: bool
    own_variable: str


class _More(_MoreOfFile, total=False):
    metavar: str


@overload
def setting(value_type: ValueType[T], *, default: T, meaning: str, **more: Unpack[_More]) -> T: ...


@overload
def setting(
    value_type: ValueType[T], *, default: T, meaning: str, parse: Callable[[T, str], U], **more: Unpack[_More]
) -> U: ...


def setting(value_type: ValueType[Any], *, default: Any, **rest: Any) -> Any:
    """Declare a setting, as the default of a field of a `Settings` dataclass.

    `parse` checks a value and returns the one to keep: it is called with the value and the key, and raises ConfigError.
    """
    declared = Setting(name="", value_type=value_type, default=default, **rest)
    # The default is checked as any other value, so that a wrong one fails at import, and is kept in the same form.
    return field(default=declared.checked(default), repr=not declared.secret, metadata={_DECLARATION: declared})


def _path(text: str, key: str) -> str:
    return text


def file_setting(meaning: str, *, parse: Callable[[str, str], str] = _path, **more: Unpack[_MoreOfFile]) -> str:
    """Declare a setting that is the path of a file, empty by default."""
    return setting(TEXT, default="", meaning=meaning, metavar="FILE", parse=parse, **more)


@dataclass(frozen=True, slots=True)
class Settings:
    """Base of the settings of one subject."""

    heading: ClassVar[str]
    """Name of the subject in the reference page."""

    @classmethod
    @cache
    def declared(cls) -> tuple[Setting, ...]:
        """Return the declarations, in order."""
        return tuple(
            # The name is known here only: a declaration is made before its field has one.
            replace(one.metadata[_DECLARATION], name=one.name.replace("_", "-"), subject=cls.heading)
            for one in fields(cls)
        )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Check and keep the values of these settings, by field name; a missing one has its default. Raises ConfigError."""
        return cls(**{one.field: one.checked(values[one.field]) for one in cls.declared() if one.field in values})
