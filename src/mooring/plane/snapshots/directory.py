"""Directory of snapshots: names, the list, and which scheduled ones are kept.

Rules kept here: a name has the reason and the time of a snapshot, so that names sort by time. Only files that a schedule made are
ever removed, and only after a newer one is whole.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mooring.errors import ConfigError, StorageError
from mooring.plane.snapshots.file import read_header
from mooring.storage.snapshot import Header

SCHEDULED, ON_DEMAND = "scheduled", "on-demand"
SUFFIX = ".snapshot"
_TIME = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(rf"(?:{SCHEDULED}|{ON_DEMAND})-(\d{{8}}T\d{{6}}Z){re.escape(SUFFIX)}")
_SCHEDULED_NAME = re.compile(rf"{SCHEDULED}-(\d{{8}}T\d{{6}}Z){re.escape(SUFFIX)}")


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file of the directory. `header` is None when it is not a snapshot; `problem` says why."""

    path: Path
    size: int
    header: Header | None
    problem: str = ""


def snapshot_path(directory: Path, reason: str, now: datetime) -> Path:
    """Return the file of a snapshot that is made now."""
    return directory / f"{reason}-{now.astimezone(UTC).strftime(_TIME)}{SUFFIX}"


def list_snapshots(directory: Path) -> list[SnapshotFile]:
    """Return the snapshots in a directory, in order of their names. Only heads of files are read. Raises ConfigError."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIX))
    except OSError as error:
        raise ConfigError(f"{directory} cannot be read: {error.strerror}; check the path") from error
    return [_listed(path) for path in paths]


def newest(directory: Path) -> SnapshotFile | None:
    """Return the snapshot whose name has the latest time, None without one. Raises ConfigError."""
    try:
        named = [(match[1], path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    except OSError as error:
        raise ConfigError(f"{directory} cannot be read: {error.strerror}; check the path") from error
    return _listed(max(named)[1]) if named else None


def _listed(path: Path) -> SnapshotFile:
    size = 0
    try:
        size = path.stat().st_size
        return SnapshotFile(path, size, read_header(path))
    except OSError as error:
        return SnapshotFile(path, size, None, str(error.strerror))
    except (ConfigError, StorageError) as error:
        return SnapshotFile(path, size, None, str(error))


def newest_scheduled(directory: Path) -> datetime | None:
    """Return the time of the newest scheduled snapshot, None without one. Raises OSError."""
    for path in reversed(_scheduled(directory)):
        match = _SCHEDULED_NAME.fullmatch(path.name)
        assert match is not None
        with suppress(ValueError):  # digits that are not a time
            return datetime.strptime(match[1], _TIME).replace(tzinfo=UTC)
    return None


def remove_old(directory: Path, keep: int) -> list[Path]:
    """Remove the oldest scheduled snapshots until `keep` are left. Return the removed ones. Raises OSError."""
    scheduled = _scheduled(directory)
    removed = []
    for path in scheduled[: max(0, len(scheduled) - keep)]:
        with suppress(FileNotFoundError):
            path.unlink()
            removed.append(path)
    return removed


def _scheduled(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if _SCHEDULED_NAME.fullmatch(path.name))
