"""Documents that each worker publishes for the others, and that stay when it ends.

Rules kept here:
* A document stands in memory that only the workers have open, with its length and a checksum, in one of two places in turn. A
  worker that is killed while it writes leaves the one before.
* Only the worker in whose place a document stands writes it; its replacement goes on where it ended.
"""

from __future__ import annotations

import os
import struct
import zlib

MAX_BYTES = 4 << 20
"""Bytes of a document: some 20 000 series of metrics. A longer one is not published."""
_HEADER = struct.Struct("<QII")
"""Number of the document, its length, and the CRC-32 of both and of its bytes."""
_PLACE = _HEADER.size + MAX_BYTES


class Publication:
    """Documents of one worker. `descriptor`: a file that belongs to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> bytes | None:
        """Return the newest whole document; None before the first."""
        found = [self._document(place) for place in (0, 1)]
        _, document = max(found, key=lambda one: one[0])
        return document

    def write(self, document: bytes) -> bool:
        """Publish a document. Return False when it is too long."""
        if len(document) > MAX_BYTES:
            return False
        number = max(self._document(place)[0] for place in (0, 1)) + 1
        header = _HEADER.pack(number, len(document), _checksum(number, document))
        os.pwrite(self._descriptor, header + document, number % 2 * _PLACE)
        return True

    def _document(self, place: int) -> tuple[int, bytes | None]:
        header = os.pread(self._descriptor, _HEADER.size, place * _PLACE)
        if len(header) < _HEADER.size:
            return 0, None
        number, length, checksum = _HEADER.unpack(header)
        document = os.pread(self._descriptor, min(length, MAX_BYTES), place * _PLACE + _HEADER.size)
        is_whole = number % 2 == place and len(document) == length and _checksum(number, document) == checksum
        return (number, document) if number and is_whole else (0, None)


def _checksum(number: int, document: bytes) -> int:
    return zlib.crc32(document, zlib.crc32(b"%d %d" % (number, len(document))))
