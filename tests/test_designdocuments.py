"""docs/design-documents.md has a row for each demand of the five documents, each with a test or a page, and counts them.

`tests.citations` follows the links of the page to their files and headings.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.promises.table import ROOT, exists

PAGE = (ROOT / "docs/design-documents.md").read_text()
DEMANDS = {"000": 96, "001": 51, "002": 38, "003": 23, "004": 89}
VERDICTS = ("done", "meant otherwise", "in part", "missing")
COLUMNS = ["demand", "line", "the document wants", "verdict", "held by"]
_TEST = re.compile(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")
_PAGE = re.compile(r"\]\((?!\.\./)([\w/-]+\.md)(?:#[\w-]+)?\)")
_COUNTS = re.compile(r"^\| (?:\[(\d{3}):[^|]+|(all)) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def rows(document: str, page: str = PAGE) -> list[list[str]]:
    """Return the cells of each row about a document, the heading of the table first."""
    section = page.partition(f"\n## {document}: ")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def faults(row: list[str]) -> list[str]:
    """Return what is wrong with a row."""
    if len(row) != len(COLUMNS) or not all(row):
        return ["not a cell for each column"]
    _, line, _, verdict, held_by = row
    tests, pages = _TEST.findall(held_by), _PAGE.findall(held_by)
    wrong = [f"no test {file}::{name}" for name, file in tests if not exists(f"{file}::{name}")]
    wrong += [f"no page {page}" for page in pages if not (ROOT / "docs" / page).is_file()]
    if not tests and not pages:
        wrong.append("no test and no page")
    if verdict not in VERDICTS:
        wrong.append(f"no verdict {verdict}")
    if verdict == "meant otherwise" and "differences.md" not in pages:
        wrong.append("no reason on the page of differences")
    return wrong if re.fullmatch(r"\d+([-,] ?\d+)*", line) else [*wrong, f"no line {line}"]


@pytest.mark.parametrize("document", DEMANDS)
def test_each_demand_of_a_document_has_one_row_with_a_test_or_a_page(document: str) -> None:
    heading, *demands = rows(document)
    assert heading == COLUMNS
    assert [row[0] for row in demands] == [f"{document}-{number}" for number in range(1, DEMANDS[document] + 1)]
    assert {row[0]: wrong for row in demands if (wrong := faults(row))} == {}


def test_the_counts_are_those_of_the_rows() -> None:
    counted = {document or total: [int(cell) for cell in cells] for document, total, *cells in _COUNTS.findall(PAGE)}
    found = {document: Counter(row[3] for row in rows(document)[1:]) for document in DEMANDS}
    found["all"] = Counter(verdict for verdicts in found.values() for verdict in verdicts.elements())
    assert counted == {
        name: [verdicts.total(), *(verdicts[one] for one in VERDICTS)] for name, verdicts in found.items()
    }


def test_a_wrong_row_is_found() -> None:
    here = f"[`test_a_wrong_row_is_found`](../tests/{Path(__file__).name})"
    assert faults(["000-1", "4-6", "A demand.", "done", here]) == []
    assert faults(["000-1", "4-6", "A demand.", "done", "tried by hand"]) == ["no test and no page"]
    assert faults(["000-1", "4-6", "A demand.", "meant otherwise", here]) == ["no reason on the page of differences"]
    assert faults(["000-1", "4-6", "A demand.", "done", here.replace("row_is", "row_was")]) == [
        f"no test tests/{Path(__file__).name}::test_a_wrong_row_was_found"
    ]
    assert faults(["000-1", "4-6", "A demand.", "done", "[Join](join-no-machine.md)"]) == ["no page join-no-machine.md"]
    assert faults(["000-1", "some", "A demand.", "nearly", here]) == ["no verdict nearly", "no line some"]
    assert faults(["000-1", "4-6", "", "done", here]) == ["not a cell for each column"]
