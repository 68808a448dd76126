"""Strict reading of a part of a file: each mistake with its path."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.authn.oidc.authenticationconfig import StrictPart


def read(value: Any, path: str = "jwt[0]") -> tuple[StrictPart, list[str]]:
    mistakes: list[str] = []
    return StrictPart(value, path, mistakes, "name", "discoveryURL", "list", "inner", "on"), mistakes


def test_what_is_said_is_read() -> None:
    part, mistakes = read({"name": "n", "list": ["a", "b"], "inner": {"x": "y"}, "on": True, "discoveryURL": ""})
    assert part.text("name") == "n"
    assert part.texts("list", most=9) == [("jwt[0].list[0]", "a"), ("jwt[0].list[1]", "b")]
    assert part.part("inner", "x").text("x") == "y"
    assert part.truth("on")
    assert part.said("discoveryURL")
    assert mistakes == []


@pytest.mark.parametrize("value", [{}, None, {"name": None, "list": None, "inner": None, "on": None}], ids=repr)
def test_what_is_not_said_is_empty(value: Any) -> None:
    part, mistakes = read(value)
    assert (part.text("name"), part.texts("list", most=9), part.parts("list", most=9), part.truth("on")) == (
        "",
        [],
        [],
        False,
    )
    assert part.part("inner", "x").text("x") == ""
    assert not part.said("name")
    assert mistakes == []


@pytest.mark.parametrize(
    ("value", "mistake"),
    [
        pytest.param("x", 'jwt[0]: Invalid value: "x": it must be an object', id="a text for an object"),
        pytest.param({"nmae": "x"}, 'jwt[0].nmae: unknown field, did you mean "name"?', id="a slip"),
        pytest.param(
            {"discoveryUrl": "x"}, 'jwt[0].discoveryUrl: unknown field, did you mean "discoveryURL"?', id="case"
        ),
        pytest.param({"zzz": 1}, "jwt[0].zzz: unknown field", id="nothing like it"),
        pytest.param({"name": 5}, "jwt[0].name: Invalid value: 5: it must be a text", id="a number for a text"),
        pytest.param(
            {"on": "yes"}, 'jwt[0].on: Invalid value: "yes": it must be true or false', id="a text for a truth"
        ),
        pytest.param({"list": "a"}, 'jwt[0].list: Invalid value: "a": it must be a list', id="a text for a list"),
        pytest.param(
            {"list": ["a", 5]}, "jwt[0].list[1]: Invalid value: 5: it must be a text", id="a number in a list"
        ),
        pytest.param({"inner": []}, "jwt[0].inner: Invalid value: []: it must be an object", id="a list for an object"),
        pytest.param({"inner": {"y": 1}}, "jwt[0].inner.y: unknown field", id="a field within"),
    ],
)
def test_mistakes(value: Any, mistake: str) -> None:
    part, mistakes = read(value)
    part.text("name")
    part.texts("list", most=9)
    part.part("inner", "x")
    part.truth("on")
    assert mistakes == [mistake]


def test_of_a_list_that_is_too_long_the_first_are_read() -> None:
    part, mistakes = read({"list": ["a", "b", "c"]})
    assert [value for _, value in part.texts("list", most=2)] == ["a", "b"]
    assert mistakes == ["jwt[0].list: Too many: 3: must have at most 2 items"]


def test_objects_of_a_list_have_their_paths() -> None:
    mistakes: list[str] = []
    top = StrictPart({"list": [{"a": 1}, 5, {"b": "x"}]}, "", mistakes, "list")
    assert [part.path for part in top.parts("list", "b", most=3)] == ["list[0]", "list[1]", "list[2]"]
    assert mistakes == ["list[0].a: unknown field", "list[1]: Invalid value: 5: it must be an object"]
