"""Scheduled snapshots in a server.

Rules kept here:
* Only the server that runs the controllers makes them, so that a cluster has one for each time.
* A failure leaves the older snapshots, is logged, counted, and a warning of the health checks; the next time tries again. Old ones
  are removed after a new one is on the disk.
* After each piece of work the snapshot rests for REST_FACTOR times as long, so that it uses a quarter of a core at most.
* A time that passes while the server is stopped or another one leads is left out. `@every` counts from the newest snapshot in the
  directory, so that restarts do not put it off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from mooring.client.files import make_directory
from mooring.clock import Clock
from mooring.errors import ConfigError, StorageError
from mooring.plane.snapshots.directory import SCHEDULED, newest_scheduled, remove_old, snapshot_path
from mooring.plane.snapshots.file import save
from mooring.settings.snapshots import Schedule
from mooring.storage.contract import Storage

log = logging.getLogger("mooring.plane")

REST_FACTOR = 3
LOOK_SECONDS = 30.0
"""Longest sleep before the clock is read again: a clock that was set, or a machine that slept, delays a snapshot by no more."""


class ScheduledSnapshots:
    """Makes the snapshots of one server."""

    def __init__(
        self,
        storage: Storage,
        schedule: Schedule,
        directory: Path,
        clock: Clock,
        *,
        keep: int,
        compressed: bool,
        leads: Callable[[], bool],
    ) -> None:
        """`storage` holds values as they are stored. `leads` returns whether this server runs the controllers."""
        self._storage = storage
        self._schedule = schedule
        self._directory = directory
        self._clock = clock
        self._keep = keep
        self._compressed = compressed
        self._leads = leads
        self.last_success = 0.0
        """Unix time of the last snapshot of this process; 0 before the first."""
        self.saved_bytes = 0
        """Size of that snapshot."""
        self.failures = 0
        self.problem = ""
        """Message of the last attempt when it failed; "" in a server that does not lead."""

    async def run(self) -> None:
        """Make snapshots at the times of the schedule, until cancelled."""
        due = await asyncio.to_thread(self._first_time)
        while True:
            left = (due - self._clock.now()).total_seconds()
            if left > 0:
                await self._clock.sleep(min(left, LOOK_SECONDS))
                continue
            if self._leads():
                await self.make()
            else:
                self.problem = ""  # from here on it concerns another server
            due = self._schedule.next_after(self._clock.now())

    def _first_time(self) -> datetime:
        newest = None
        if self._schedule.every is not None:
            with suppress(OSError):  # the directory is made by the first snapshot
                newest = newest_scheduled(self._directory)
        return self._schedule.next_after(newest or self._clock.now())

    async def make(self) -> None:
        """Make one snapshot and remove old ones. A failure is kept in `problem`."""
        path = snapshot_path(self._directory, SCHEDULED, self._clock.now())
        try:
            await asyncio.to_thread(make_directory, self._directory)
            summary = await save(self._storage, path, self._clock, compressed=self._compressed, pause=self._rest)
            self.saved_bytes = (await asyncio.to_thread(path.stat)).st_size
            await asyncio.to_thread(remove_old, self._directory, self._keep)
        except (ConfigError, StorageError, OSError) as error:
            self.failures += 1
            self.problem = str(error)
            log.error("the scheduled snapshot failed, and older ones are kept: %s", error)
            return
        self.problem = ""
        self.last_success = self._clock.now().replace(tzinfo=UTC).timestamp()
        log.info("snapshot %s with %d entries at revision %d", path, summary.entries, summary.header.revision)

    async def _rest(self, worked: float) -> None:
        await self._clock.sleep(REST_FACTOR * worked)
