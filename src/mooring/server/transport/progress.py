"""Detect clients that have stopped reading: a reader must take `MIN_PROGRESS`, or all that waits, within `STALLED_SECONDS`."""

from __future__ import annotations

STALLED_SECONDS = 20.0
"""Time without progress after which a reader counts as stalled. With two checks `CHECK_SECONDS` apart it is cut off within 30 s."""
CHECK_SECONDS = 5.0
"""Time between two checks of connections for which bytes wait."""
MIN_PROGRESS = 16 << 10
"""Bytes that a reader takes in `STALLED_SECONDS`: one TLS record. At 0.8 kB/s a list of 64 kB still arrives."""


class ReaderProgress:
    """Progress of one reader for which bytes wait. Time is an argument."""

    __slots__ = ("_mark", "_needed", "_since")

    def __init__(self, taken: int, waiting: int, now: float) -> None:
        self._restart(taken, waiting, now)

    def _restart(self, taken: int, waiting: int, now: float) -> None:
        self._mark = taken
        self._needed = min(MIN_PROGRESS, waiting)
        self._since = now

    def is_stalled(self, taken: int, waiting: int, now: float) -> bool:
        """Return True when the reader made no progress for too long. `taken` counts all bytes that it ever took."""
        if taken - self._mark >= self._needed:
            self._restart(taken, waiting, now)
        return now - self._since >= STALLED_SECONDS
