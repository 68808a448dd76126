"""Gives memory that clients left free back to the system (malloc_trim(3)).

Rules kept here:
* glibc returns free memory only from the end of its heap. OpenSSL's blocks of a thousand connections lie between blocks that stay,
  so that all of it would stay. `malloc_trim` returns every free page.
* It takes about 0.4 ms a MiB, in a thread, and other threads may wait for the heap meanwhile. So it comes rarely: when resident
  memory is well above what the last one left, and has stopped growing; and once more after one that was worth it, for what was
  freed meanwhile.
* Where there is no /proc or no malloc_trim (macOS, musl) nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from mooring.clock import Clock

LOOK_SECONDS = 10.0
"""A look reads one line of /proc. Memory of clients that left goes within two looks."""
WORTH_OCTETS = 16 << 20
"""Growth below this is not worth it."""
WORTH_PART = 4
"""Nor is growth below this part of what was left before: larger heaps take longer, and must be looked through less often."""
STATM = Path("/proc/self/statm")


class Trimming:
    """Decides when memory is given back. Sizes are octets of resident memory."""

    def __init__(self, resident: int) -> None:
        self._left = resident
        self._before = resident
        self._was_worth_it = False

    def is_due(self, resident: int) -> bool:
        """Whether so much memory is worth it now. To be asked at every look."""
        has_settled = resident <= self._before
        self._before = resident
        self._left = min(self._left, resident)
        growth = resident - self._left
        return has_settled and (self._was_worth_it or growth >= max(WORTH_OCTETS, self._left // WORTH_PART))

    def done(self, resident: int) -> None:
        """Note what is left after memory was given back."""
        self._was_worth_it = self._before - resident >= WORTH_OCTETS
        self._left = self._before = resident


def resident_octets(statm: Path = STATM) -> int | None:
    """Resident memory of this process (proc(5)); None where the system does not tell."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def malloc_trim() -> Callable[[], object] | None:
    """The C library's function, if it has one."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return lambda: function(0)


async def trim_forever(
    clock: Clock, resident: Callable[[], int | None] = resident_octets, trim: Callable[[], object] | None = None
) -> None:
    """Look now and then; return at once where nothing can be done."""
    trim = trim or malloc_trim()
    first = resident()
    if trim is None or first is None:
        return
    trimming = Trimming(first)
    while True:
        await clock.sleep(LOOK_SECONDS)
        if trimming.is_due(resident() or 0):
            await asyncio.to_thread(trim)
            trimming.done(resident() or 0)
