"""Command line that can be read again while the command runs, with the configuration file as it is then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from mooring.cli.options.bysubject import CommandBySubject
from mooring.errors import ConfigError

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
