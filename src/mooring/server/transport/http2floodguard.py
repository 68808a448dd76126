"""Split an HTTP/2 client's bytes into frames, and detect floods of frames, resets and headers.

Source: RFC 9113 4 to 6 and 10.5; the floods of CVE-2019-9511 to 9518, CVE-2023-44487 and CVE-2023-45288.

Rules kept here:
* Only whole frames are returned, one at a time, so that the caller bounds its work in one turn of the event loop.
* A frame is at most `MAX_FRAME`, and a header block no larger than HTTP/1.1 allows, however many frames carry it.
* Frames that cause work and carry no request or reply (PING, SETTINGS, PRIORITY, small DATA, …) have a budget that refills with
  time. So have resets of streams. The budget of WINDOW_UPDATE grows with the bytes that were sent.
* A GOAWAY of the client means that it opens no more streams. Open streams end normally.

Pure: bytes and the time are arguments, frames are results.
"""

from __future__ import annotations

from h2.errors import ErrorCodes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = 9
MAX_FRAME = 1 << 14
"""Bytes of a frame: the default that every peer may send (RFC 9113 6.5.2), and the size of a TLS record."""
MAX_BLOCK = 64 << 10
"""Bytes of one encoded header block, as many as HTTP/1.1 headers may have (`http.MAX_HEADER_BYTES`)."""
SMALL_DATA = 1024
"""Bytes below which a DATA frame that does not end its stream is charged: it takes as long as one of 16 kB."""
FREE_FRAMES = 1000
"""Frames that are free at once: the end of 250 watches with Go's PING beside each RST_STREAM, four times over."""
FRAMES_PER_SECOND = 100.0
"""Rate after that. Each takes 20 µs of the event loop. client-go sends one PING in 30 s."""
SETTINGS_COST = 10
"""Charge of a SETTINGS frame, in frames: it may change the window of every stream."""
BYTES_PER_UPDATE = 1024
"""Bytes sent for which one WINDOW_UPDATE is free. Go's client sends two for 4 kB: for the stream and the connection."""
MAX_UPDATES = 20_000
"""Bound of the free updates: two for each 4 kB of the largest list that a client holds unread."""
FREE_RESETS = 1000
"""Streams that a client may reset at once: all watches of a connection, four times over."""
RESETS_PER_SECOND = 100.0
"""Rate after that. kube-apiserver has no such limit: Go bounds running handlers instead, as `http2stream.MAX_STREAMS` does too."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 0x1, 0x4


class ClientProtocolError(Exception):
    """The client broke the protocol or a limit. The connection ends with `code`."""

    def __init__(self, code: ErrorCodes, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Budget:
    """Token bucket: `size` at once, then `rate` a second."""

    __slots__ = ("_at", "_left", "_rate", "_size")

    def __init__(self, size: int, rate: float, now: float) -> None:
        self._left = float(size)
        self._size = size
        self._rate = rate
        self._at = now

    def spend(self, cost: int, now: float) -> bool:
        """Spend `cost`. Return False when the budget is exceeded."""
        self._left = min(self._size, self._left + (now - self._at) * self._rate) - cost
        self._at = now
        return self._left >= 0


class FloodGuard:
    """Frame reader of one connection. `now` is seconds of a monotonic clock."""

    __slots__ = ("_block", "_budget", "_held", "_resets", "_started", "_updates", "block_since", "leaving")

    def __init__(self, now: float) -> None:
        self._held = bytearray()
        self._started = False
        self._block = -1
        self._updates = 0.0
        self._budget = Budget(FREE_FRAMES, FRAMES_PER_SECOND, now)
        self._resets = Budget(FREE_RESETS, RESETS_PER_SECOND, now)
        self.block_since = 0.0
        """Time at which the incomplete header block began; 0 when there is none."""
        self.leaving = False
        """True once the client has sent GOAWAY."""

    def take(self, data: bytes) -> None:
        """Add bytes of the client."""
        self._held += data

    @property
    def held(self) -> int:
        """Bytes of an incomplete frame and of an incomplete header block."""
        return len(self._held) + max(self._block, 0)

    def sent(self, size: int) -> None:
        """Note bytes of bodies that were sent, for which the client may send window updates."""
        self._updates = min(MAX_UPDATES, self._updates + size / BYTES_PER_UPDATE)

    def frame(self, now: float) -> bytes | None:
        """Return the next whole frame, the first one with the preface before it. Raises ClientProtocolError."""
        while True:
            start = 0 if self._started else len(PREFACE)
            held = self._held
            if start and not PREFACE.startswith(held[:start]):
                raise ClientProtocolError(ErrorCodes.PROTOCOL_ERROR, "this is not HTTP/2")
            if len(held) < start + FRAME_HEADER:
                return None
            length = int.from_bytes(held[start : start + 3])
            kind, flags = held[start + 3], held[start + 4]
            if length > MAX_FRAME:
                raise ClientProtocolError(ErrorCodes.FRAME_SIZE_ERROR, "the frame is too large")
            if start and kind != SETTINGS:
                raise ClientProtocolError(ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            end = start + FRAME_HEADER + length
            if len(held) < end:
                return None
            frame = bytes(held[:end])
            del held[:end]
            self._started = True
            self._charge(kind, flags, length, now)
            if kind != GOAWAY:
                return frame
            self.leaving = True

    def useless(self, now: float) -> None:
        """Charge for a frame that has no effect. Raises ClientProtocolError."""
        self._spend(1, now)

    def reset(self, now: float) -> None:
        """Charge for a stream that was reset. Raises ClientProtocolError."""
        if not self._resets.spend(1, now):
            raise ClientProtocolError(ErrorCodes.ENHANCE_YOUR_CALM, "too many streams are reset")

    def _charge(self, kind: int, flags: int, length: int, now: float) -> None:
        if kind == HEADERS or (kind == CONTINUATION and self._block >= 0):
            self._add_to_block(kind, flags, length, now)
        elif self._block >= 0:
            raise ClientProtocolError(ErrorCodes.PROTOCOL_ERROR, "a header block is interrupted")
        elif kind == DATA:
            if length < SMALL_DATA and not flags & END_STREAM:
                self._spend(1, now)
        elif kind == RST_STREAM:
            self.reset(now)
        elif kind == WINDOW_UPDATE and self._updates >= 1:
            self._updates -= 1
        else:
            self._spend(SETTINGS_COST if kind == SETTINGS else 1, now)

    def _add_to_block(self, kind: int, flags: int, length: int, now: float) -> None:
        if kind == CONTINUATION:
            self._spend(1, now)
        elif self._block >= 0:
            raise ClientProtocolError(ErrorCodes.PROTOCOL_ERROR, "a header block is interrupted")
        else:
            self._block = 0
            self.block_since = now
        self._block += length
        if self._block > MAX_BLOCK:
            raise ClientProtocolError(ErrorCodes.ENHANCE_YOUR_CALM, "the header block is too large")
        if flags & END_HEADERS:
            self._block = -1
            self.block_since = 0.0

    def _spend(self, cost: int, now: float) -> None:
        if not self._budget.spend(cost, now):
            raise ClientProtocolError(ErrorCodes.ENHANCE_YOUR_CALM, "too many frames that bring nothing")
