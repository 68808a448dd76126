"""Help of a command with many flags: the everyday ones, and with `--help-all` every flag by its subject.

Rules kept here: the subjects and the everyday flags are those of the settings' declarations. Flags of the command itself, which no
setting declares, are everyday ones.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import click

from mooring.cli.options.declared import DeclaredOption
from mooring.cli.printing.output import echo

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
