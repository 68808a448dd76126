"""Flags made from declared settings: command line, environment variable, default and help of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import click
import pytest
from click.testing import CliRunner

from mooring.cli.options.declared import OPTION_ARGUMENTS, settings_options
from mooring.settings.declaration import (
    BOOLEAN,
    COMMA_SEPARATED,
    COUNT,
    DURATION,
    INTEGER,
    LINES,
    NUMBER,
    OPTIONAL_BOOLEAN,
    OPTIONAL_DURATION,
    OPTIONAL_PORT,
    OPTIONAL_TEXT,
    PORT,
    SWITCH,
    TEXT,
    TEXTS,
    Settings,
    one_of,
    setting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSettings(Settings):
    heading: ClassVar[str] = "Examples"

    some_text: str = setting(TEXT, default="x", meaning="Text.", former_name="experimental-text")
    maybe_text: str | None = setting(OPTIONAL_TEXT, default=None, meaning="Text.", default_note="another file")
    switch: bool = setting(BOOLEAN, default=False, meaning="Switch.")
    maybe_switch: bool | None = setting(OPTIONAL_BOOLEAN, default=None, meaning="Switch.")
    number: int = setting(INTEGER, default=1, meaning="Number.")
    processes: str = setting(COUNT, default="1", meaning="Processes.")
    port: int = setting(PORT, default=6443, meaning="Port.")
    maybe_port: int | None = setting(OPTIONAL_PORT, default=None, meaning="Port.")
    rate: float = setting(NUMBER, default=0.0, meaning="Rate.")
    life: timedelta = setting(DURATION, default=timedelta(minutes=2), meaning="Life.")
    whole: tuple[str, ...] = setting(TEXTS, default=(), meaning="Values.")
    items: tuple[str, ...] = setting(COMMA_SEPARATED, default=("a", "b"), meaning="Items.", metavar="ITEM,...")
    plain: bool = setting(SWITCH, default=False, meaning="Plain.", short="p", own_variable="OTHER_PLAIN")
    maybe_life: timedelta | None = setting(
        OPTIONAL_DURATION, default=None, meaning="Life.", default_note="the signer's"
    )
    commands: tuple[str, ...] = setting(LINES, default=(), meaning="Commands.")
    color: str = setting(one_of("red", "green"), default="", meaning="Color.")
    shade: str = setting(one_of("dark", "light"), default="light", meaning="Shade.")
    places: tuple[str, ...] = setting(COMMA_SEPARATED, default=(), meaning="Places.", positional=True)
    of_the_file: str = setting(TEXT, default="", meaning="No flag.", flag=False)


def run(*arguments: str, **environment: str) -> tuple[ExampleSettings | None, str]:
    """Return the settings that a command gets, and its output."""
    found: list[ExampleSettings] = []

    def command(**values: Any) -> None:
        found.append(ExampleSettings.read(values))

    decorated = click.command("example")(settings_options(ExampleSettings.declared())(command))
    outcome = CliRunner().invoke(decorated, list(arguments), env=environment)
    return (found[0] if found else None), outcome.output


def test_without_flags_every_setting_has_its_default() -> None:
    assert run()[0] == ExampleSettings()


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (("--some-text", "a,b"), "some_text", "a,b"),
        (("--experimental-text", "former"), "some_text", "former"),
        (("--maybe-text", ""), "maybe_text", ""),
        (("--switch",), "switch", True),
        (("--switch=true",), "switch", True),
        (("--maybe-switch=false",), "maybe_switch", False),
        (("--number", "-5"), "number", -5),
        (("--processes", "auto"), "processes", "auto"),
        (("--processes", "2"), "processes", "2"),
        (("--port", "0"), "port", 0),
        (("--rate", "2.5"), "rate", 2.5),
        (("--life", "1h30m"), "life", timedelta(minutes=90)),
        (("--whole", "a,b", "--whole", "c"), "whole", ("a,b", "c")),
        (("--items", "c, d", "--items", "e"), "items", ("c", "d", "e")),
        (("--plain", "here"), "plain", True),
        (("-p", "here"), "places", ("here",)),
        (("--maybe-life", "90s"), "maybe_life", timedelta(seconds=90)),
        (("--commands", "a b", "--commands", "c,d"), "commands", ("a b", "c,d")),
        (("--color", "green"), "color", "green"),
        (("here", "there,yonder"), "places", ("here", "there", "yonder")),
    ],
    ids=str,
)
def test_a_flag_is_read_by_its_kind(arguments: tuple[str, ...], name: str, value: object) -> None:
    found, output = run(*arguments)
    assert found is not None, output
    assert getattr(found, name) == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--number", "x"), "'x' is not a valid integer"),
        (("--port", "70000"), "70000 is not in the range 0<=x<=65535"),
        (("--switch=perhaps",), "'perhaps' is not a valid boolean"),
        (("--life", "5"), '"5" has no unit; write 5s, 5m or 5h'),
        (("--color", "blue"), "'blue' is not one of 'red', 'green'"),
        (("--number", "x"), "Invalid value for '--number': "),
        (("--of-the-file", "x"), "No such option"),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_a_usage_error(arguments: tuple[str, ...], message: str) -> None:
    found, output = run(*arguments)
    assert found is None
    assert message in output


@pytest.mark.parametrize(
    ("arguments", "environment", "name", "value"),
    [
        ((), {"MOORING_SOME_TEXT": "variable"}, "some_text", "variable"),
        ((), {"MOORING_SWITCH": "true"}, "switch", True),
        ((), {"MOORING_WHOLE": "a b"}, "whole", ("a", "b")),
        ((), {"MOORING_ITEMS": "a,b c"}, "items", ("a", "b", "c")),
        ((), {"OTHER_PLAIN": "1"}, "plain", True),
        ((), {"MOORING_PLAIN": "1"}, "plain", False),
        ((), {"MOORING_COMMANDS": "a b\n\nc"}, "commands", ("a b", "c")),
        ((), {"MOORING_PLACES": "here there"}, "places", ("here", "there")),
        ((), {"MOORING_COLOR": ""}, "color", ""),
        (("--some-text", "flag"), {"MOORING_SOME_TEXT": "variable"}, "some_text", "flag"),
    ],
    ids=str,
)
def test_an_environment_variable_counts_unless_the_flag_is_given(
    arguments: tuple[str, ...], environment: Mapping[str, str], name: str, value: object
) -> None:
    found, output = run(*arguments, **environment)
    assert found is not None, output
    assert getattr(found, name) == value


def test_an_error_names_the_variable_that_gave_the_value() -> None:
    assert "Invalid value for 'MOORING_NUMBER': 'x' is not" in run(MOORING_NUMBER="x")[1]
    assert "Invalid value for '--number': 'x' is not" in run("--number", "x", MOORING_NUMBER="1")[1]


def test_a_command_may_take_flags_without_variables() -> None:
    found: list[Any] = []

    def command(**values: Any) -> None:
        found.append(values["number"])

    decorated = click.command()(settings_options(ExampleSettings.declared(), variables=False)(command))
    CliRunner().invoke(decorated, [], env={"MOORING_NUMBER": "5"}, catch_exceptions=False)
    assert found == [1]


def test_help_shows_each_default_and_variable_and_no_former_name() -> None:
    text = " ".join(run("--help")[1].split())
    for part in (
        "[env var: MOORING_SOME_TEXT; default: x]",
        "Text. [default: another file] [env var: MOORING_MAYBE_TEXT]",
        "--switch BOOL Switch. [env var: MOORING_SWITCH; default: False]",
        "--life DURATION Life. [env var: MOORING_LIFE; default: 2m0s]",
        "--items ITEM,... Items. [env var: MOORING_ITEMS; default: a, b]",
    ):
        assert part in text
    assert "experimental" not in text
    assert "of-the-file" not in text


def test_every_kind_of_flag_is_tried_here() -> None:
    assert {one.value_type for one in ExampleSettings.declared() if not one.value_type.choices} == set(OPTION_ARGUMENTS)
