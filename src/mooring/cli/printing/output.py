"""Output of commands: lines, tables, JSON and YAML.

Rules kept here:
* JSON and YAML output is one complete document with a stable order of keys, never coloured or wrapped.
* A table is plain text with columns as wide as their content. On a terminal its header is bold.
* Commands print with `echo`, which makes text of a server printable (`plaintext`), so that it cannot control the terminal or begin
  another line. Documents keep every character; JSON and YAML escape those that are not printable.
"""

from __future__ import annotations

import json
import select
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from mooring.cli.printing.plaintext import clean

__all__ = ["as_json", "as_yaml", "clean", "draw", "echo", "print_document", "print_table", "table"]

GAP = "   "
_CLEAR = "\x1b[H\x1b[2J"
"""Control sequences (ECMA-48) that move the cursor home and clear the terminal."""
MAX_CELL = 1024
"""Characters of a cell: a longer one would pad every row to its width."""


def echo(*lines: str, err: bool = False) -> None:
    """Print each text on one line, made printable. Without texts print an empty line."""
    click.echo("\n".join(map(clean, lines)), err=err)


def ask(question: str) -> None:
    """Print a question on stderr, made printable, and stay on its line."""
    click.echo(clean(question), nl=False, err=True)


def check_reader() -> None:
    """Raise BrokenPipeError when the reader of standard output has gone, which a command that waits learns by no write."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)  # POLLERR and POLLHUP are reported unasked
    if poller.poll(0):
        raise BrokenPipeError


def draw(lines: Sequence[str]) -> None:
    """Fill a terminal with lines, made printable: they are cut at its width, and what does not fit is left out."""
    columns, rows = shutil.get_terminal_size()
    click.echo(_CLEAR + "\n".join(clean(line)[:columns] for line in lines[: rows - 1]))


def highlight(line: str) -> None:
    """Print one line, made printable, in yellow on a terminal."""
    click.echo(click.style(clean(line), fg="yellow") if sys.stdout.isatty() else clean(line))


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned columns without a newline at the end. The last column is not padded."""
    lines = [list(headers), *([clean(cell, MAX_CELL) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, with a bold header on a terminal."""
    header, *rest = table(headers, rows).split("\n")
    click.echo(click.style(header, bold=True) if sys.stdout.isatty() else header)
    if rest:
        echo(*rest)


def as_json(document: Any) -> str:
    """Return JSON with an indent of four spaces, as kubeadm and kubectl print it."""
    text = json.dumps(document, indent=4, ensure_ascii=False)
    return text if _is_printable(text) else json.dumps(document, indent=4)


def as_yaml(document: Any) -> str:
    """Return YAML in block style with sorted keys."""
    from mooring.apimachinery.codec.yaml import encode_yaml  # only this format needs PyYAML

    text = encode_yaml(document).decode()
    return (text if _is_printable(text) else encode_yaml(document, ascii_only=True).decode()).rstrip("\n")


def _is_printable(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def print_document(document: Any, form: str) -> None:
    """Print one document as `json` or `yaml`."""
    echo(*(as_yaml(document) if form == "yaml" else as_json(document)).split("\n"))
