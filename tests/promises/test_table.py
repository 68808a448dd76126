"""The table of promises is complete, and each test that it cites exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.promises.columns import Cell, Documented, Door, Moment, Never, Promise, Proof
from tests.promises.rows import GROUPS

ROOT = Path(__file__).resolve().parent.parent.parent
PROMISES = tuple(promise for rows in GROUPS.values() for promise in rows)


def cells(promise: Promise) -> dict[str, Cell]:
    return {
        **{door.value: cell for door, cell in promise.doors.items()},
        **{m.value: cell for m, cell in promise.moments.items()},
    }


def test_each_promise_has_a_cell_for_each_door_and_each_moment() -> None:
    columns = {*map(str, Door), *map(str, Moment)}
    assert {
        promise.key: sorted(columns - cells(promise).keys()) for promise in PROMISES if columns - cells(promise).keys()
    } == {}


def test_each_promise_has_a_key_of_its_own() -> None:
    assert [key for key, count in Counter(promise.key for promise in PROMISES).items() if count > 1] == []
    assert [promise.key for promise in PROMISES if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", promise.key)] == []


def test_each_promise_is_proved_by_a_test_somewhere() -> None:
    assert [
        promise.key for promise in PROMISES if not any(isinstance(cell, Proof) for cell in cells(promise).values())
    ] == []


def test_each_cited_test_exists() -> None:
    cited = {cell.test for promise in PROMISES for cell in cells(promise).values() if isinstance(cell, Proof)}
    assert sorted(test for test in cited if not exists(test)) == []


def test_each_reason_is_a_sentence_and_each_page_exists() -> None:
    rest = [cell for promise in PROMISES for cell in cells(promise).values() if not isinstance(cell, Proof)]
    assert [cell for cell in rest if not _text(cell).strip().endswith(".")] == []
    assert sorted({cell.page for cell in rest if isinstance(cell, Documented) and not _is_heading(cell.page)}) == []


def _is_heading(page: str) -> bool:
    """Return true for a page that exists, and for a heading on it."""
    file, _, heading = page.partition("#")
    path = ROOT / file
    if not path.is_file() or not heading:
        return path.is_file()
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_a_heading_that_is_not_there_is_found() -> None:
    assert _is_heading("docs/access.md#guessed-credentials")
    assert not _is_heading("docs/access.md#no-such-heading")
    assert not _is_heading("docs/no-such-page.md")


def _text(cell: Never | Documented) -> str:
    return cell.why if isinstance(cell, Never) else cell.what


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / file
    return (
        path.is_file()
        and re.search(rf"^ *(?:async )?def {re.escape(name)}\(", path.read_text(), re.MULTILINE) is not None
    )
