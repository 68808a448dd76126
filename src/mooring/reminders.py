"""Decide when a condition that lasts is logged: once for each change, and where wanted again at growing intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FIRST_SECONDS = 60.0
LAST_SECONDS = 3600.0
"""Shortest and longest time between two lines about the same condition; each is twice the one before."""


class LastingProblem:
    """Reports a problem when it begins, and when another one takes its place."""

    def __init__(self, report: Callable[[str, str], object], text: str = "%s") -> None:
        """`report` is a method of a logger. It gets `text`, which has a place for the problem."""
        self._report = report
        self._text = text
        self.current = ""

    def note(self, problem: str, shown: str = "") -> None:
        """Note the problem that there is now; "" for none. `shown`: its text, where that differs each time."""
        if problem and problem != self.current:
            self._report(self._text, shown or problem)
        self.current = problem


@dataclass(slots=True)
class _Lasting:
    state: str | tuple[str, ...]
    due: float
    interval: float


class Reminders:
    """Conditions by name. `monotonic` returns the time in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lasting: dict[str, _Lasting] = {}

    def is_due(self, name: str, state: str | tuple[str, ...]) -> bool:
        """Return True when a line about the state is to be logged. An empty state is the good one: its beginning only is due."""
        now = self._monotonic()
        lasting = self._lasting.get(name)
        if not state:
            return self._lasting.pop(name, None) is not None
        if lasting is None or lasting.state != state:
            self._lasting[name] = _Lasting(state, now + FIRST_SECONDS, FIRST_SECONDS)
            return True
        if now < lasting.due:
            return False
        lasting.interval = min(2 * lasting.interval, LAST_SECONDS)
        lasting.due = now + lasting.interval
        return True
