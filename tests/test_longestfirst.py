"""Each worker's piece of the order begins with its share of the long tests, and no test is lost."""

from __future__ import annotations

import pytest

from tests.longestfirst import dealt


@pytest.mark.parametrize(
    ("long", "short", "workers", "order"),
    [
        pytest.param("AB", "abcdef", 1, "ABabcdef", id="one process"),
        pytest.param("AB", "abcdef", 2, "AabcBdef", id="two workers"),
        pytest.param("ABC", "abcd", 2, "ACaBbcd", id="a number that cannot be halved"),
        pytest.param("ABCDE", "", 2, "ACEBD", id="long ones alone"),
        pytest.param("", "abc", 2, "abc", id="short ones alone"),
        pytest.param("A", "", 4, "A", id="more workers than tests"),
    ],
)
def test_long_tests_are_dealt_to_the_workers(long: str, short: str, workers: int, order: str) -> None:
    assert "".join(dealt(list(long), list(short), workers)) == order
