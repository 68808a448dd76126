"""Output of commands that delete objects: a line for each when it is done, or one document at the end.

Rules kept here: the document lists what was deleted, also when a later deletion fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mooring.cli.printing.output import echo, print_document


@contextmanager
def printed_deletions(form: str, *, dry_run: bool = False) -> Iterator[Callable[[str, str], None]]:
    """Yield the function that takes the name of a deleted object and its line of text."""
    deleted: list[str] = []

    def report(name: str, line: str) -> None:
        deleted.append(name)
        if form in ("text", "name"):
            echo(line if form == "text" else name)

    try:
        yield report
    finally:
        if form in ("json", "yaml"):
            print_document({"kind": "DeleteResult", "dryRun": dry_run, "deleted": deleted}, form)
