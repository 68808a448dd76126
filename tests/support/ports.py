"""Ports for the servers that tests start.

Rules kept here: a port is one that the system gives to no outgoing connection, so that a server that was stopped can have it again
(a client that connects to a port of the ephemeral range of its own machine may be given that very port, and is then connected with
itself). No two processes share a block of ports: one worker of a test run never takes what another one is about to listen on.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import BinaryIO

FIRST = 15_000
"""Above what services commonly listen on."""
EPHEMERAL = 32_768
"""Where Linux begins to choose by default."""
BLOCK = 200

_held: list[BinaryIO] = []


def _end() -> int:
    """Where the system begins to choose, if it leaves enough below."""
    try:
        chosen = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return EPHEMERAL
    return chosen if chosen > FIRST + 16 * BLOCK else EPHEMERAL


@cache
def _block(process: int) -> itertools.cycle[int]:
    """The ports that are this process's until it ends."""
    folder = Path(tempfile.gettempdir()) / f"mooring-test-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for first in range(FIRST, _end() - BLOCK + 1, BLOCK):
        lock = (folder / str(first)).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        _held.append(lock)
        return itertools.cycle(range(first, first + BLOCK))
    raise AssertionError(f"all blocks of ports are taken, see {folder}")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that nobody else gets."""
    for port in itertools.islice(_block(os.getpid()), BLOCK):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("somebody listens on every port of a block")
