"""How a join tells what it does.

Rules kept here: one line a finished step, `[step] text (12 ms)`, on standard output, the same on a terminal and in a log; a
terminal also sees what is being waited for, and keeps of it what is to be read afterwards (warnings, failures, plans). The names
of steps are an interface (`mooring.agent.steps`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mooring.agent.steps import Progress
from mooring.cli.printing.output import clean, echo
from mooring.cli.printing.redaction import redacted

Tell = Callable[[Progress], None]


def line(progress: Progress) -> str:
    """`[step] text (12 ms)`, without the time while the step goes on."""
    text = redacted(clean(progress.message))
    return f"[{progress.step}] {text}" + ("" if progress.seconds is None else f" ({elapsed(progress.seconds)})")


def elapsed(seconds: float) -> str:
    """`12 ms`, `1.3 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


@contextmanager
def told() -> Iterator[Tell]:
    """A teller for one join; on a terminal with a sign of life while something is waited for."""
    if not sys.stdout.isatty():
        yield lambda progress: echo(line(progress))
        return
    from rich.console import Console  # only where somebody looks

    console = Console(highlight=False, soft_wrap=True)
    with console.status("joining") as status:

        def tell(progress: Progress) -> None:
            if progress.transient:
                status.update(f"{progress.step}: {clean(redacted(progress.message))}".replace("[", "\\["))
            else:
                console.print(line(progress), markup=False)

        yield tell
