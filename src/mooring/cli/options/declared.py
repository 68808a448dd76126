"""Flags of the command line, made from declared settings.

- Every setting can also be given as the environment variable `MOORING_<FLAG>`; the command line wins.
- A boolean may stand alone or take a value: `--anonymous-auth`, `--anonymous-auth=false`.
- Wrong types are usage errors of click; what a value means is checked by the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import click

from mooring.cli.options.flags import DURATION as GO_DURATION
from mooring.duration import format_duration
from mooring.settings.declaration import Setting
from mooring.settings.kinds import (
    BOOLEAN,
    COMMA_SEPARATED,
    COUNT,
    DURATION,
    INTEGER,
    MAX_PORT,
    NUMBER,
    OPTIONAL_BOOLEAN,
    OPTIONAL_TEXT,
    PORT,
    TEXT,
    TEXTS,
    ValueType,
)

P = ParamSpec("P")
R = TypeVar("R")

_SWITCH: Mapping[str, Any] = {"type": bool, "is_flag": False, "flag_value": "true", "metavar": "BOOL"}
OPTION_ARGUMENTS: Mapping[ValueType[Any], Mapping[str, Any]] = {
    TEXT: {},
    OPTIONAL_TEXT: {},
    BOOLEAN: _SWITCH,
    OPTIONAL_BOOLEAN: _SWITCH,
    INTEGER: {"type": int},
    COUNT: {},
    PORT: {"type": click.IntRange(0, MAX_PORT)},
    NUMBER: {"type": float},
    DURATION: {"type": GO_DURATION},
    TEXTS: {"multiple": True},
    COMMA_SEPARATED: {"multiple": True},
}
"""Arguments of click.option for a setting of each kind that has a flag."""


class RenamedOption(click.Option):
    """A flag that is also accepted under the name that it had in kube-apiserver, which no help shows."""

    def __init__(self, *arguments: Any, former_name: str, **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self._former_name = former_name

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        parser.add_option(self, [f"--{self._former_name}"], dest=self.name, action="store", nargs=1)


def environment_variable(name: str) -> str:
    """Return the environment variable of a flag, given without its dashes."""
    return f"MOORING_{name.replace('-', '_').upper()}"


def shown_default(setting: Setting) -> Any:
    """Return the default as the command line would write it."""
    return format_duration(setting.default) if isinstance(setting.default, timedelta) else setting.default


def settings_options(settings: Iterable[Setting]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that adds the flag of each setting to a command, in order."""
    options = [_option(one) for one in settings if one.flag]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        for add in reversed(options):
            function = add(function)
        return function

    return decorate


def _option(setting: Setting) -> Callable[[Callable[P, R]], Callable[P, R]]:
    default = shown_default(setting)
    note = f" [default: {setting.default_note}]" if setting.default_note else ""
    arguments = {**OPTION_ARGUMENTS[setting.kind]}
    if setting.metavar:
        arguments["metavar"] = setting.metavar
    if setting.former_name:
        arguments |= {"cls": RenamedOption, "former_name": setting.former_name}
    return click.option(
        f"--{setting.name}",
        help=setting.meaning + note,
        envvar=environment_variable(setting.name),
        show_envvar=True,
        default=default,
        show_default=not note and default not in ("", (), None),
        **arguments,
    )
