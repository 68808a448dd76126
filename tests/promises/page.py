"""Page of the promises, `docs/promises.md`, written by `python -m tests.generated --write`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.promises.columns import Cell, Documented, Door, Moment, Never, Promise, Proof
from tests.promises.rows import GROUPS

NOTE = "<!-- Made by `python -m tests.generated --write` from tests/promises. Do not edit. -->"
INTRODUCTION = """\
Each promise of the security pages stands here once, as one sentence. Below it is what holds it for each **door** (a way into the
cluster) and at each **moment** (a time at which it could be judged on evidence that no longer holds):

- a **test**, which fails when the promise is broken there;
- *cannot happen*, with the reason;
- *exception*, with the page that describes it.

[The table](../tests/promises/rows.py) is code, and `make check` compares this page with it. Sequences of events at random doors and
moments are tried by [tests of properties](../tests/promises/test_properties.py). What attackers try, and what remains, is in the
[threat model](../THREAT_MODEL.md)."""


def promises_page() -> str:
    """Return the page: one section for each gate, one heading for each promise."""
    lines = ["# Promises", "", NOTE, "", INTRODUCTION, "", "| about | promises |", "|---|---|"]
    for group, rows in GROUPS.items():
        anchor = group.lower().replace(" ", "-")
        lines.append(f"| [{group}](#{anchor}) | {', '.join(f'[{title(row)}](#{row.key})' for row in rows)} |")
    for group, rows in GROUPS.items():
        lines += ["", f"## {group}"]
        for row in rows:
            lines += ["", f"### {title(row)}", "", row.sentence, "", "| door or moment | held by |", "|---|---|"]
            lines += [*_rows(row.doors), *_rows(row.moments)]
    return "\n".join([*lines, ""])


def title(promise: Promise) -> str:
    """Return the heading of a promise, whose anchor is its key."""
    return promise.key.replace("-", " ").capitalize()


def _rows(cells: Mapping[Door, Cell] | Mapping[Moment, Cell]) -> Iterator[str]:
    """Yield one line for all columns that are held in the same way."""
    columns: dict[Cell, list[str]] = {}
    for column, cell in cells.items():
        columns.setdefault(cell, []).append(str(column))
    for cell, names in columns.items():
        yield f"| {', '.join(names)} | {_held_by(cell)} |"


def _held_by(cell: Cell) -> str:
    match cell:
        case Proof(test):
            file, _, name = test.partition("::")
            return f"[`{name}`](../{file})"
        case Never(why):
            return f"*cannot happen*: {_text(why)}"
        case Documented(what, page):
            path, _, heading = page.partition("#")
            target = path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"
            return f"*exception*: {_text(what)} [Read more]({target}{f'#{heading}' if heading else ''})"


def _text(sentence: str) -> str:
    return " ".join(sentence.split()).replace("|", "\\|").replace("<", "&lt;")
