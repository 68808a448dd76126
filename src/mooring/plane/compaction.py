"""Old states are forgotten, as kube-apiserver does with etcd: what is older than five minutes at most ten.

Rules kept here: only the past goes, never a live object; several servers may do it at once, a revision that is compacted
already is no error. Trouble is logged and tried again: hygiene never stops a server.
"""

from __future__ import annotations

import logging

from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.storage.contract import Storage

log = logging.getLogger("mooring.plane")

INTERVAL_SECONDS = 300.0
"""kube-apiserver's --etcd-compaction-interval; lists by continue token and watches by revision can go back this far."""


async def compact_forever(storage: Storage, clock: Clock) -> None:
    """Every interval, forget what was already old at the interval before. Runs until cancelled."""
    before = await storage.revision()
    while True:
        await clock.sleep(INTERVAL_SECONDS)
        try:
            now = await storage.revision()
            await storage.compact(before)
            before = now
        except StorageError as error:
            log.warning("old revisions could not be compacted: %s", error)
