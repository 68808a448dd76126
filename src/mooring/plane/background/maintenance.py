"""Background work of one process: compaction and verification of the store, and the return of memory."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.storage.contract import Storage

# Compaction of old revisions, as kube-apiserver does with etcd: each lives for at least five and at most ten minutes.
#
# Rules kept here: current objects are never removed. Of several servers on one store, one compacts in
# each interval. A failure is logged, and the next
# interval tries again.

log = logging.getLogger("mooring.plane")

INTERVAL_SECONDS = 300.0
"""kube-apiserver's --etcd-compaction-interval; lists by continue token and watches by revision can go back this far."""


async def compact_forever(storage: Storage, clock: Clock) -> None:
    """At each interval, compact up to the revision of the interval before. Runs until cancelled."""
    before = await storage.revision()
    while True:
        await clock.sleep(INTERVAL_SECONDS)
        try:
            now = await storage.revision()
            if await storage.claim_compaction(before):
                await storage.compact(before)
            before = now
        except StorageError as error:
            log.warning("old revisions could not be compacted: %s", error)


# Verification of the store in the background, a little at a time.
#
# Rules kept here: the process that runs the controllers does it. The driver (`Storage.verify`) puts damage into the log, the
# health checks and the metrics. A store of 100 000 records is read in half an hour, with a thousandth of a core.

PAUSE_SECONDS = 1.0
"""Time between two slices of about half a millisecond."""


async def verify_forever(storage: Storage, clock: Clock, leads: Callable[[], bool]) -> None:
    """Verify the next part of the store again and again, while `leads` returns True. Runs until cancelled."""
    while True:
        await clock.sleep(PAUSE_SECONDS)
        if leads():
            with suppress(StorageError):  # the store is closing
                await storage.verify()


# Return memory that closed connections have freed to the operating system (malloc_trim(3)).
#
# Rules kept here:
# * glibc returns free memory only from the end of its heap. The blocks that OpenSSL freed after a thousand connections lie
#   between blocks in use, and would never be returned. `malloc_trim` returns every free page.
# * It takes about 0.4 ms for each MiB, in a thread, and other threads may wait for the heap meanwhile. It runs when resident
#   memory is well above the size after the last run and has stopped growing, and once more after a run that returned much, for
#   blocks that were freed meanwhile.
# * Without /proc or malloc_trim (macOS, musl) nothing happens.

LOOK_SECONDS = 10.0
"""Interval between two looks, which read one line of /proc. Memory of closed connections is returned within two looks."""
MIN_GROWTH_BYTES = 16 << 20
"""Growth below this, in bytes, does not start a run."""
MIN_GROWTH_PART = 4
"""Nor does growth below this part of the size after the last run: larger heaps take longer, and are trimmed less often."""
STATM = Path("/proc/self/statm")


class Trimming:
    """Decides when to trim. Sizes are bytes of resident memory."""

    def __init__(self, resident: int) -> None:
        self._floor = resident
        self._before = resident
        self._was_large = False

    def is_due(self, resident: int) -> bool:
        """Return whether to trim now; called at every look."""
        has_settled = resident <= self._before
        self._before = resident
        self._floor = min(self._floor, resident)
        growth = resident - self._floor
        return has_settled and (self._was_large or growth >= max(MIN_GROWTH_BYTES, self._floor // MIN_GROWTH_PART))

    def done(self, resident: int) -> None:
        """Note the size after a run."""
        self._was_large = self._before - resident >= MIN_GROWTH_BYTES
        self._floor = self._before = resident


def resident_bytes(statm: Path = STATM) -> int | None:
    """Return the resident memory of this process (proc(5)), None on a system without /proc."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def malloc_trim() -> Callable[[], object] | None:
    """Return the function of the C library, None when it has none."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return lambda: function(0)


async def trim_forever(
    clock: Clock, resident: Callable[[], int | None] = resident_bytes, trim: Callable[[], object] | None = None
) -> None:
    """Trim when it is due, until cancelled; return at once on a system without the means."""
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
