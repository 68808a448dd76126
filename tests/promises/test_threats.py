"""Each threat of `docs/threats` is held by a promise or by a test that exists, and the pages are linked from the threat model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.promises.table import ROOT, exists
from tests.promises.test_table import PROMISES

FOLDER = ROOT / "docs/threats"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")
COLUMNS = ["boundary", "threat", "measure", "held by", "what remains"]
ACCEPTED = "nothing: it is accepted"
"""Cell of a threat that no measure stops: the column beside it says what to do."""
_PROMISE = re.compile(r"\]\(\.\./promises\.md#([\w-]+)\)")
_TEST = re.compile(r"\[`(test_\w+)`\]\(\.\./\.\./(tests/[\w/]+\.py)\)")
_FOLDER = re.compile(r"\]\(\.\./\.\./(tests/[\w/]+)\)")


def rows(page: Path) -> list[list[str]]:
    """Return the cells of each row of the page's table, its heading first."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def unheld(held_by: str) -> list[str]:
    """Return what is wrong with the cell that says which promise or test holds a threat."""
    keys = {promise.key for promise in PROMISES}
    cited = [*_PROMISE.findall(held_by), *_TEST.findall(held_by), *_FOLDER.findall(held_by)]
    if not cited and held_by != ACCEPTED:
        return [f"no promise and no test: {held_by}"]
    wrong = [f"no promise {key}" for key in _PROMISE.findall(held_by) if key not in keys]
    wrong += [f"no test {file}::{name}" for name, file in _TEST.findall(held_by) if not exists(f"{file}::{name}")]
    return wrong + [f"no folder {folder}" for folder in _FOLDER.findall(held_by) if not (ROOT / folder).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_threat_is_held_by_a_promise_or_a_test(page: Path) -> None:
    heading, *threats = rows(page)
    assert heading == COLUMNS
    assert threats
    assert [row for row in threats if len(row) != len(COLUMNS) or not all(row)] == []
    assert [row for row in threats if not re.match(r"\*\*[STRIDE]\*\* ", row[1])] == []
    assert {row[1]: wrong for row in threats if (wrong := unheld(row[3]))} == {}


def test_a_row_that_nothing_holds_is_found() -> None:
    assert unheld("the code") == ["no promise and no test: the code"]
    assert unheld("[A](../promises.md#no-such-promise)") == ["no promise no-such-promise"]
    assert unheld("[`test_no`](../../tests/promises/test_threats.py)") == [
        "no test tests/promises/test_threats.py::test_no"
    ]
    assert unheld(ACCEPTED) == []


def test_each_page_is_linked_from_the_threat_model_and_the_index() -> None:
    model, index = (ROOT / "THREAT_MODEL.md").read_text(), (FOLDER / "index.md").read_text()
    assert [page.name for page in PAGES if f"(docs/threats/{page.name})" not in model] == []
    assert [page.name for page in PAGES if f"({page.name})" not in index] == []


def test_the_index_counts_the_threats() -> None:
    counted = dict(
        re.findall(r"^\| \[[^\]]+\]\(([\w-]+\.md)\) \|.*\| (\d+) \|$", (FOLDER / "index.md").read_text(), re.M)
    )
    assert counted == {page.name: str(len(rows(page)) - 1) for page in PAGES}


def test_each_promise_that_people_attack_answers_a_threat() -> None:
    """A promise that no threat cites would be one without an attacker, or a threat that is missing."""
    cited = {key for page in PAGES for key in _PROMISE.findall(page.read_text())}
    assert sorted(promise.key for promise in PROMISES if promise.key not in cited) == []
