"""Standard output and standard error of a program that serves, which no reader can stop.

Rules kept here:
* A write puts text into a queue, from which a thread writes it. A container's log driver, a terminal or a pager that does not read,
  and a disk that hangs, stop this thread alone.
* A write waits a moment for the thread, so that a line is out before what follows it, such as a response or the end of the process.
  Once it has waited in vain, no write waits until the queue is empty again.
* The queue is bounded. Text that finds no room is dropped and counted, and the next text that finds some is preceded by the count.
* A text stays whole: each write of a caller is queued or dropped as one.
* A reader that is gone loses what is written to it; the program goes on.
* The end of a program waits a moment for what is queued. A process that was forked begins with an empty queue and a thread of its
  own.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import time
from collections import deque
from typing import TextIO

MAX_WAITING = 1 << 20
"""Bytes that wait: a minute of a flood of refusals, or a day of an ordinary server."""
PIECE = 1 << 16
"""Bytes that are written at once."""
WRITE_SECONDS = 0.05
"""Time that a write waits for the thread: once in each stall, and as long as a request may hold the event loop."""
DRAIN_SECONDS = 1.0
"""Time that the end of a program waits for a reader."""


class QueuedStream(io.TextIOBase):
    """A text stream that writes to the descriptor of `stream` from a thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = stream.fileno()
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._size = 0
        """Bytes that are not written yet, those that the thread holds included."""
        self._dropped = 0
        self._is_stalled = False
        self._changed = threading.Condition()  # reentrant: a signal handler may write, too
        self._thread: threading.Thread | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute in typeshed, and a property in CPython
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # see above
        return self._stream.errors

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        """Write a text, queue it, or drop it. Waits WRITE_SECONDS at most, and raises for no reader."""
        data = text.encode(self.encoding, "backslashreplace")
        with self._changed:
            if self._size + len(data) > MAX_WAITING:
                self._dropped += 1
                return len(text)
            if self._dropped:
                notice = f"({self._dropped} lines are left out here, because they were not read)\n".encode()
                self._waiting.append(notice)
                self._size += len(notice)
                self._dropped = 0
            self._waiting.append(data)
            self._size += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if not self._is_stalled:
                self._is_stalled = not self._changed.wait_for(lambda: not self._size, WRITE_SECONDS)
        return len(text)

    def drain(self, seconds: float) -> None:
        """Wait until everything is written, at most so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                pieces = [self._waiting.popleft()]
                while self._waiting and sum(map(len, pieces)) < PIECE:
                    pieces.append(self._waiting.popleft())
            data = b"".join(pieces)
            self._write(data)
            with self._changed:
                self._size -= len(data)
                self._is_stalled = self._is_stalled and self._size > 0
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another program made the descriptor so; poll may see room that is too little
                time.sleep(WRITE_SECONDS)
            except OSError:
                return


def install() -> None:
    """Queue what this program writes to standard output and standard error from now on, as far as they are the process' own."""
    queued = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and stream is not None:
            stream.flush()
            queued.append(QueuedStream(stream))
            setattr(sys, name, queued[-1])
    if queued:
        atexit.register(drain)


def drain() -> None:
    """Wait until what was queued is written, DRAIN_SECONDS at most for each stream: before the end of a process, or a fork."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, QueuedStream):
            stream.drain(DRAIN_SECONDS)
        elif stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                continue  # its reader is gone
