"""Numbers that each worker writes for itself and that all workers add up.

Rules kept here:
* A number is one aligned word of shared memory, written by one process only. So no lock is needed, and a reader sees the value from
  before or after a write.
* A sum of several workers may be old by the time in which one word is written. A limit that is compared with it may be exceeded by
  one for each other worker.
* The parent clears the words of a worker that ended, before its replacement starts.
"""

from __future__ import annotations

from collections.abc import MutableSequence


class Count:
    """One number of each worker, as seen by one of them."""

    __slots__ = ("_row", "_worker")

    def __init__(self, row: MutableSequence[int] | memoryview[int], worker: int) -> None:
        """`row`: one number for each worker."""
        self._row = row
        self._worker = worker

    def set(self, number: int) -> None:
        """Set the number of this worker."""
        self._row[self._worker] = number

    @property
    def total(self) -> int:
        """Sum over all workers."""
        return sum(self._row)

    @property
    def others(self) -> int:
        """Sum over the other workers."""
        return sum(self._row) - self._row[self._worker]
