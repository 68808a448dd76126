"""Page of the promises, `docs/promises.md`, written by `python -m tests.generated --write`."""

from __future__ import annotations

from collections.abc import Mapping

from tests.promises.table import DOORS, MOMENTS, Promise, exception, groups

NOTE = "<!-- Made by `python -m tests.generated --write` from tests/promises. Do not edit. -->"
INTRODUCTION = """\
Each promise of the security pages, in one sentence. The table below it says what holds it at each door (a way into the cluster) and
at each moment (a time at which it could be judged on outdated evidence): a test that fails when the promise is broken there, *in
italics* why it cannot be broken there, or an *exception* with its page. *Doors* and *moments* are all others.
Random sequences of events are tried by [tests of properties](../tests/promises/test_properties.py). What attackers try, and what
remains, is in the [threat model](../THREAT_MODEL.md)."""


def promises_page() -> str:
    """Return the page: one section for each gate, one heading for each promise."""
    lines = ["# Promises", "", NOTE, "", INTRODUCTION, "", *_legend("doors", DOORS), "", *_legend("moments", MOMENTS)]
    for group, promises in groups().items():
        lines += ["", f"## {group}"]
        for promise in promises:
            lines += ["", f"### {title(promise)}", "", promise.sentence, "", "|at|held by|", "|-|-|"]
            lines += [f"|{columns}|{_held_by(cell)}|" for columns, cell in promise.rows()]
    return "\n".join([*lines, ""])


def title(promise: Promise) -> str:
    """Return the heading of a promise, whose anchor is its key."""
    return promise.key.replace("-", " ").capitalize()


def _legend(name: str, columns: Mapping[str, str]) -> list[str]:
    return [f"|{name}|meaning|", "|-|-|", *(f"|{column}|{meaning}|" for column, meaning in columns.items())]


def _held_by(cell: str) -> str:
    if cell.startswith("tests/"):
        file, _, name = cell.partition("::")
        return f"[`{name}`](../{file})"
    if (found := exception(cell)) is None:
        return f"*{cell.removeprefix('never: ')}*"
    phrase, page = found
    return f"*exception*: [{phrase}]({page.removeprefix('docs/') if page.startswith('docs/') else f'../{page}'})"
