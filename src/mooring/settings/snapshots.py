"""Settings of scheduled snapshots, under k3s's names without their `etcd-`: they work on every storage driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.checks import integer_within
from mooring.settings.cron import Schedule, parse_schedule
from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import BOOLEAN, INTEGER, TEXT

MAX_KEPT = 10_000
"""Snapshots of one directory: each is listed at every look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings(Settings):
    """Snapshots that a server makes by itself."""

    heading: ClassVar[str] = "Snapshots"

    snapshot_schedule_cron: Schedule | None = setting(
        TEXT,
        default="",
        meaning='Times of snapshots in the notation of cron, UTC, such as "0 */12 * * *"; also @daily, @every 6h. Empty: none.',
        metavar="SCHEDULE",
        parse=parse_schedule,
        everyday=True,
    )
    snapshot_retention: int = setting(
        INTEGER, default=5, meaning="Number of scheduled snapshots that are kept.", parse=integer_within(1, MAX_KEPT)
    )
    snapshot_dir: str = setting(
        TEXT,
        default="",
        meaning="Directory of snapshots.",
        default_note="snapshots in the data directory",
        metavar="DIR",
    )
    snapshot_compress: bool = setting(BOOLEAN, default=True, meaning="Compress scheduled snapshots.")

    def directory(self, data_dir: str) -> str:
        """Return the directory of snapshots."""
        return self.snapshot_dir or f"{data_dir.rstrip('/')}/snapshots"
