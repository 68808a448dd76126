"""`pytest --rows N/M`: every test runs in every share, and every row in at least one."""

from __future__ import annotations

import pytest

from tests.rows import shared

NAMES = ["a", "b[1]", "b[2]", "b[3]", "b[4]", "c[x]", "c[y]", "d[only]"]


@pytest.mark.parametrize(
    ("number", "shares", "kept"),
    [
        pytest.param(1, 3, {"a", "b[1]", "b[4]", "c[x]", "d[only]"}, id="the first third"),
        pytest.param(2, 3, {"a", "b[2]", "c[y]", "d[only]"}, id="the second third"),
        pytest.param(3, 3, {"a", "b[3]", "c[x]", "d[only]"}, id="a table of two rows runs one of them again"),
        pytest.param(1, 1, set(NAMES), id="everything"),
    ],
)
def test_a_share_has_its_rows_of_every_table(number: int, shares: int, kept: set[str]) -> None:
    assert shared(reversed(NAMES), number, shares) == kept


def test_the_shares_together_are_all_tests() -> None:
    assert set().union(*(shared(NAMES, number, 3) for number in (1, 2, 3))) == set(NAMES)
