"""Place of one worker among those of its server: the sockets, the memory and the signals that they share."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from mooring.server.hostshare.share import Counted, HostMemory, HostShare
from mooring.storage import commitsignal
from mooring.storage.commitsignal import CommitSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Place of one worker."""

    number: int
    """Index among the workers that live at the same time."""
    sockets: tuple[socket.socket, ...]
    commits: CommitSignal
    share: HostShare


class Seats:
    """Everything that the workers share, made by the parent before its first fork."""

    def __init__(self, number: int, workers: int, sockets: tuple[socket.socket, ...]) -> None:
        """`workers`: how many serve, except during a restart."""
        self._sockets = sockets
        self._memory = HostMemory(number, workers)
        self._descriptors = commitsignal.descriptors(number)

    def of(self, number: int) -> Seat:
        """Return a place. Called after the fork, in the worker."""
        return Seat(
            number=number,
            sockets=self._sockets,
            commits=CommitSignal(self._descriptors, number),
            share=self._memory.share_of(number),
        )

    def beats(self, number: int) -> int:
        """Return the heartbeats that a worker has counted."""
        return self._memory.row(Counted.BEATS)[number]

    def clear(self, number: int) -> None:
        """Forget what a worker that has ended counted. Called before another one takes its place."""
        self._memory.clear(number)
