"""A test over the rows of a table fails once, and names each row that fails."""

from __future__ import annotations

import inspect

import pytest

from tests.support.rows import each_row


def test_each_row_that_fails_is_named_with_its_failure() -> None:
    @each_row("number, text", ((1, "one"), (2, "zwei"), (3, "three"), (4, "")), lambda row: f"row {row[0]}")
    def check(number: int, text: str, known: dict[int, str]) -> None:
        if not text:
            pytest.fail("no text")
        if known[number] != text:
            raise ValueError(f"{text} is not {known[number]}")

    assert list(inspect.signature(check).parameters) == ["known"]
    with pytest.raises(AssertionError) as caught:
        check(known={1: "one", 2: "two", 3: "three"})
    first, *rows = str(caught.value).split("\n\n")
    assert first == "2 of 4 rows fail"
    assert rows == ["row 2: ValueError: zwei is not two", "row 4: Failed: no text"]
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_table_is_read_once_and_a_function_at_each_run() -> None:
    seen: list[str] = []

    @each_row("text", iter("ab"))
    def of_an_iterator(text: str) -> None:
        seen.append(text)

    @each_row("text", lambda: [str(len(seen))])
    def of_a_function(text: str) -> None:
        seen.append(text)

    for test in (of_an_iterator, of_an_iterator, of_a_function, of_a_function):
        test()
    assert seen == ["a", "b", "a", "b", "4", "5"]


def test_a_table_without_rows_fails() -> None:
    @each_row("text", [])
    def check(text: str) -> None:
        """Assert nothing."""

    with pytest.raises(AssertionError, match="0 of 0 rows fail"):
        check()
