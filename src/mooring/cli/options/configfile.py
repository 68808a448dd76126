"""Configuration file of a server (`--config FILE`): read, checked, and put under the command line.

- A key is the name of a setting: the flag without its dashes. Lists are for flags that may be repeated; durations are texts, as on
  the command line (`5s`); booleans are `true` or `false`.
- The command line wins over the environment, the environment over the file, the file over the default.
- Reading is strict: unknown keys (with the nearest known one), keys that are there twice and wrong types are refused, all at once,
  each with its line. Values are never repeated: some are secrets.
- Write access to the file decides who may call the server: a file that every user may write is refused, and so is one in the
  default place that belongs to a user other than root and this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from mooring.cli.options.flags import Option
from mooring.client.files import read_limited, refuse_other_writers
from mooring.errors import ConfigError
from mooring.settings.declaration import Setting

DEFAULT_PATH = "/etc/mooring/config.yaml"
MAX_BYTES = 1 << 20
"""Largest file: sixty settings and sixteen authenticators have a few kB."""
NOT_KEYS = frozenset({"config", "help", "verbose", "log-format", "token", "token-ttl", "skip-token-print"})
"""Flags of one run, or secrets of one start: they are given on the command line or in the environment."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Mistake in the value of a key, or in the file when `key` is empty. `line` is 0 when it is not known."""

    key: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return where + (f'"{self.key}": {self.text}' if self.key else self.text)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Content of a file: `values` by the name of the setting's field, and the mistakes in the rest."""

    path: str
    values: Mapping[str, Any] = field(repr=False)
    problems: tuple[Problem, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)
    """Line of each key."""


def config_option(settings: Sequence[Setting]) -> Option:
    """Return a decorator that adds `--config` to a command with the flags of these settings."""

    def take(ctx: click.Context, parameter: click.Parameter, value: str | None) -> ConfigFile | None:
        return None if ctx.resilient_parsing else _put_under_command_line(ctx, value, settings)

    return click.option(
        "--config",
        help="YAML file whose keys are flags without their dashes in front; flags and environment win over it. "
        f"[default: {DEFAULT_PATH}, if it is there]",
        envvar="MOORING_CONFIG",
        show_envvar=True,
        default=None,
        metavar="FILE",
        is_eager=True,
        callback=take,
    )


def _put_under_command_line(ctx: click.Context, value: str | None, settings: Sequence[Setting]) -> ConfigFile | None:
    """Read the file and make its values the defaults of the other flags. Raises ConfigError."""
    path = default_path() if value is None else value
    if not path:
        return None
    found = read(path, settings, named=value is not None)
    if found.problems:
        raise ConfigError(f"{path}: " + "; ".join(map(str, found.problems)))
    ctx.default_map = dict(found.values)
    return found


def default_path() -> str:
    """Return the file that is used when none is named; "" when it is not there."""
    return DEFAULT_PATH if Path(DEFAULT_PATH).exists() else ""


def read(path: str, settings: Iterable[Setting], *, named: bool = True) -> ConfigFile:
    """Read the values of these settings from a file. `named`: the operator chose the path.

    Raises ConfigError when it cannot be read at all; mistakes in single keys are in `problems`.
    """
    # PyYAML is not needed without a file.
    from mooring.apimachinery.codec.yaml import YamlError, read_yaml

    refuse_other_writers(Path(path), "could then log in as any user", named=named)
    data = read_limited(Path(path), MAX_BYTES)
    try:
        document = read_yaml(data)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the file is not UTF-8 text") from None
    except YamlError as error:
        raise ConfigError(f"{path}: yaml: {error}") from None
    if document.value is None:
        return ConfigFile(path, {})
    if not isinstance(document.value, dict):
        raise ConfigError(f"{path}: a configuration is keys with values; write for example data-dir: /var/lib/mooring")
    return _checked(path, document.value, {one.name: one for one in settings}, document.top_level_keys)


def _checked(
    path: str, document: Mapping[str, Any], settings: Mapping[str, Setting], keys: Sequence[tuple[str, int]]
) -> ConfigFile:
    problems: list[Problem] = []
    lines: dict[str, int] = {}
    for key, line in keys:
        if key in lines:
            problems.append(Problem(key, line, f"it is there twice, first in line {lines[key]}"))
        lines.setdefault(key, line)
    values: dict[str, Any] = {}
    for key, value in document.items():
        setting = settings.get(key)
        try:
            if setting is None:
                raise ValueError(_unknown(key, settings))
            values[setting.field] = setting.value_type.from_file(value)
        except ValueError as error:
            problems.append(Problem(key, lines.get(key, 0), str(error)))
    problems.sort(key=lambda problem: problem.line)
    return ConfigFile(path, values, tuple(problems), lines)


def _unknown(key: str, known: Iterable[str]) -> str:
    """Return the error for a key that no setting has."""
    plain = key.lstrip("-").replace("_", "-").lower()
    if plain in NOT_KEYS:
        return "it cannot be set in this file; give it as a flag, or in the environment"
    near = get_close_matches(plain, list(known), n=1)
    return f'unknown key, did you mean "{near[0]}"?' if near else "unknown key"
