"""Cuts what an HTTP/2 client sends into frames, and says when it is too much.

Source: RFC 9113 4 to 6 and 10.5; the floods of CVE-2019-9511 to 9518, CVE-2023-44487 and CVE-2023-45288.

Rules kept here:
* One frame at a time and only whole ones leave this file, so that the caller bounds what it does in one turn of the loop.
* A frame is never larger than we said we take, and a header block no larger than HTTP/1.1's, however many frames carry it.
* Frames that make work and bring nothing (PING, SETTINGS, PRIORITY, small DATA, …) have a budget that fills up again with time;
  WINDOW_UPDATE has one that grows with what was sent. So have streams that the client resets, or that it opens in vain.
* A client's GOAWAY only says that it opens no more streams; those that are open end as they would.

Pure: bytes and the time go in, frames come out.
"""

from __future__ import annotations

from h2.errors import ErrorCodes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = 9
MAX_FRAME = 1 << 14
"""RFC 9113 6.5.2: what every peer may send, and as much as a TLS record carries. We do not ask for more."""
MAX_BLOCK = 64 << 10
"""Bytes of one header block as sent: what HTTP/1.1 may have before it is decoded (`http.MAX_HEADER_BYTES`)."""
SMALL_DATA = 1024
"""DATA frames below this that do not end their stream cost: one of 16 kB takes as long as an empty one."""
FREE_FRAMES = 1000
"""Frames that may come at once for nothing: the end of 250 watches with Go's PING beside each RST_STREAM, four times over."""
FRAMES_PER_SECOND = 100.0
"""And then: each takes 20 µs of everybody's time. client-go sends one PING in 30 s."""
SETTINGS_COST = 10
"""A change of the initial window is a change of every stream."""
OCTETS_PER_UPDATE = 1024
"""A WINDOW_UPDATE for so much sent is free. Go's client sends one of a stream and one of the connection for 4 kB."""
MAX_UPDATES = 20_000
"""As many updates may be due: twice 4 kB each for the largest list that a client holds unread."""
FREE_RESETS = 1000
"""Streams that may be reset at once: all watches of a connection, four times over."""
RESETS_PER_SECOND = 100.0
"""And then; kube-apiserver has no such limit, Go bounds handlers instead, which we do as well (`http2.MAX_STREAMS`)."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 0x1, 0x4


class Misbehaviour(Exception):  # noqa: N818 - of the client; it is no error of ours
    """The connection ends with `code`."""

    def __init__(self, code: ErrorCodes, why: str) -> None:
        super().__init__(why)
        self.code = code


class Budget:
    """What may be spent: `size` at once, `rate` a second after that."""

    __slots__ = ("_at", "_left", "_rate", "_size")

    def __init__(self, size: int, rate: float, now: float) -> None:
        self._left = float(size)
        self._size = size
        self._rate = rate
        self._at = now

    def spend(self, cost: int, now: float) -> bool:
        """Whether there was enough."""
        self._left = min(self._size, self._left + (now - self._at) * self._rate) - cost
        self._at = now
        return self._left >= 0


class Guard:
    """Of one connection. `now` is seconds of any clock that only goes forward."""

    __slots__ = ("_block", "_budget", "_held", "_resets", "_started", "_updates", "block_since", "leaving")

    def __init__(self, now: float) -> None:
        self._held = bytearray()
        self._started = False
        self._block = -1
        self._updates = 0.0
        self._budget = Budget(FREE_FRAMES, FRAMES_PER_SECOND, now)
        self._resets = Budget(FREE_RESETS, RESETS_PER_SECOND, now)
        self.block_since = 0.0
        """When the header block began that is not whole yet; 0 when there is none."""
        self.leaving = False
        """The client has said that it opens no more streams."""

    def take(self, data: bytes) -> None:
        """Bytes of the client."""
        self._held += data

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole, and of a header block that is not."""
        return len(self._held) + max(self._block, 0)

    def sent(self, octets: int) -> None:
        """That much of bodies went to the client, which may update its windows for it."""
        self._updates = min(MAX_UPDATES, self._updates + octets / OCTETS_PER_UPDATE)

    def frame(self, now: float) -> bytes | None:
        """The next whole frame, the first time with the preface before it. Raises Misbehaviour."""
        while True:
            start = 0 if self._started else len(PREFACE)
            held = self._held
            if start and not PREFACE.startswith(held[:start]):
                raise Misbehaviour(ErrorCodes.PROTOCOL_ERROR, "this is not HTTP/2")
            if len(held) < start + FRAME_HEADER:
                return None
            length = int.from_bytes(held[start : start + 3])
            kind, flags = held[start + 3], held[start + 4]
            if length > MAX_FRAME:
                raise Misbehaviour(ErrorCodes.FRAME_SIZE_ERROR, "the frame is too large")
            if start and kind != SETTINGS:
                raise Misbehaviour(ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            end = start + FRAME_HEADER + length
            if len(held) < end:
                return None
            frame = bytes(held[:end])
            del held[:end]
            self._started = True
            self._judge(kind, flags, length, now)
            if kind != GOAWAY:
                return frame
            self.leaving = True

    def in_vain(self, now: float) -> None:
        """The client sent something that makes work for nothing. Raises Misbehaviour."""
        self._spend(1, now)

    def reset(self, now: float) -> None:
        """A stream ended before its time. Raises Misbehaviour."""
        if not self._resets.spend(1, now):
            raise Misbehaviour(ErrorCodes.ENHANCE_YOUR_CALM, "too many streams are reset")

    def _judge(self, kind: int, flags: int, length: int, now: float) -> None:
        if kind == HEADERS or (kind == CONTINUATION and self._block >= 0):
            self._collect(kind, flags, length, now)
        elif self._block >= 0:
            raise Misbehaviour(ErrorCodes.PROTOCOL_ERROR, "a header block is interrupted")
        elif kind == DATA:
            if length < SMALL_DATA and not flags & END_STREAM:
                self._spend(1, now)
        elif kind == RST_STREAM:
            self.reset(now)
        elif kind == WINDOW_UPDATE and self._updates >= 1:
            self._updates -= 1
        else:
            self._spend(SETTINGS_COST if kind == SETTINGS else 1, now)

    def _collect(self, kind: int, flags: int, length: int, now: float) -> None:
        if kind == CONTINUATION:
            self._spend(1, now)
        elif self._block >= 0:
            raise Misbehaviour(ErrorCodes.PROTOCOL_ERROR, "a header block is interrupted")
        else:
            self._block = 0
            self.block_since = now
        self._block += length
        if self._block > MAX_BLOCK:
            raise Misbehaviour(ErrorCodes.ENHANCE_YOUR_CALM, "the header block is too large")
        if flags & END_HEADERS:
            self._block = -1
            self.block_since = 0.0

    def _spend(self, cost: int, now: float) -> None:
        if not self._budget.spend(cost, now):
            raise Misbehaviour(ErrorCodes.ENHANCE_YOUR_CALM, "too many frames that bring nothing")
