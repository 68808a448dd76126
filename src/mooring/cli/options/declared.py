"""Flags of the command line, made from declared settings.

- Every setting can also be given as its environment variable; the command line wins. An error names the one that was used.
- A boolean may stand alone or take a value: `--anonymous-auth`, `--anonymous-auth=false`.
- Wrong types are usage errors of click; what a value means is checked by the declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import click
from click.core import ParameterSource

from mooring.cli.options.flags import DURATION as GO_DURATION
from mooring.cli.options.flags import Option, WholeNumber, options_of
from mooring.duration import format_duration
from mooring.settings.declaration import (
    BOOLEAN,
    COMMA_SEPARATED,
    COUNT,
    DURATION,
    INTEGER,
    LINES,
    MAX_PORT,
    NUMBER,
    OPTIONAL_BOOLEAN,
    OPTIONAL_DURATION,
    OPTIONAL_PORT,
    OPTIONAL_TEXT,
    PORT,
    SWITCH,
    TEXT,
    TEXTS,
    Setting,
    ValueType,
)


class LineText(click.types.StringParamType):
    """A text of which a variable holds one on each line."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [line for line in rv.splitlines() if line.strip()]


_BOOLEAN: Mapping[str, Any] = {"type": bool, "is_flag": False, "flag_value": "true", "metavar": "BOOL"}
OPTION_ARGUMENTS: Mapping[ValueType[Any], Mapping[str, Any]] = {
    TEXT: {},
    OPTIONAL_TEXT: {},
    BOOLEAN: _BOOLEAN,
    OPTIONAL_BOOLEAN: _BOOLEAN,
    SWITCH: {"is_flag": True},
    INTEGER: {"type": int},
    COUNT: {},
    PORT: {"type": WholeNumber(0, MAX_PORT)},
    OPTIONAL_PORT: {"type": WholeNumber(0, MAX_PORT)},
    NUMBER: {"type": float},
    DURATION: {"type": GO_DURATION},
    OPTIONAL_DURATION: {"type": GO_DURATION},
    TEXTS: {"multiple": True},
    LINES: {"multiple": True, "type": LineText()},
    COMMA_SEPARATED: {"multiple": True},
}
"""Arguments of click.option for a setting of each type that has a flag."""


class DeclaredOption(click.Option):
    """A flag whose errors name the variable where the value came from there, with its place in a help by subject."""

    def __init__(self, *arguments: Any, subject: str = "", everyday: bool = False, **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self.subject = subject
        self.everyday = everyday

    def get_error_hint(self, ctx: click.Context | None) -> str:
        if ctx is not None and ctx.get_parameter_source(str(self.name)) is ParameterSource.ENVIRONMENT:
            return f"'{self.envvar}'"
        return click.Parameter.get_error_hint(self, ctx)


class RenamedOption(DeclaredOption):
    """A flag that is also accepted under the name that it had in kube-apiserver, which no help shows."""

    def __init__(self, *arguments: Any, former_name: str, **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self._former_name = former_name

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        parser.add_option(self, [f"--{self._former_name}"], dest=self.name, action="store", nargs=1)


def shown_default(setting: Setting) -> Any:
    """Return the default as the command line would write it."""
    return format_duration(setting.default) if isinstance(setting.default, timedelta) else setting.default


def settings_options(settings: Iterable[Setting], *, variables: bool = True) -> Option:
    """Return a decorator that adds the flag of each setting to a command, in order, and its variable if `variables` is True."""
    return options_of(*(_option(one, one.variable if variables else None) for one in settings if one.flag))


def _option(setting: Setting, variable: str | None) -> Option:
    if setting.positional:
        return click.argument(setting.field, nargs=-1, envvar=variable)
    default = shown_default(setting)
    note = f" [default: {setting.default_note}]" if setting.default_note else ""
    choices = setting.value_type.choices
    arguments: dict[str, Any] = {"type": click.Choice(choices)} if choices else {**OPTION_ARGUMENTS[setting.value_type]}
    if setting.metavar:
        arguments["metavar"] = setting.metavar
    if setting.former_name:
        arguments |= {"former_name": setting.former_name}
    return click.option(
        f"--{setting.name}",
        *((f"-{setting.short}",) if setting.short else ()),
        cls=RenamedOption if setting.former_name else DeclaredOption,
        help=setting.meaning + note,
        envvar=variable,
        show_envvar=True,
        default=(default or None) if choices else default,
        show_default=not note and default not in ("", (), None),
        subject=setting.subject,
        everyday=setting.everyday,
        **arguments,
    )
