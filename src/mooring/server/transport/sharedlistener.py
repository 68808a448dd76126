"""Accepts connections from listening sockets that several processes share, so that each takes its part.

Rules kept here:
* The numbers of connections of all workers are in shared memory (`mooring.server.hostshare`). A worker that has more than another
  waits a moment before it accepts, so that the other one is faster. It then accepts, whether the other one did or not:
  one that is busy or stopped delays a new connection by no more than `YIELD_SECONDS`.
* One descriptor is kept for the time when there is no other: with it connections are accepted and closed at once, so that their
  clients do not wait.
* Few connections are accepted in a turn of the loop, so that a burst is shared out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from mooring.reminders import Reminders
from mooring.server.hostshare.share import Counted, HostShare

log = logging.getLogger("mooring.server")

ACCEPTS_PER_TURN = 2
"""Connections that are accepted in one turn of the loop. A handshake takes about 1 ms, in which the others accept."""
YIELD_SECONDS = 0.002
"""Time for which a worker with more connections leaves new ones to the others: two handshakes."""
SLACK_PART = 8
"""A worker may have one part in so many more than another before it yields: nothing of few connections, a little of many."""
PAUSE_SECONDS = 1.0
"""Time without accepting after the process or the system ran out of descriptors or memory."""
TURNED_AWAY = 256
"""Connections that are closed in a turn without descriptors: each takes some 20 µs."""
_OUT_OF_MEANS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class SharedListener:
    """Accepts for one worker. Implements as much of `asyncio.Server` as `Listener` uses."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        share: HostShare,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`make_protocol` makes a protocol that counts its connection in `Counted.CONNECTIONS` of `share`.

        `refused` is called for each connection that was closed because no descriptor is left.
        """
        assert share.memory is not None
        self._loop = asyncio.get_running_loop()
        self.sockets = tuple(sockets)
        self._make_protocol = make_protocol
        self._worker = share.worker
        self._admitted, self._accepting = (share.memory.row(one) for one in (Counted.CONNECTIONS, Counted.ACCEPTING))
        self._connecting: set[asyncio.Task[object]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._closed = False
        self._refused = refused
        self._reserve: int | None = None
        self._reminders = Reminders(self._loop.time)

    def start(self) -> None:
        """Begin to accept."""
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._publish()
        for one in self.sockets:
            self._loop.add_reader(one.fileno(), self._readable, one)

    def close(self) -> None:
        """Stop accepting; the sockets stay open for the other workers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._accepting[self._worker] = 0
        if self._resting is not None:
            self._resting.cancel()
        if self._reserve is not None:
            os.close(self._reserve)
        for one in self.sockets:
            self._loop.remove_reader(one.fileno())
            one.close()  # the descriptor of this process; the parent and the other workers have theirs

    @property
    def connecting(self) -> bool:
        """True while an accepted connection has no protocol yet."""
        return bool(self._connecting)

    def least(self) -> int:
        """Return the least number of connections of a worker that accepts; 0 without one."""
        pairs = zip(self._admitted, self._accepting, strict=True)
        return min((admitted + accepting - 1 for admitted, accepting in pairs if accepting), default=0)

    def _publish(self) -> None:
        if not self._closed:
            self._accepting[self._worker] = 1 + len(self._connecting)

    def _readable(self, listening: socket.socket) -> None:
        least = self.least()
        if self._admitted[self._worker] + len(self._connecting) > least + least // SLACK_PART:
            self._rest(YIELD_SECONDS)
        else:
            self._accept(listening, ACCEPTS_PER_TURN)

    def _rest(self, seconds: float) -> None:
        for one in self.sockets:
            self._loop.remove_reader(one.fileno())
        self._resting = self._loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._resting = None
        for one in self.sockets:
            self._loop.add_reader(one.fileno(), self._readable, one)
            self._accept(one, 1)

    def _accept(self, listening: socket.socket, most: int) -> None:
        for _ in range(most):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_MEANS:
                    reason = (error.strerror or str(error)).lower()
                    if self._reminders.is_due("accept", reason):
                        log.error("connections cannot be accepted, and are closed: %s", reason)
                    self._turn_away(listening)
                    if self._resting is None:
                        self._rest(PAUSE_SECONDS)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connected)
        self._publish()

    def _turn_away(self, listening: socket.socket) -> None:
        """Accept the connections that wait with the descriptor that is kept, and close each at once."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        with suppress(OSError):  # none waits any more, or another thread took the descriptor
            for _ in range(TURNED_AWAY):
                accepted, _ = listening.accept()
                accepted.close()
                self._refused()
        with suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _connected(self, task: asyncio.Task[object]) -> None:
        self._connecting.discard(task)
        self._publish()

    async def _connect(self, accepted: socket.socket) -> object:
        try:
            return await self._loop.connect_accepted_socket(self._make_protocol, accepted)
        except OSError:
            accepted.close()  # the client has gone
            return None
