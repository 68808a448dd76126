"""Types and helpers of flags that several commands share.

Durations are written as Go writes them (`24h0m0s`, `90s`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import click

from mooring.duration import parse_duration
from mooring.errors import ConfigError

Command = Callable[..., Any]
"""The function of a command, which gets the values of its flags by name."""
Option = Callable[[Command], Command]
"""Adds a flag, an argument or several of them to a command."""


def options_of(*options: Option) -> Option:
    """Return one option that adds all of these, in their order in the help."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class GoDuration(click.ParamType[timedelta]):
    """`24h`, `1h30m`, `90s`, `0`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(value)
        except ValueError:
            self.fail(f'"{value}" is not a duration; write it like 24h, 1h30m or 90s', param, ctx)


DURATION = GoDuration()


@contextmanager
def usage() -> Iterator[None]:
    """Report a wrong value of the command line as a usage error, with exit code 2. No file may be read within."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
