"""One snapshot as a file: saved whole or not at all, and read in pieces.

Rules kept here: the file is 0600 and appears under its name after its last byte is on the disk (`mooring.client.files`), and after
it was read back and verified. A snapshot that was damaged on its way takes no other's place. Writing
and reading need the memory of one frame. Work for the processor and the disk runs in a thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mooring.client.files import atomic_file, open_file
from mooring.clock import Clock, rfc3339
from mooring.errors import StorageError
from mooring.storage.contract import CompactedError, Entry, Storage
from mooring.storage.copying import refuse_incomplete
from mooring.storage.keyspace import is_copied
from mooring.storage.snapshot import Capture, Header, SnapshotDecoder, SnapshotError, Summary

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
                assert capture.summary is not None  # the last piece was yielded
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
    if hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # else memory is read, and not the disk
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
