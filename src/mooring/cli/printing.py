"""Output of commands: plain text, tables, documents and progress."""

from __future__ import annotations

import json
import re
import select
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

# Printable form of untrusted text, for terminals and logs.
#
# Rules kept here: a character that is not printable (control characters, terminal escapes, line and paragraph separators,
# controls of writing direction, zero-width and unassigned ones) becomes a visible escape such as ` `, `` or `‮`. So no text
# begins another line, moves the cursor, or is displayed in another order. A text that is cut ends with the number of missing
# characters.

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_WORDS = re.compile(r"[ -~]*")
"""Printable ASCII: nearly all text matches and needs no check of each character."""


def clean(text: str, limit: int = 0) -> str:
    """Return `text` on one line, printable, and with at most `limit` of its characters unless `limit` is 0."""
    if limit and len(text) > limit:
        return f"{clean(text[:limit])}... ({len(text) - limit} more characters)"
    if _WORDS.fullmatch(text):
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    number = ord(character)
    return _SHORT.get(character) or (
        f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
    )


# Redaction of secrets in messages (law 9).
#
# Rules kept here: of a bootstrap token the public id stays, and of a K10 token the hash. User and password after it, those in a
# URL, a signed token (JWT) and a private key are removed whole. The token in Kubernetes' documentation, which messages show as an
# example, stays. Redaction is the last protection, for messages that repeat input; the messages of this program hold no secrets.

_SECRETS = (
    (re.compile(r"(?<![a-z0-9])(?!abcdef\.0123456789abcdef)([a-z0-9]{6})\.[a-z0-9]{16}(?![a-z0-9])"), r"\1.(redacted)"),
    (re.compile(r"(K10(?:[0-9a-f]{64})?::)[^\s:]{0,253}:\S+"), r"\1(redacted)"),
    (
        re.compile(
            # The text before a JWT, tried once: the work stays linear.
            r"(?<![A-Za-z0-9_-])((?>[A-Za-z0-9_-]*?(?=eyJ)))"
            r"eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+\.[A-Za-z0-9_-]++"
        ),
        r"\1(redacted)",
    ),
    (
        re.compile(
            r"(?<=://)(?:(?:[^\s/@]++@)+"
            # A password with a slash, behind which the address looks like a path; it ends before another URL.
            r"|(?![\d.]+:)[^\s/@:?#\[]++:(?:(?:(?!://)[^\s?#@])*+@)+)"
        ),
        "(redacted)@",
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), "(redacted)"),
)


def redacted(text: str) -> str:
    """Return the text without parts that look like secrets."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


# Progress of a long copy on standard error, on a terminal only.


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str, int], None]]:
    """Yield a function that is told a phase and how many of `total` things it has done."""
    if not sys.stderr.isatty():
        yield lambda phase, done: None
        return
    # Only a terminal needs it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def report(phase: str, done: int) -> None:
            bar.update(task, description=phase, completed=done)

        yield report


# Output of commands: lines, tables, JSON and YAML.
#
# Rules kept here:
# * JSON and YAML output is one complete document with a stable order of keys, never coloured or wrapped.
# * A table is plain text with columns as wide as their content. On a terminal its header is bold.
# * Commands print with `echo`, which makes text of a server printable (`plaintext`), so that it cannot control the terminal or
#   begin another line. Documents keep every character; JSON and YAML escape those that are not printable.

__all__ = ["as_json", "as_yaml", "clean", "draw", "echo", "print_document", "print_table", "table", "token_cell"]

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
    # POLLERR and POLLHUP are reported unasked.
    poller.register(sys.stdout.fileno(), 0)
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


def token_cell(token: str, join_rule: str) -> str:
    """Return the cell for what a certificate was requested with: a token, or a join rule."""
    return token or (f"rule {join_rule}" if join_rule else "")


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
    # Only this format needs PyYAML.
    from mooring.apimachinery.codec.yaml import encode_yaml

    text = encode_yaml(document).decode()
    return (text if _is_printable(text) else encode_yaml(document, ascii_only=True).decode()).rstrip("\n")


def _is_printable(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def print_document(document: Any, form: str) -> None:
    """Print one document as `json` or `yaml`."""
    echo(*(as_yaml(document) if form == "yaml" else as_json(document)).split("\n"))
