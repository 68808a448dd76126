"""The one place where commands print objects: table, JSON, YAML, names.

Rules kept here:
* Machine output is one complete document with a stable order of keys, and never coloured or wrapped.
* Tables are plain text with columns as wide as their content; a terminal gets the header in bold, nothing else differs.
* Commands print with `echo`: text from a server becomes printable there (`plaintext`), so that none drives a terminal or begins a
  line of its own. Documents keep every character, those that are not printable as escapes of JSON or YAML.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from mooring.cli.printing.plaintext import clean

__all__ = ["as_json", "as_yaml", "clean", "echo", "print_document", "print_table", "table"]

GAP = "   "
MAX_CELL = 1024
"""Characters of a table's cell: one long name would otherwise pad every row to its width."""


def echo(*lines: str, err: bool = False) -> None:
    """Print each text on a line of its own, cleaned; without texts an empty line."""
    click.echo("\n".join(map(clean, lines)), err=err)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns; the last one is not padded. No newline at the end."""
    lines = [list(headers), *([clean(cell, MAX_CELL) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; its header is bold on a terminal."""
    header, *rest = table(headers, rows).split("\n")
    click.echo(click.style(header, bold=True) if sys.stdout.isatty() else header)
    if rest:
        echo(*rest)


def as_json(document: Any) -> str:
    """Four spaces of indent, as kubeadm and kubectl print."""
    text = json.dumps(document, indent=4, ensure_ascii=False)
    return text if _is_printable(text) else json.dumps(document, indent=4)


def as_yaml(document: Any) -> str:
    """Block style with sorted keys."""
    from mooring.apimachinery.codec.yaml import encode_yaml  # PyYAML is not needed for anything else

    text = encode_yaml(document).decode()
    return (text if _is_printable(text) else encode_yaml(document, ascii_only=True).decode()).rstrip("\n")


def _is_printable(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def print_document(document: Any, form: str) -> None:
    """Print one document as `json` or `yaml`."""
    echo(*(as_yaml(document) if form == "yaml" else as_json(document)).split("\n"))
