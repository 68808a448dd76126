"""Age of the views: how long ago they were known to have every write of the store.

Rules kept here (docs/adr/0079-a-view-that-judges-has-a-maximum-age.md):
* The views are confirmed by a linearizable read of the store's revision that they have reached. They are as old as the moment at
  which that read began.
* Each fresh read of a client confirms them, so that a busy server asks for nothing else. The check compares two numbers.
"""

from __future__ import annotations

from mooring.clock import Clock

MAX_AGE_SECONDS = 1.0
"""Age of views beyond which no request is let in by them before the store was asked."""


class ViewAge:
    """Age of the views of one process."""

    __slots__ = ("_confirmed", "now")

    def __init__(self, clock: Clock) -> None:
        self.now = clock.monotonic
        self._confirmed = float("-inf")

    def confirm(self, asked: float) -> None:
        """Note that the views have every write that was acknowledged before `asked`, a moment of `now`."""
        self._confirmed = max(self._confirmed, asked)

    @property
    def is_over(self) -> bool:
        """Return true when the views are too old to judge by."""
        return self.now() - self._confirmed > MAX_AGE_SECONDS
