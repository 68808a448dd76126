"""Compaction of old revisions, as kube-apiserver does with etcd: each lives for at least five and at most ten minutes.

Rules kept here: current objects are never removed. Of several servers on one store, one compacts in
each interval. A failure is logged, and the next
interval tries again.
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
