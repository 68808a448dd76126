"""Progress of a join on standard output.

Rules kept here: each finished step is one line, `[step] text (12 ms)`. A terminal also shows the present state of a step in a line
that is replaced; warnings, failures and plans stay. The names of steps are an interface (`mooring.agent.steps`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mooring.agent.steps import Progress, Report
from mooring.cli.printing.output import clean, echo
from mooring.cli.printing.redaction import redacted


def line(progress: Progress) -> str:
    """Return `[step] text (12 ms)`, without the time while the step runs."""
    text = redacted(clean(progress.message))
    return f"[{progress.step}] {text}" + ("" if progress.seconds is None else f" ({elapsed(progress.seconds)})")


def elapsed(seconds: float) -> str:
    """Return a duration such as `12 ms` or `1.3 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


@contextmanager
def progress_printer() -> Iterator[Report]:
    """Yield the function that prints the progress of one join, with a spinner on a terminal."""
    if not sys.stdout.isatty():
        yield lambda progress: echo(line(progress))
        return
    from rich.console import Console  # only a terminal needs it

    console = Console(highlight=False, soft_wrap=True)
    with console.status("joining") as status:

        def report(progress: Progress) -> None:
            if progress.transient:
                status.update(f"{progress.step}: {clean(redacted(progress.message))}".replace("[", "\\["))
            else:
                console.print(line(progress), markup=False)

        yield report
