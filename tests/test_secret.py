"""`Secret` does not print, serialise or compare in variable time (law 9)."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable

import msgspec
import pytest

from mooring.secret import Secret

VALUE = "hunter2-hunter2"


@pytest.mark.parametrize(
    "show",
    [repr, str, lambda secret: f"{secret}", lambda secret: f"{secret:>40}", lambda secret: f"{[secret]!r}"],
    ids=["repr", "str", "format", "format with a width", "inside a list"],
)
def test_a_secret_is_not_printed(show: Callable[[Secret], str]) -> None:
    assert "hunter2" not in show(Secret(VALUE))
    assert "redacted" in show(Secret(VALUE))


@pytest.mark.parametrize(
    "store",
    [pickle.dumps, json.dumps, msgspec.json.encode, copy.copy, copy.deepcopy, hash],
    ids=["pickle", "json", "msgspec", "copy", "deepcopy", "hash"],
)
def test_a_secret_is_not_serialised_or_hashed(store: Callable[[Secret], object]) -> None:
    with pytest.raises(TypeError) as caught:
        store(Secret(VALUE))
    assert "hunter2" not in str(caught.value)


def test_a_secret_has_no_dict() -> None:
    with pytest.raises(TypeError):
        vars(Secret(VALUE))


def test_reveal_returns_the_bytes() -> None:
    assert Secret("ä").reveal() == "ä".encode()


def test_secrets_are_compared_by_value() -> None:
    assert Secret("a") == Secret(b"a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert Secret("a").matches(b"a")
    assert not Secret("a").matches(Secret("ab"))


def test_an_empty_secret_is_false() -> None:
    assert Secret("a")
    assert not Secret("")
