"""Count the TLS records of a client, so that small and empty ones cannot hold the event loop (RFC 8446 5.1, RFC 5246 6.2.1).

Rules kept here:
* A record costs about as much with one byte as with 16 kB: 8 µs with data, 17 µs when it replaces the keys (KeyUpdate). 64 kB may
  be thousands of them, so that a turn of the event loop is bounded in records, too.
* After the handshake a client needs no record without data but a close_notify and, after 2^24 records, a KeyUpdate. Go's server
  ends a connection after 16 of them in a row; here a budget counts them, so that data in between does not help.

Pure: bytes and seconds are arguments.
"""

from __future__ import annotations

HEADER = 5
"""Bytes of a record's header: type, version, and the length of what follows."""
RECORDS_PER_TURN = 32
"""Records of one connection that are decrypted in a turn of the event loop: half a megabyte of a large body, or 0.6 ms."""
FREE_RECORDS = 100
"""Records without data that are free at once. Those whose data HTTP has not taken yet count meanwhile: at most a turn's."""
RECORDS_PER_SECOND = 1.0
"""Rate after that. OpenSSL and Go replace keys every few hundred gigabytes."""


class TlsRecords:
    """Records of one connection. `begun` is their number."""

    __slots__ = ("_header", "_left", "_since", "_without_data", "begun")

    def __init__(self) -> None:
        self.begun = 0
        self._header = b""
        self._left = 0
        self._since = 0.0
        self._without_data = 0

    def end_of(self, data: bytes | memoryview, most: int) -> int:
        """Return the end of the next bytes of the client, `data`, that begin at most `most` records, and count these."""
        end, begun = 0, 0
        while end < len(data):
            if not self._left:
                if not self._header:
                    if begun == most:
                        break
                    begun += 1
                missing = HEADER - len(self._header)
                self._header += bytes(data[end : end + missing])
                end = min(end + missing, len(data))
                if len(self._header) < HEADER:
                    break
                self._left = int.from_bytes(self._header[3:])
                self._header = b""
            taken = min(self._left, len(data) - end)
            self._left -= taken
            end += taken
        self.begun += begun
        return end

    def start(self, now: float) -> None:
        """Begin to count records without data: the handshake has ended."""
        self._since = now

    def are_too_empty(self, begun: int, with_data: int, now: float) -> bool:
        """Return True when too many records of the client had no data, with `begun` more, and `with_data` more that had."""
        self._without_data += begun - with_data
        return self._without_data > FREE_RECORDS + (now - self._since) * RECORDS_PER_SECOND
