"""Line between the parent and one worker: short messages over a socket pair, one JSON array a line.

Rules kept here: neither side waits for the other. A side that reads nothing any more has ended, which the other sees as the end of
the stream.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

SERVING = "serving"
"""From a worker that accepts connections."""
FAILED = "failed"
"""From a worker that cannot start, with the message for the operator."""
ANNOUNCED = "announced"
"""From a worker that has done what is done once, when the server is ready."""
ANNOUNCE = "announce"
"""To one worker, when all serve for the first time."""
DRAIN = "drain"
"""To a worker that is to end."""
NEIGHBOUR_ENDED = "neighbour-ended"
"""To every worker, when another one ended: its Lease is free."""

READ_BYTES = 65536
MAX_TEXT = 8192
"""Characters of a message for the operator: it must fit the buffer of a socket."""


class Line:
    """One end of the line."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._partial = b""
        self.ended = False
        """The other side has ended."""

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._end.fileno()

    def send(self, word: str, text: str = "") -> None:
        """Send a message. One to a side that has ended is lost."""
        with suppress(OSError):
            self._end.sendall(json.dumps([word, text[:MAX_TEXT]]).encode() + b"\n")

    def receive(self) -> list[tuple[str, str]]:
        """Return the messages that have arrived."""
        try:
            data = self._end.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return []
        *whole, self._partial = (self._partial + data).split(b"\n")
        return [_message(line) for line in whole]

    def close(self) -> None:
        """Close this end."""
        self._end.close()


def _message(line: bytes) -> tuple[str, str]:
    found: Any = json.loads(line)
    return str(found[0]), str(found[1])


def line_pair() -> tuple[Line, Line]:
    """Return both ends of a new line."""
    one, other = socket.socketpair()
    return Line(one), Line(other)
