"""How a flag of a server is declared, and the types of its values.

Rules kept here: every server flag can also be given as the environment variable `MOORING_<FLAG>`; the command line wins. Durations
are written as Go writes them (`24h0m0s`, `90s`). Lists may be repeated, or given once with commas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import click

from mooring.apimachinery.duration import parse_duration
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


class Renamed(click.Option):
    """A flag that is understood under the name it had in kube-apiserver, too: `former`, which no help shows."""

    def __init__(self, *arguments: Any, former: str, **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self._former = former

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        parser.add_option(self, [self._former], dest=self.name, action="store", nargs=1)


@contextmanager
def usage() -> Iterator[None]:
    """Report a wrong value of the command line as a usage error, with exit code 2. No file may be read within."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def listed(values: Sequence[str]) -> tuple[str, ...]:
    """The items of a repeatable flag whose values may also hold commas; empty items are dropped, order is kept."""
    return tuple(item for value in values for item in (part.strip() for part in value.split(",")) if item)


def flag(name: str, text: str, **rest: Any) -> Decorator[..., Any]:
    """A flag of a server, with its environment variable."""
    environment = "MOORING_" + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, help=text, envvar=environment, show_envvar=True, **rest)
