"""The table of promises is complete, and each test and page that it cites exists."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.promises.table import DOORS, GATES, MOMENTS, ROOT, exception, faults, groups, is_heading, promises

PROMISES = tuple(promise for rows in groups().values() for promise in rows)
TEST = "tests/promises/test_table.py::test_each_gate_has_a_file"


def test_each_gate_has_a_file() -> None:
    assert sorted(GATES.values()) == sorted(path.name for path in (ROOT / "tests/promises").glob("*.toml"))


def test_each_promise_has_a_cell_for_each_door_and_each_moment() -> None:
    columns = {*DOORS, *MOMENTS}
    assert {promise.key: lacking for promise in PROMISES if (lacking := columns - promise.cells().keys())} == {}


def test_each_promise_has_a_key_of_its_own_and_a_sentence() -> None:
    assert [key for key, count in Counter(promise.key for promise in PROMISES).items() if count > 1] == []
    assert [promise.key for promise in PROMISES if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", promise.key)] == []
    assert [promise.key for promise in PROMISES if not promise.sentence.endswith(".")] == []


def test_each_promise_is_proved_by_a_test_somewhere() -> None:
    assert [p.key for p in PROMISES if not any(cell.startswith("tests/") for cell in p.cells().values())] == []


def test_each_cell_names_a_test_or_a_page_that_exists_or_a_reason() -> None:
    cells = {cell for promise in PROMISES for cell in promise.cells().values()}
    assert {cell: found for cell in sorted(cells) if (found := faults(cell))} == {}


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        pytest.param(TEST, [], id="a test"),
        pytest.param("tests/no.py::test_a", ["no such test: tests/no.py::test_a"], id="a file that is not there"),
        pytest.param(f"{TEST}_of_its_own", [f"no such test: {TEST}_of_its_own"], id="a test that is not there"),
        pytest.param(TEST.partition("::")[0], [f"no such test: {TEST.partition('::')[0]}"], id="a file alone"),
        pytest.param("never: the key decides", [], id="a reason"),
        pytest.param("never: ", ["not a phrase: never: "], id="no reason"),
        pytest.param("never: " + "a " * 13, ["not a phrase: never: " + "a " * 13], id="a long reason"),
        pytest.param("always: the key decides", ["not a phrase: always: the key decides"], id="no kind of cell"),
        pytest.param("exception: late (docs/access.md#guessed-credentials)", [], id="an exception"),
        pytest.param("exception: late", ["not a phrase: exception: late"], id="an exception without a page"),
        pytest.param("exception: late (docs/no.md)", ["no such page or heading: docs/no.md"], id="a page that is not there"),
    ],
)  # fmt: skip
def test_a_wrong_cell_is_found(cell: str, found: list[str]) -> None:
    assert faults(cell) == found


@pytest.mark.parametrize("columns", ["k3s other", "k3s k3s", "k3s kubeadm"])
def test_a_wrong_column_is_found(columns: str) -> None:
    with pytest.raises(ValueError, match=r"^a-promise: a column that is unknown or named twice, in k3s"):
        list(promises(f'[a-promise]\npromise = "It is."\n"{columns}" = "never: so"\nkubeadm = "never: so"\n'))


def test_named_columns_precede_the_others() -> None:
    (promise,) = promises('[a]\npromise = "It is."\n"k3s clock" = "never: so"\ndoors = "never: such"\n')
    assert promise.cells() == dict.fromkeys(DOORS, "never: such") | {"k3s": "never: so", "clock": "never: so"}


def test_a_heading_that_is_not_there_is_found() -> None:
    assert is_heading("docs/access.md#guessed-credentials")
    assert not is_heading("docs/access.md#no-such-heading")
    assert not is_heading("docs/no-such-page.md")


def test_an_exception_has_a_phrase_and_a_page() -> None:
    assert exception("exception: late (docs/access.md)") == ("late", "docs/access.md")
    assert exception("never: late (docs/access.md)") is None
