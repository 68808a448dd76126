"""Flags of commands, made from declared settings; their help by subject, and reading them again while the command runs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import click
from click.core import ParameterSource

from mooring.cli.options.flags import DURATION as GO_DURATION
from mooring.cli.options.flags import Option, WholeNumber, options_of
from mooring.cli.printing import echo
from mooring.duration import format_duration
from mooring.errors import ConfigError
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

# Flags of the command line, made from declared settings.
#
# - Every setting can also be given as its environment variable; the command line wins. An error names the one that was used.
# - A boolean may stand alone or take a value: `--anonymous-auth`, `--anonymous-auth=false`.
# - Wrong types are usage errors of click; what a value means is checked by the declaration.


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


# Help of a command with many flags: the everyday ones, and with `--help-all` every flag by its subject.
#
# Rules kept here: the subjects and the everyday flags are those of the settings' declarations. Flags of the command itself, which
# no setting declares, are everyday ones.

FEW = 20
"""Flags up to which a command shows all of them: about a screen."""
_ALL = "mooring.help-all"
_VARIABLES = "Each flag is also a variable and a key of the configuration file; --help-all names the variables."


class CommandBySubject(click.Command):
    """A command whose help is short, unless `--help-all` asks for the whole."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [*params, _help_all()] if len(_declared(params)) > FEW else params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        params = self.get_params(ctx)
        declared = _declared(params)
        if len(declared) <= FEW:
            super().format_options(ctx, formatter)
            return
        is_whole = bool(ctx.meta.get(_ALL))
        others = [one for one in params if not isinstance(one, DeclaredOption)]
        everyday = [one for one in declared if one.everyday and not is_whole]
        _write(ctx, formatter, "Options" if is_whole else "Everyday options", [*map(_short, everyday), *others])
        if not is_whole:
            hidden = len(declared) - len(everyday)
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_text(f"{hidden} more flags, by subject: {ctx.command_path} --help-all")
                formatter.write_text(_VARIABLES)
            return
        for subject in dict.fromkeys(one.subject for one in declared):
            _write(ctx, formatter, subject, [one for one in declared if one.subject == subject])


def _declared(params: Sequence[click.Parameter]) -> list[DeclaredOption]:
    return [one for one in params if isinstance(one, DeclaredOption)]


def _short(option: DeclaredOption) -> DeclaredOption:
    """Return the flag without its variable, whose name follows from that of the flag."""
    found = copy.copy(option)
    found.show_envvar = False
    return found


def _write(ctx: click.Context, formatter: click.HelpFormatter, heading: str, params: Sequence[click.Parameter]) -> None:
    records = [record for one in params if (record := one.get_help_record(ctx)) is not None]
    if records:
        with formatter.section(heading):
            formatter.write_dl(records)


def _help_all() -> click.Option:
    def show(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[_ALL] = True
            echo(*ctx.get_help().splitlines())
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show every flag, by subject.",
    )


# Command line that can be read again while the command runs, with the configuration file as it is then.

_ARGUMENTS = "mooring.arguments"


class RepeatableCommand(CommandBySubject):
    """A command that keeps its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)


@contextmanager
def read_again(ctx: click.Context) -> Iterator[dict[str, Any]]:
    """Parse the arguments of a RepeatableCommand again, and yield the values of its flags in a context of their own.

    Raises ConfigError in place of click's errors, also of the block.
    """
    try:
        again = ctx.command.make_context(ctx.info_name, list(ctx.meta[_ARGUMENTS]), parent=ctx.parent)
        with again:
            yield dict(again.params)
    except click.ClickException as error:
        raise ConfigError(error.format_message()) from error
