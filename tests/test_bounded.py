"""`mooring.bounded`: which entries a full table keeps."""

from __future__ import annotations

import copy

import pytest

from mooring.bounded import Bounded


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("abc", "abc", id="as many as there is room for"),
        pytest.param("abcd", "bcd", id="one more: the oldest goes"),
        pytest.param("abcabc", "abc", id="the same keys again"),
        pytest.param("abcad", "cad", id="writing renews an entry"),
        pytest.param("aaaab", "ab", id="a key counts once"),
    ],
)
def test_the_entry_that_was_written_longest_ago_is_dropped(written: str, kept: str) -> None:
    table: Bounded[str, int] = Bounded(3)
    for number, key in enumerate(written):
        table[key] = number
    assert "".join(table) == kept
    assert all(table[key] == written.rindex(key) for key in kept)


def test_reading_renews_nothing_and_moving_does() -> None:
    table: Bounded[str, int] = Bounded(2)
    table["a"], table["b"] = 1, 2
    assert table.get("a") == 1
    table["c"] = 3
    assert list(table) == ["b", "c"]
    table.move_to_end("b")
    table["d"] = 4
    assert list(table) == ["b", "d"]


def test_a_default_that_is_set_takes_room_as_well() -> None:
    table: Bounded[str, int] = Bounded(1)
    table["a"] = 1
    assert table.setdefault("b", 2) == 2
    assert list(table) == ["b"]


def test_a_copy_has_the_same_limit() -> None:
    table: Bounded[str, int] = Bounded(2)
    table["a"], table["b"] = 1, 2
    other = copy.deepcopy(table)
    other["c"] = 3
    assert list(other) == ["b", "c"]
    assert list(table) == ["a", "b"]
