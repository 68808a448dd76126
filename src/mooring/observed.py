"""`Observed`: something whose changes others follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Observed(Generic[P]):
    """Calls subscribers after each change, in the order of their subscriptions."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, None]] = []

    def subscribe(self, use: Callable[P, None]) -> None:
        """Call `use` after each change from now on."""
        self._subscribers.append(use)

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the subscribers."""
        for use in self._subscribers:
            use(*args, **kwargs)
