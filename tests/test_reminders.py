"""`mooring.reminders`: which moments of a condition that lasts are logged."""

from __future__ import annotations

import itertools

import pytest

from mooring.reminders import FIRST_SECONDS, LAST_SECONDS, LastingProblem, Reminders


@pytest.mark.parametrize(
    ("noted", "logged"),
    [
        pytest.param(["full"], ["full"], id="a problem that begins"),
        pytest.param(["full", "full"], ["full"], id="one that lasts"),
        pytest.param(["full", "broken"], ["full", "broken"], id="another one in its place"),
        pytest.param(["full", "", "full"], ["full", "full"], id="one that comes again after it was over"),
        pytest.param(
            ["full", "broken", "full"], ["full", "broken", "full"], id="one that comes again after another one"
        ),
        pytest.param(["", ""], [], id="none"),
    ],
)
def test_a_lasting_problem_is_reported_once(noted: list[str], logged: list[str]) -> None:
    lines = list[str]()
    problem = LastingProblem(lambda text, shown: lines.append(text % shown), "disk: %s")
    for one in noted:
        problem.note(one)
    assert lines == [f"disk: {one}" for one in logged]
    assert problem.current == noted[-1]


def test_the_text_that_is_shown_is_not_compared() -> None:
    lines = list[str]()
    problem = LastingProblem(lambda text, shown: lines.append(text % shown))
    problem.note("refused", "refused (id 1)")
    problem.note("refused", "refused (id 2)")
    assert lines == ["refused (id 1)"]


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_a_condition_that_lasts_is_due_at_growing_intervals() -> None:
    clock = Clock()
    reminders = Reminders(clock.monotonic)
    due = [second for second in range(4 * int(LAST_SECONDS)) if _at(clock, reminders, second)]
    pauses = [after - before for before, after in itertools.pairwise(due)]
    assert due[0] == 0
    assert pauses[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    assert pauses[-1] == LAST_SECONDS


def _at(clock: Clock, reminders: Reminders, second: int) -> bool:
    clock.now = 1000.0 + second
    return reminders.is_due("disk", "full")


def test_a_change_and_the_first_good_state_are_due() -> None:
    reminders = Reminders(Clock().monotonic)
    assert not reminders.is_due("disk", "")
    assert reminders.is_due("disk", "full")
    assert not reminders.is_due("disk", "full")
    assert reminders.is_due("other", "full"), "each condition by itself"
    assert reminders.is_due("disk", ("full", "broken"))
    assert reminders.is_due("disk", "")
    assert not reminders.is_due("disk", "")
    assert reminders.is_due("disk", ("full", "broken")), "it began again"
