"""One declaration gives the name, the type, the default, the check and the strict reading of a configuration file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from mooring.errors import ConfigError
from mooring.settings.declaration import (
    BOOLEAN,
    COMMA_SEPARATED,
    DURATION,
    INTEGER,
    NUMBER,
    PORT,
    TEXT,
    TEXTS,
    Settings,
    ValueType,
    duration_within,
    integer_within,
    setting,
    split_commas,
)


def _length(text: str, key: str) -> int:
    if not text:
        raise ConfigError(f"{key}: give a text")
    return len(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSettings(Settings):
    heading: ClassVar[str] = "Examples"

    plain_text: str = setting(TEXT, default="x", meaning="A text.", metavar="TEXT")
    text_length: int = setting(TEXT, default="four", parse=_length, meaning="A text that is kept as its length.")
    whole_number: int = setting(INTEGER, default=1, parse=integer_within(1, 9), meaning="A number.")
    time_to_live: timedelta = setting(
        DURATION, default=timedelta(0), parse=duration_within(timedelta(0), timedelta(hours=1)), meaning="A duration."
    )
    names: tuple[str, ...] = setting(COMMA_SEPARATED, default=(), meaning="Names.", former_name="experimental-names")
    password: str = setting(TEXT, default="", meaning="A secret.", secret=True)
    entries: tuple[str, ...] = setting(TEXTS, default=(), meaning="Entries.", flag=False)


def test_a_field_is_named_as_its_flag() -> None:
    assert [(one.name, one.field) for one in ExampleSettings.declared()][:2] == [
        ("plain-text", "plain_text"),
        ("text-length", "text_length"),
    ]
    names = ExampleSettings.declared()[4]
    assert (names.default, names.meaning, names.former_name, names.flag) == ((), "Names.", "experimental-names", True)


def test_a_text_that_is_not_utf_8_is_refused_but_for_secrets() -> None:
    with pytest.raises(
        ConfigError, match=r"^plain-text: the value is not valid UTF-8; choose a name of UTF-8 characters$"
    ):
        ExampleSettings.read({"plain_text": "\udcff"})
    assert ExampleSettings.read({"password": "\udcff"}).password == "\udcff"


def test_what_is_not_given_has_the_checked_default() -> None:
    assert ExampleSettings.read({}) == ExampleSettings()
    assert ExampleSettings().text_length == 4


def test_given_values_are_checked_and_typed() -> None:
    found = ExampleSettings.read({"text_length": "ab", "names": ["a,b", " c "], "entries": ["a,b"], "another": 1})
    assert (found.text_length, found.names, found.entries) == (2, ("a", "b", "c"), ("a,b",))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text_length": ""}, "text-length: give a text"),
        ({"whole_number": 10}, "whole-number: 10 is not a number from 1 to 9"),
        ({"time_to_live": timedelta(hours=2)}, "time-to-live: give a duration from 0s to 1h"),
    ],
    ids=str,
)
def test_an_error_names_the_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ExampleSettings.read(values)
    assert str(caught.value) == message


def test_a_secret_is_not_printed() -> None:
    assert "hunter2" not in repr(ExampleSettings.read({"password": "hunter2"}))


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (TEXT, "5", "5"),
        (BOOLEAN, False, False),
        (INTEGER, 5, 5),
        (PORT, 65535, 65535),
        (NUMBER, 5, 5),
        (NUMBER, 0.5, 0.5),
        (DURATION, "1m30s", timedelta(seconds=90)),
        (DURATION, "1w2d", timedelta(days=9)),
        (DURATION, 0, timedelta(0)),
        (TEXTS, "a,b", ("a,b",)),
        (COMMA_SEPARATED, ["a", "b"], ("a", "b")),
    ],
)
def test_a_value_of_the_configuration_file_is_read(kind: ValueType[Any], value: Any, found: Any) -> None:
    assert kind.from_file(value) == found


@pytest.mark.parametrize(
    ("kind", "value", "advice"),
    [
        (TEXT, 5, "give a text; put quotes around one that looks like a number"),
        (BOOLEAN, "true", "give true or false"),
        (INTEGER, True, "give a whole number"),
        (INTEGER, 1.5, "give a whole number"),
        (PORT, 65536, "65536 is not in the range 0<=x<=65535"),
        (NUMBER, "5", "give a number"),
        (NUMBER, False, "give a number"),
        (DURATION, 5, "a duration needs a unit: give 5s, 10m or 1h30m"),
        (DURATION, "5", "a duration needs a unit: give 5s, 10m or 1h30m"),
        (DURATION, "-1h", "give a duration, such as 5s, 10m or 1h30m"),
        (DURATION, "soon", "give a duration, such as 5s, 10m or 1h30m"),
        (DURATION, False, "give a duration, such as 5s, 10m or 1h30m"),
        (TEXTS, 5, "give a text or a list of texts"),
        (TEXTS, ["a", 5], "give a text or a list of texts"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_type_to_give(
    kind: ValueType[Any], value: Any, advice: str
) -> None:
    with pytest.raises(ValueError) as caught:
        kind.from_file(value)
    assert str(caught.value) == advice


def test_commas_separate_items() -> None:
    assert split_commas(["a,b", " c ", ",", ""]) == ("a", "b", "c")
