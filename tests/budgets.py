"""Prints the tests that take longer than their budget, at the end of a session.

Rules kept here: a test has 5 s of a quiet core, a scenario 20 s, its fixtures included. Nothing fails by the clock. Tests that take
longer on purpose stand in ALLOWED, which only shrinks: one more must be worth the time of everybody who waits for the suite.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.counts import counted

SECONDS = 5.0
SCENARIO_SECONDS = 20.0
ALLOWED: frozenset[str] = frozenset()


def over_budget(reports: list[Any]) -> list[tuple[float, str]]:
    """Return the time and name of each test above its budget, the longest first."""
    taken: defaultdict[str, float] = defaultdict(float)
    scenarios: set[str] = set()
    for report in reports:
        taken[report.nodeid] += report.duration
        if "scenario" in report.keywords:
            scenarios.add(report.nodeid)
    return sorted(
        (
            (seconds, test)
            for test, seconds in taken.items()
            if seconds > (SCENARIO_SECONDS if test in scenarios else SECONDS)
        ),
        reverse=True,
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    outcomes = ("passed", "failed", "error", "")  # "": set-ups and ends that passed
    found = over_budget(
        [
            report
            for outcome in outcomes
            for report in terminalreporter.stats.get(outcome, [])
            if isinstance(report, pytest.TestReport)
        ]
    )
    if not found:
        return
    terminalreporter.write_sep("=", f"{counted(len(found), 'test')} took longer than the budget")
    for seconds, test in found:
        known = "" if test.partition("[")[0] in ALLOWED else "  (not in the list of tests/budgets.py)"
        terminalreporter.write_line(f"{seconds:6.1f} s  {test}{known}")
