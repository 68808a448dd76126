"""Snapshots: one file, the directory of them, and the schedule."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mooring.client.files import atomic_file, make_directory, open_file
from mooring.clock import Clock, rfc3339
from mooring.errors import ConfigError, StorageError
from mooring.settings.snapshots import Schedule
from mooring.storage.contract import CompactedError, Entry, Storage
from mooring.storage.copying import refuse_incomplete
from mooring.storage.keyspace import is_copied
from mooring.storage.snapshot import Capture, Header, SnapshotDecoder, SnapshotError, Summary

# One snapshot as a file: saved whole or not at all, and read in pieces.
#
# Rules kept here: the file is 0600 and appears under its name after its last byte is on the disk (`mooring.client.files`), and
# after it was read back and verified. A snapshot that was damaged on its way takes no other's place. Writing and reading need the
# memory of one frame. Work for the processor and the disk runs in a thread.

READ_BYTES = 1 << 20
HEADER_BYTES = 64
"""Bytes read at a time up to the end of the header, so that next to nothing behind it is read."""
ATTEMPTS = 3
"""Beginnings of a snapshot. The revision that it reads stays for five minutes at least; a slower reading has to begin again."""


async def pause_never(seconds: float) -> None:
    """Go on at once after a piece that took so many seconds."""


async def save(
    storage: Storage,
    path: Path,
    clock: Clock,
    *,
    compressed: bool,
    pause: Callable[[float], Awaitable[None]] = pause_never,
) -> Summary:
    """Save the cluster in an open store. `pause` is awaited after each piece, with the seconds that it took.

    Raises ConfigError when the file cannot be written, StorageError.
    """
    await refuse_incomplete(storage)
    for attempts_left in reversed(range(ATTEMPTS)):
        capture = Capture(storage, rfc3339(clock.now()), compressed=compressed)
        try:
            with atomic_file(path) as file:
                began = clock.monotonic()
                async for piece in capture.pieces():
                    await asyncio.to_thread(file.write, piece)
                    await pause(clock.monotonic() - began)
                    began = clock.monotonic()
                await asyncio.to_thread(file.flush)
                await asyncio.to_thread(os.fsync, file.fileno())
                # The last piece was yielded.
                assert capture.summary is not None
                await _read_back(file.fileno(), capture.summary, clock, pause)
        except CompactedError as error:
            if not attempts_left:
                raise StorageError(
                    "the snapshot took longer than old revisions are kept; save it to a faster disk"
                ) from error
        else:
            return capture.summary
    raise AssertionError("the last attempt returns or raises")


async def _read_back(
    descriptor: int, written: Summary, clock: Clock, pause: Callable[[float], Awaitable[None]]
) -> None:
    """Raise SnapshotError unless the file is what was written, as far as the disk says."""
    decoder = SnapshotDecoder()
    offset = 0
    # Not on macOS.
    if hasattr(os, "posix_fadvise"):
        # Else memory is read, and not the disk.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    began = clock.monotonic()
    while data := await asyncio.to_thread(os.pread, descriptor, READ_BYTES, offset):
        offset += len(data)
        await asyncio.to_thread(decoder.feed, data)
        await pause(clock.monotonic() - began)
        began = clock.monotonic()
    if decoder.finish() != written:
        raise SnapshotError("the snapshot on the disk is another one than was written")


async def entries(path: Path) -> AsyncIterator[Sequence[Entry]]:
    """Yield the entries of a snapshot in parts that are not empty. Raises ConfigError, SnapshotError.

    The parts before the damage of a damaged file are yielded: `verify` comes first.
    """
    decoder = SnapshotDecoder()
    with open_file(path) as file, _naming(path):
        while data := file.read(READ_BYTES):
            if part := await asyncio.to_thread(_entries, decoder, data):
                yield part
        decoder.finish()


def _entries(decoder: SnapshotDecoder, data: bytes) -> list[Entry]:
    """Return the entries that are complete with these bytes. Raises SnapshotError, also for keys that are part of no snapshot."""
    found = decoder.feed(data)
    if not all(is_copied(entry.key) for entry in found):
        raise SnapshotError(
            "the snapshot has a key that Mooring writes into none: another program made it; use another"
        )
    return found


def verify(path: Path) -> Summary:
    """Read a whole snapshot. Raises ConfigError when it cannot be read, SnapshotError when it is not whole."""
    decoder = SnapshotDecoder()
    with open_file(path) as file, _naming(path):
        while data := file.read(READ_BYTES):
            _entries(decoder, data)
        return decoder.finish()


def read_header(path: Path) -> Header:
    """Return the header of a snapshot, whose rest is not read. Raises ConfigError, SnapshotError."""
    decoder = SnapshotDecoder()
    with open_file(path) as file, _naming(path):
        while decoder.header is None:
            data = file.read(HEADER_BYTES)
            if not data:
                decoder.finish()
            decoder.feed(data)
        return decoder.header


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the path before errors about the content."""
    try:
        yield
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from None


# Directory of snapshots: names, the list, and which scheduled ones are kept.
#
# Rules kept here: a name has the reason and the time of a snapshot, so that names sort by time. Only files that a schedule made
# are ever removed, and only after a newer one is whole.

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
        # Digits that are not a time.
        with suppress(ValueError):
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


# Scheduled snapshots in a server.
#
# Rules kept here:
# * Only the server that runs the controllers makes them, so that a cluster has one for each time.
# * A failure leaves the older snapshots, is logged, counted, and a warning of the health checks; the next time tries again. Old
#   ones are removed after a new one is on the disk.
# * After each piece of work the snapshot rests for REST_FACTOR times as long, so that it uses a quarter of a core at most.
# * A time that passes while the server is stopped or another one leads is left out. `@every` counts from the newest snapshot in
#   the directory, so that restarts do not put it off.

log = logging.getLogger("mooring.controlplane")

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
                # From here on it concerns another server.
                self.problem = ""
            due = self._schedule.next_after(self._clock.now())

    def _first_time(self) -> datetime:
        newest = None
        if self._schedule.every is not None:
            # The directory is made by the first snapshot.
            with suppress(OSError):
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
