"""Ports for the servers that tests start.

Rules kept here: ports lie below the ephemeral range, so that a server can be restarted on its port (a client that connects to a
port of that range on its own machine may get the same port as its local one, and is then connected with itself). No two processes
share a block of ports: workers of a test run never collide.
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
"""Above the usual ports of services."""
EPHEMERAL = 32_768
"""Linux' default start of the ephemeral range."""
BLOCK = 200

_held: list[BinaryIO] = []


def _end() -> int:
    """Return the first port of the ephemeral range, or `EPHEMERAL` where too few are below it."""
    try:
        chosen = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return EPHEMERAL
    return chosen if chosen > FIRST + 16 * BLOCK else EPHEMERAL


@cache
def _block(process: int) -> itertools.cycle[int]:
    """Return the ports reserved for this process until it ends."""
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
    """Return a port of 127.0.0.1 without a listener, given to no other caller."""
    for port in itertools.islice(_block(os.getpid()), BLOCK):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("every port of a block is in use")
