"""Declaration of a setting: its name, type, default, meaning and check, once.

- The settings of one subject are a frozen dataclass below `Settings`. Each field is one setting, declared by `setting`, and the
  type checker knows its type. Checks that need several values stand in `__post_init__`.
- The name of a field is the flag with underscores: `audit_log_maxage` is `--audit-log-maxage`, `MOORING_AUDIT_LOG_MAXAGE` and the
  key `audit-log-maxage`. Flags carry kube-apiserver's and kubeadm's names where those have one.
- `Settings.read` checks values once and makes them typed. A ConfigError begins with the key and says what to give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack, overload

from mooring.errors import ConfigError
from mooring.settings.valuetypes import TEXT, ValueType

T = TypeVar("T")
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
            replace(one.metadata[_DECLARATION], name=one.name.replace("_", "-"), subject=cls.heading)
            for one in fields(cls)
        )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Check and keep the values of these settings, by field name; a missing one has its default. Raises ConfigError."""
        return cls(**{one.field: one.checked(values[one.field]) for one in cls.declared() if one.field in values})
