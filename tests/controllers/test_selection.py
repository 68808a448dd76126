"""Selection of controllers by the items of `--controllers`."""

from __future__ import annotations

import pytest

from mooring.controllers.actions import ALIASES, select
from mooring.controllers.table import CONTROLLERS
from mooring.errors import ConfigError

EVERY = ("bootstrap-signer-controller", "token-cleaner-controller", "event-cleaner")
SIGNER, CLEANER, EVENTS = EVERY


@pytest.mark.parametrize(
    ("items", "chosen"),
    [
        pytest.param(["*"], [SIGNER, EVENTS], id="a star runs those that are on by default"),
        pytest.param(["*", "tokencleaner"], [SIGNER, CLEANER, EVENTS], id="a name adds one that is off by default"),
        pytest.param(["*", "-bootstrapsigner"], [EVENTS], id="a minus leaves one out"),
        pytest.param(["-bootstrapsigner"], [EVENTS], id="without any name the others run, as with a star"),
        pytest.param([], [SIGNER, EVENTS], id="an empty list runs those that are on by default"),
        pytest.param(["event-cleaner"], [EVENTS], id="a name alone runs nothing else"),
        pytest.param(["event-cleaner", "-tokencleaner"], [EVENTS], id="a minus beside a name adds nothing"),
        pytest.param(["event-cleaner", "bootstrapsigner"], [SIGNER, EVENTS], id="the order is that of the table"),
        pytest.param(["-tokencleaner", "token-cleaner-controller", "*"], [SIGNER, EVENTS], id="the first item decides"),
        pytest.param(["tokencleaner", "-tokencleaner"], [CLEANER], id="the first item decides for a name as well"),
    ],
)
def test_items_choose_controllers(items: list[str], chosen: list[str]) -> None:
    assert list(select(items, EVERY, {CLEANER})) == chosen


@pytest.mark.parametrize(
    ("item", "hint"),
    [
        ("tokencleanr", '; did you mean "tokencleaner"?'),
        ("-event-cleanr", '; did you mean "event-cleaner"?'),
        ("nodelifecycle", ""),
        ("", ""),
    ],
)
def test_an_unknown_name_is_refused(item: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        select([item], EVERY)
    assert str(refused.value) == f'controllers: "{item.removeprefix("-")}" is not one of {", ".join(EVERY)}{hint}'


def test_every_alias_means_a_controller_of_the_table() -> None:
    assert set(ALIASES.values()) <= CONTROLLERS.keys()
    assert ALIASES.keys().isdisjoint(CONTROLLERS)
