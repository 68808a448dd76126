"""One file for all flags of a server (`--config FILE`): read, checked, and put under the command line.

Rules kept here:
* A key is the name of a flag without its dashes in front. Lists are for flags that may be repeated; durations are texts, as on the
  command line (`5s`); truth is `true` or `false`.
* The command line wins over the environment, the environment over the file, the file over the default.
* Reading is strict: unknown keys (with the nearest known one), keys that are there twice and wrong types are refused, all at once,
  each with its line. Values are never repeated: some are secrets.
* `authenticators` has no flag: it lists authenticators of the operator's own (docs/authentication/index.md).
* Who may write the file is who may decide on who may call: one that everybody may write is refused, and so is one in the default
  place that belongs to somebody else than root and this user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from mooring.apimachinery.duration import parse_duration
from mooring.cli.options.flags import GoDuration, flag
from mooring.client.files import read_limited
from mooring.errors import ConfigError, MooringError

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_PATH = "/etc/mooring/config.yaml"
MAX_BYTES = 1 << 20
"""Sixty flags and sixteen authenticators have a few kB."""
AUTHENTICATORS = "authenticators"
OWN_DURATIONS = ("deadline", "cache-ttl")
"""Keys of an entry of `authenticators` that are durations."""
NOT_KEYS = frozenset({"config", "help", "verbose", "token", "token-ttl", "skip-token-print"})
"""Flags of one run, or secrets of one start: they are said on the command line or in the environment."""
ROOT = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one key; without a key, `text` says all. `line` is 0 when it is not known."""

    key: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return where + (f'"{self.key}": {self.text}' if self.key else self.text)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says: `values` by the name of the command's parameter, and what was wrong with the rest."""

    path: str
    values: Mapping[str, Any]
    authenticators: tuple[Any, ...] = ()
    problems: tuple[Problem, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)
    """Where each key is."""


def config_option(function: Callable[P, R]) -> Callable[P, R]:
    """Add `--config`; it must be the option of a command with the flags of a server."""
    return flag(
        "--config",
        "YAML file whose keys are flags without their dashes in front; flags and environment win over it. "
        f"[default: {DEFAULT_PATH}, if it is there]",
        default=None,
        metavar="FILE",
        is_eager=True,
        callback=_take,
    )(function)


def _take(ctx: click.Context, parameter: click.Parameter, value: str | None) -> ConfigFile | None:
    """The file, put under the command line before the other flags are looked at. Raises ConfigError."""
    if ctx.resilient_parsing:
        return None
    path = default_path() if value is None else value
    if not path:
        return None
    found = read(path, ctx.command.params, named=value is not None)
    if found.problems:
        raise ConfigError(f"{path}: " + "; ".join(map(str, found.problems)))
    ctx.default_map = dict(found.values)
    return found


def default_path() -> str:
    """The file that is used when none is named; "" when it is not there."""
    return DEFAULT_PATH if Path(DEFAULT_PATH).exists() else ""


def options_by_key(parameters: Iterable[click.Parameter]) -> dict[str, click.Option]:
    """The flags that a file may say, by key."""
    named = ((one.opts[0].lstrip("-"), one) for one in parameters if isinstance(one, click.Option))
    return {key: option for key, option in named if key not in NOT_KEYS}


def read(path: str, parameters: Iterable[click.Parameter], *, named: bool = True) -> ConfigFile:
    """What the file at `path` says of these flags. `named`: the operator chose the path.

    Raises ConfigError when it cannot be read at all; what is wrong with single keys is in `problems`.
    """
    from mooring.apimachinery.codec.yaml import decode_yaml  # PyYAML is not needed without a file

    _refuse_strangers(Path(path), named=named)
    data = read_limited(Path(path), MAX_BYTES)
    try:
        text = data.decode()
        document, _ = decode_yaml(text)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the file is not UTF-8 text") from None
    except MooringError as error:
        raise ConfigError(f"{path}: {error}") from None
    if document is None:
        return ConfigFile(path, {})
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: a configuration is keys with values; write for example data-dir: /var/lib/mooring")
    return _checked(path, document, dict(options_by_key(parameters)), list(_keys(text)))


def _refuse_strangers(path: Path, *, named: bool) -> None:
    try:
        found = path.stat()
    except OSError:
        return  # reading it says why
    if found.st_mode & stat.S_IWOTH and stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} can be written by everybody, who could let in anybody; run chmod go-w on it")
    if not named and found.st_uid not in (os.geteuid(), ROOT):
        raise ConfigError(f"{path} belongs to another user; give it to root with chown, or name it with --config")


def _keys(text: str) -> Iterator[tuple[str, int]]:
    """Every key at the top with its line, repetitions too. `text` was read before: it is well-formed."""
    import yaml

    depth, is_key = 0, False
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            is_key = depth == 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            is_key = depth == 1
        elif isinstance(event, yaml.NodeEvent) and depth == 1:
            if is_key and isinstance(event, yaml.ScalarEvent):
                yield str(event.value), event.start_mark.line + 1 if event.start_mark else 0
            is_key = not is_key


def _checked(
    path: str, document: Mapping[str, Any], options: Mapping[str, click.Option], keys: list[tuple[str, int]]
) -> ConfigFile:
    problems: list[Problem] = []
    lines: dict[str, int] = {}
    for key, line in keys:
        if key in lines:
            problems.append(Problem(key, line, f"it is there twice, first in line {lines[key]}"))
        lines.setdefault(key, line)
    values: dict[str, Any] = {}
    authenticators: tuple[Any, ...] = ()
    for key, value in document.items():
        option = options.get(key)
        try:
            if key == AUTHENTICATORS:
                authenticators = tuple(_authenticators(value))
            elif option is None:
                raise ValueError(_unknown(key, (*options, AUTHENTICATORS)))
            else:
                assert option.name is not None  # every flag has one
                values[option.name] = _typed(value, option)
        except ValueError as error:
            problems.append(Problem(key, lines.get(key, 0), str(error)))
    problems.sort(key=lambda problem: problem.line)
    return ConfigFile(path, values, authenticators, tuple(problems), lines)


def _unknown(key: str, known: Iterable[str]) -> str:
    plain = key.lstrip("-").replace("_", "-").lower()
    if plain in NOT_KEYS:
        return "it is no key of this file; give it as a flag, or in the environment"
    near = get_close_matches(plain, list(known), n=1)
    return f'unknown key, did you mean "{near[0]}"?' if near else "unknown key"


def type_of(option: click.Option) -> str:
    """What the value of a key must be, for people."""
    one = _type_of_one(option)
    return f"list of {one}s" if option.multiple else one


def _type_of_one(option: click.Option) -> str:
    kind = option.type
    if isinstance(kind, GoDuration):
        return "duration"
    if isinstance(kind, click.types.BoolParamType):
        return "boolean"
    if isinstance(kind, click.types.IntParamType | click.IntRange):
        return "integer"
    return "number" if isinstance(kind, click.types.FloatParamType) else "text"


def _typed(value: Any, option: click.Option) -> Any:
    """The value for the flag. Raises ValueError that says what to give, and not what was given."""
    if option.multiple:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise ValueError("give a text or a list of texts")
        return listed
    wanted = _type_of_one(option)
    if not _IS[wanted](value):
        raise ValueError(_GIVE[wanted])
    value = str(value) if wanted == "duration" else value  # a bare 0
    try:
        option.type.convert(value, option, None)
    except click.UsageError as error:
        raise ValueError(_GIVE[wanted] if wanted == "duration" else error.message.rstrip(".")) from None
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_duration(value: Any) -> bool:
    return isinstance(value, str) or (_is_number(value) and value == 0)


_IS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and isinstance(value, int),
    "number": _is_number,
    "duration": _is_duration,
}
_GIVE: Mapping[str, str] = {
    "text": "give a text; put quotes around one that looks like a number",
    "boolean": "give true or false",
    "integer": "give a whole number",
    "number": "give a number",
    "duration": "give a duration, such as 5s, 10m or 1h30m",
}


def _authenticators(value: Any) -> Iterator[Any]:
    """The entries, with their durations read; the rest is checked by `mooring.config.authentication`. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("give a list of mappings with name and class")
    for place, entry in enumerate(value):
        if not isinstance(entry, dict):
            yield entry  # refused where its other keys would be looked at
            continue
        yield {key: _own(f"[{place}].{key}", one) if key in OWN_DURATIONS else one for key, one in entry.items()}


def _own(path: str, value: Any) -> timedelta:
    try:
        if _is_duration(value):
            return parse_duration(str(value))
    except ValueError:
        pass
    raise ValueError(f"{path}: {_GIVE['duration']}")
