"""Reading a store into a snapshot, consistent at one revision, while writes go on.

Rules kept here: the store is read by pages at the revision that was the newest at the beginning. Compressing and hashing run in a
thread. Between two frames the caller may let other work run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from mooring.storage.contract import Entry, Storage
from mooring.storage.keyspace import pages
from mooring.storage.snapshot.format import Header, SnapshotEncoder, Summary

FRAME_BYTES = 256 * 1024
"""Bytes of values in one frame: about 3 ms of compression."""


class Capture:
    """One snapshot of an open store."""

    def __init__(self, storage: Storage, time: str, *, compressed: bool = True) -> None:
        """`time`: the time of the snapshot (RFC 3339)."""
        self._storage = storage
        self._time = time
        self._compressed = compressed
        self.summary: Summary | None = None
        """None until the last piece was yielded."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the file. Raises CompactedError when the revision is compacted meanwhile, StorageError."""
        revision = await self._storage.revision()
        encoder = SnapshotEncoder(Header(revision, self._time, self._compressed))
        yield encoder.begin()
        async for page in pages(self._storage, revision):
            for batch in _batches(page):
                yield await asyncio.to_thread(encoder.frame, batch)
        data, self.summary = encoder.end()
        yield data


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Divide the entries of a page by FRAME_BYTES."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += len(entry.key) + len(entry.value)
        if size >= FRAME_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
