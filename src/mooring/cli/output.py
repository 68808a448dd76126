"""The one place where commands print objects: table, JSON, YAML, names.

Rules kept here:
* Machine output is one complete document with a stable order of keys, and never coloured or wrapped.
* Tables are plain text with columns as wide as their content; a terminal gets the header in bold, nothing else differs.
* Text from a server is printed without its control characters: a description must not drive a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

GAP = "   "


def clean(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns; the last one is not padded. No newline at the end."""
    lines = [list(headers), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; its header is bold on a terminal."""
    header, *rest = table(headers, rows).split("\n")
    click.echo(click.style(header, bold=True) if sys.stdout.isatty() else header)
    for line in rest:
        click.echo(line)


def as_json(document: Any) -> str:
    """Four spaces of indent, as kubeadm and kubectl print."""
    return json.dumps(document, indent=4, ensure_ascii=False)


def as_yaml(document: Any) -> str:
    """Block style with sorted keys."""
    from mooring.wire.yamltext import encode_yaml  # PyYAML is not needed for anything else

    return encode_yaml(document).decode().rstrip("\n")


def print_document(document: Any, form: str) -> None:
    """Print one document as `json` or `yaml`."""
    click.echo(as_yaml(document) if form == "yaml" else as_json(document))
