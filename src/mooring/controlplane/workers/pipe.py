"""Pipe between the parent and one worker, and the heartbeats by which the parent notices one that hangs."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mooring.server.sharedmemory import Count

# Pipe between the parent and one worker: short messages over a socket pair, one JSON array a line.
#
# Rules kept here: neither side waits for the other. A side that reads nothing any more has ended, which the other sees as the end
# of the stream.

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


class WorkerPipe:
    """One end of the pipe."""

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


def line_pair() -> tuple[WorkerPipe, WorkerPipe]:
    """Return both ends of a new pipe."""
    one, other = socket.socketpair()
    return WorkerPipe(one), WorkerPipe(other)


# Heartbeats of the workers: each counts turns of its event loop, and the parent looks whether the counts change.
#
# Rules kept here:
# * A count is one word of shared memory, written by its worker only (`mooring.server.sharedmemory`). It is written by the
#   event loop and by no thread: a loop that does not turn any more is what the parent looks for.
# * The parent counts its own looks, and not the time. When the machine was suspended or all processes were stopped, at most one
#   look passes before the workers run again.

BEAT_SECONDS = 1.0
LOOK_SECONDS = 5.0
"""Time between two looks of the parent, which sleeps otherwise."""
HUNG_LOOKS = 12
"""Looks in a row at an unchanged count after which a worker hangs: a minute.

No request holds the loop for 50 ms on a quiet core. The rest leaves room for a machine that swaps, a frozen disk under the log, and
a debugger that reads the memory of the process.
"""


def beat(loop: asyncio.AbstractEventLoop, count: Count, number: int = 1) -> None:
    """Set the count of this worker now and every second while the loop runs."""
    count.set(number)
    loop.call_later(BEAT_SECONDS, beat, loop, count, number + 1)


class Looks:
    """Looks of the parent at the counts of all workers."""

    def __init__(self, seconds: float = LOOK_SECONDS, hung_after: int = HUNG_LOOKS) -> None:
        self._seconds = seconds
        self._hung_after = hung_after
        self._unchanged: dict[int, tuple[int, int]] = {}
        """By process: its count at the last look, and the number of looks that have found it unchanged."""
        self.due = 0.0
        """Monotonic time of the next look."""

    @property
    def span(self) -> float:
        """Least time in seconds for which the count of a process that hangs is unchanged."""
        return self._seconds * self._hung_after

    def hung(self, counts: Mapping[int, int], now: float) -> list[int]:
        """Look at the counts, by process, and return the processes that hang. They are returned again after as many looks."""
        self.due = now + self._seconds
        hung, before, self._unchanged = [], self._unchanged, {}
        for process, count in counts.items():
            last, looks = before.get(process, (count, -1))
            looks = looks + 1 if count == last else 0
            if looks >= self._hung_after:
                hung.append(process)
                looks = 0
            self._unchanged[process] = count, looks
        return hung
