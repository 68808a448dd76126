"""Signal of a commit to the other workers of one server, so that their watches need not wait for the next poll.

Rules kept here:
* A signal says only that something was committed. One that is lost or late costs time and no change: the receiver reads the store,
  and polls it besides.
* Signals that were not taken yet become one.
* The parent makes the descriptors before it forks. Those of a seat are inherited by each worker that takes the seat.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

_SIGNAL = (1).to_bytes(8, "little")
"""Value that an eventfd counter is raised by; eight octets for a pipe."""
_READ_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Ends of one worker's signal: an eventfd twice, or a pipe where there is none."""

    reading: int
    writing: int


class CommitSignal:
    """Signals between the workers, as seen by one of them."""

    def __init__(self, every: tuple[Descriptors, ...], own: int) -> None:
        """`own`: index of this worker."""
        self._own = every[own]
        self._others = tuple(one.writing for index, one in enumerate(every) if index != own)

    def send(self) -> None:
        """Signal a commit to the other workers."""
        for descriptor in self._others:
            with suppress(BlockingIOError):  # a signal waits there already
                os.write(descriptor, _SIGNAL)

    def follow(self, committed: Callable[[], None]) -> None:
        """Call `committed` on the running event loop after commits of the other workers, until `unfollow`."""

        def receive() -> None:
            with suppress(BlockingIOError):
                os.read(self._own.reading, _READ_BYTES)
            committed()

        asyncio.get_running_loop().add_reader(self._own.reading, receive)

    def unfollow(self) -> None:
        """Stop following."""
        asyncio.get_running_loop().remove_reader(self._own.reading)


def descriptors(workers: int) -> tuple[Descriptors, ...]:
    """Make the descriptors of so many workers; they last as long as the process."""
    return tuple(_descriptors() for _ in range(workers))


def _descriptors() -> Descriptors:
    if hasattr(os, "eventfd"):
        both = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return Descriptors(both, both)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return Descriptors(reading, writing)
