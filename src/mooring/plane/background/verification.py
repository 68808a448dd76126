"""Verification of the store in the background, a little at a time.

Rules kept here: the process that runs the controllers does it. The driver (`Storage.verify`) puts damage into the log, the health
checks and the metrics. A store of 100 000 records is read in half an hour, with a thousandth of a core.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.storage.contract import Storage

PAUSE_SECONDS = 1.0
"""Time between two slices of about half a millisecond."""


async def verify_forever(storage: Storage, clock: Clock, leads: Callable[[], bool]) -> None:
    """Verify the next part of the store again and again, while `leads` returns True. Runs until cancelled."""
    while True:
        await clock.sleep(PAUSE_SECONDS)
        if leads():
            with suppress(StorageError):  # the store is closing
                await storage.verify()
