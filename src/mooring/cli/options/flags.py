"""Types and helpers of flags that several commands share.

Durations are written as Go writes them (`24h0m0s`, `90s`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import click

from mooring.duration import parse_duration
from mooring.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
Decorator = Callable[[Callable[P, R]], Callable[P, R]]


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
