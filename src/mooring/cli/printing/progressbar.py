"""Progress of a long copy on standard error, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str, int], None]]:
    """Yield a function that is told a phase and how many of `total` things it has done."""
    if not sys.stderr.isatty():
        yield lambda phase, done: None
        return
    from rich.console import Console  # only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def report(phase: str, done: int) -> None:
            bar.update(task, description=phase, completed=done)

        yield report
