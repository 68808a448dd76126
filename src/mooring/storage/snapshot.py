"""Snapshots: their format, with checksums, and the reading of a store into one while writes go on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mooring.errors import StorageError
from mooring.storage.contract import Entry, Storage
from mooring.storage.keyspace import pages

# Format of a snapshot: every entry of a store at one revision, with checksums. Pure: bytes in, bytes out.
#
# Integers are big-endian. A file is a prelude, frames, and an end:
#
#     prelude   magic (16 bytes), version (2), length of the header (4), header (JSON), digest (32)
#     frame     stored length (4), plain length (4), stored bytes, digest (32)
#     end       0 (4), 0 (4), number of entries (8), digest (32)
#
# * A digest is the SHA-256 of every byte before it, earlier digests included. A changed, missing or moved byte is found at the next
#   digest, before anything after it is used. The last digest names the snapshot. Digests find damage; they do not prove who wrote
#   the file.
# * The stored bytes of a frame are its records, compressed with zlib when the header says so. A record is the length of the key
#   (4), the revision of the last write (8), the revision of the creation (8), the length of the value (4), key, value.
# * Keys ascend, so that none is there twice. Values are kept as they are stored: encrypted ones stay encrypted.
# * A file of a later version is refused. Its prelude has the same layout up to the header.

MAGIC = b"mooring-snapshot"
VERSION = 1
MAX_HEADER = 4096
"""Bytes of a header: three short fields."""
MAX_FRAME = 64 << 20
"""Bytes of the records of one frame, which a reader holds in memory. The largest value of an object is 3 MiB."""
MAX_REVISION = 1 << 62
"""A store must be able to go on beyond the revision of a snapshot."""
LEVEL = 3
"""Level of zlib: objects in JSON shrink to about a seventh at 100 MB/s; higher levels gain a tenth and take three times as long."""

_PRELUDE = struct.Struct(">16sHI")
_FRAME = struct.Struct(">II")
_END = struct.Struct(">IIQ")
_RECORD = struct.Struct(">IQQI")
_DIGEST_BYTES = 32
_COMPRESSIONS = ("none", "zlib")


class SnapshotError(StorageError):
    """The bytes are not a whole snapshot."""


@dataclass(frozen=True, slots=True)
class Header:
    """Head of a snapshot."""

    revision: int
    """Revision of the store at which its entries were read."""
    time: str
    """Time of the snapshot (RFC 3339)."""
    compressed: bool = True


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of writing or reading a whole snapshot."""

    header: Header
    entries: int
    digest: str
    """`sha256:` and the last digest in hexadecimal digits."""


class SnapshotEncoder:
    """Writes one snapshot: `begin`, then `frame` for the entries in order of their keys, then `end`."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._hash = hashlib.sha256()
        self._entries = 0

    def begin(self) -> bytes:
        """Return the prelude."""
        compression = _COMPRESSIONS[self._header.compressed]
        header = json.dumps(
            {"revision": self._header.revision, "time": self._header.time, "compression": compression}
        ).encode()
        return self._sealed(_PRELUDE.pack(MAGIC, VERSION, len(header)) + header)

    def frame(self, entries: Sequence[Entry]) -> bytes:
        """Return a frame of at least one entry."""
        plain = b"".join(map(_record, entries))
        stored = zlib.compress(plain, LEVEL) if self._header.compressed else plain
        self._entries += len(entries)
        return self._sealed(_FRAME.pack(len(stored), len(plain)) + stored)

    def end(self) -> tuple[bytes, Summary]:
        """Return the end, and the result."""
        data = self._sealed(_END.pack(0, 0, self._entries))
        return data, Summary(self._header, self._entries, f"sha256:{data[-_DIGEST_BYTES:].hex()}")

    def _sealed(self, data: bytes) -> bytes:
        self._hash.update(data)
        digest = self._hash.digest()
        self._hash.update(digest)
        return data + digest


def _record(entry: Entry) -> bytes:
    key = entry.key.encode()
    return _RECORD.pack(len(key), entry.revision, entry.created, len(entry.value)) + key + entry.value


class SnapshotDecoder:
    """Reads one snapshot from pieces of any size. An entry is returned after the digest of its frame was verified.

    Every method raises SnapshotError for bytes that are not a whole snapshot; the message says where.
    """

    def __init__(self) -> None:
        self.header: Header | None = None
        """None until the prelude was read."""
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._offset = 0
        self._entries = 0
        self._last_key = ""
        self._summary: Summary | None = None
        self._step: Callable[[], list[Entry] | None] = self._read_prelude

    def feed(self, data: bytes) -> list[Entry]:
        """Return the entries that are complete with these bytes."""
        self._buffer += data
        found: list[Entry] = []
        while (entries := self._step()) is not None:
            found += entries
        return found

    def finish(self) -> Summary:
        """Return the result after the last byte was fed."""
        if self._summary is None:
            raise SnapshotError(
                f"the snapshot ends at byte {self._offset + len(self._buffer)}, before its end: it was cut off"
            )
        return self._summary

    # Each step returns None when it needs more bytes.

    def _read_prelude(self) -> list[Entry] | None:
        start = bytes(self._buffer[: len(MAGIC)])
        if not MAGIC.startswith(start):
            raise SnapshotError("this is no snapshot of Mooring")
        if len(self._buffer) < _PRELUDE.size:
            return None
        _, version, length = _PRELUDE.unpack_from(self._buffer)
        if version > VERSION:
            raise SnapshotError(
                f"the snapshot was written by a newer Mooring (format {version}): use that version, or a newer one"
            )
        if version != VERSION or length > MAX_HEADER:
            raise self._damaged()
        content = self._take_verified(_PRELUDE.size + length)
        if content is None:
            return None
        self.header = self._parse_header(content[_PRELUDE.size :])
        self._step = self._read_frame
        return []

    def _parse_header(self, text: bytes) -> Header:
        try:
            fields: Any = json.loads(text)
            revision, time, compression = fields["revision"], fields["time"], fields["compression"]
        except (ValueError, TypeError, LookupError, RecursionError):
            raise self._damaged() from None
        if type(revision) is not int or not 1 <= revision <= MAX_REVISION or not isinstance(time, str):
            raise self._damaged()
        if compression not in _COMPRESSIONS:
            raise self._damaged()
        return Header(revision, time, compression == "zlib")

    def _read_frame(self) -> list[Entry] | None:
        if len(self._buffer) < _FRAME.size:
            return None
        stored_length, plain_length = _FRAME.unpack_from(self._buffer)
        if not stored_length:
            return self._read_end()
        # zlib adds at most 0.1 % and some bytes to what it cannot compress
        if plain_length > MAX_FRAME or stored_length > MAX_FRAME + (MAX_FRAME >> 8):
            raise self._damaged()
        content = self._take_verified(_FRAME.size + stored_length)
        if content is None:
            return None
        entries = self._records(self._plain(content[_FRAME.size :], plain_length))
        self._entries += len(entries)
        return entries

    def _plain(self, stored: bytes, length: int) -> bytes:
        assert self.header is not None  # frames follow the prelude
        if not self.header.compressed:
            plain = stored
        else:
            decompressor = zlib.decompressobj()
            try:
                plain = decompressor.decompress(stored, length + 1)
            except zlib.error:
                raise self._damaged() from None
            if not decompressor.eof or decompressor.unused_data:
                raise self._damaged()
        if len(plain) != length:
            raise self._damaged()
        return plain

    def _records(self, plain: bytes) -> list[Entry]:
        assert self.header is not None  # frames follow the prelude
        entries: list[Entry] = []
        position = 0
        while position < len(plain):
            if position + _RECORD.size > len(plain):
                raise self._damaged()
            key_length, revision, created, value_length = _RECORD.unpack_from(plain, position)
            start = position + _RECORD.size
            position = start + key_length + value_length
            if position > len(plain) or not 1 <= created <= revision <= self.header.revision:
                raise self._damaged()
            try:
                key = plain[start : start + key_length].decode()
            except UnicodeDecodeError:
                raise self._damaged() from None
            if key <= self._last_key:
                raise self._damaged()
            self._last_key = key
            entries.append(Entry(key, plain[start + key_length : position], revision, created))
        return entries

    def _read_end(self) -> list[Entry] | None:
        content = self._take_verified(_END.size)
        if content is None:
            return None
        assert self.header is not None  # the end follows the prelude
        _, plain_length, entries = _END.unpack(content)
        if plain_length or entries != self._entries:
            raise self._damaged()
        self._summary = Summary(self.header, entries, f"sha256:{self._digest.hex()}")
        self._step = self._refuse_more
        return []

    def _refuse_more(self) -> list[Entry] | None:
        if self._buffer:
            raise SnapshotError(f"bytes follow the end of the snapshot at byte {self._offset}")
        return None

    def _take_verified(self, length: int) -> bytes | None:
        """Remove and return the next `length` bytes when the digest that follows them is there and right."""
        whole = length + _DIGEST_BYTES
        if len(self._buffer) < whole:
            return None
        content, digest = bytes(self._buffer[:length]), bytes(self._buffer[length:whole])
        self._hash.update(content)
        if self._hash.digest() != digest:
            raise self._damaged()
        self._hash.update(digest)
        self._digest = digest
        del self._buffer[:whole]
        self._offset += whole
        return content

    def _damaged(self) -> SnapshotError:
        return SnapshotError(f"the snapshot is damaged after byte {self._offset}")


# Reading a store into a snapshot, consistent at one revision, while writes go on.
#
# Rules kept here: the store is read by pages at the revision that was the newest at the beginning. Compressing and hashing run in
# a thread. Between two frames the caller may let other work run.

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
