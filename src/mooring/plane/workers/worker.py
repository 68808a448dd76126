"""One worker process: a whole server on an event loop of its own, over the sockets that all workers share.

Rules kept here:
* It drains when the parent says so, when the parent has ended, after SIGTERM to itself, and when its store has failed.
  Signals of a terminal go to the parent alone.
* Its log lines, and its name in the list of processes, carry its number.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import uvloop

from mooring.authn.host import ONCE_A_SERVER
from mooring.clock import SystemClock
from mooring.errors import MooringError, StorageError
from mooring.plane.configuration import ServerConfig
from mooring.plane.keys.keystore import KeyStore
from mooring.plane.parts.foundation import Process
from mooring.plane.process.lifecycle import RunningServer, running
from mooring.plane.process.processidentity import is_gone, process_identity
from mooring.plane.process.seat import Seat
from mooring.plane.workers import line as words
from mooring.plane.workers.heartbeat import beat
from mooring.plane.workers.line import Line
from mooring.plane.workers.parent import EXIT_FAILED
from mooring.server.hostshare.share import Counted

log = logging.getLogger("mooring")

FIRST = 1
"""Number of the first worker of a server."""
OWN_NAME = Path("/proc/self/comm")
"""Name of this process in `top` and `ps -o comm` (proc(5)), of at most 15 characters."""


def run_worker(
    config: ServerConfig, key_store: KeyStore, on_ready: Callable[[RunningServer], None], seat: Seat, line: Line
) -> int:
    """Serve until the parent ends or says so. Return the exit code."""
    _name(seat.number + FIRST)
    try:
        uvloop.run(_serve(config, key_store, on_ready, seat, line))
    except (MooringError, OSError) as error:
        line.send(words.FAILED, str(error))
        return EXIT_FAILED
    return 0


async def _serve(
    config: ServerConfig, key_store: KeyStore, on_ready: Callable[[RunningServer], None], seat: Seat, line: Line
) -> None:
    loop = asyncio.get_running_loop()
    draining = asyncio.Event()
    server: RunningServer | None = None

    def receive() -> None:
        for word, _ in line.receive():
            if word == words.DRAIN:
                draining.set()
            elif word == words.NEIGHBOUR_ENDED and server is not None:
                server.assembly.controllers.elector.look_now()
            elif word == words.ANNOUNCE and server is not None:
                on_ready(server)
                line.send(words.ANNOUNCED)
        if line.ended:
            loop.remove_reader(line.fileno())
            draining.set()

    loop.add_reader(line.fileno(), receive)
    loop.add_signal_handler(signal.SIGTERM, draining.set)
    process = Process(identity=process_identity(), is_gone=is_gone, share=seat.share)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(config, key_store, SystemClock(), os.urandom, process, seat))
        beat(loop, seat.share.count(Counted.BEATS))
        line.send(words.SERVING)
        failure = await server.until_stopped(draining)
        log.info("draining")
    if failure:
        raise StorageError(failure)


def _name(number: int) -> None:
    """Put the number of this worker in the list of processes and in front of each log line. Only the first logs `ONCE_A_SERVER`."""
    with suppress(OSError):  # not on macOS
        OWN_NAME.write_text(f"mooring-{number}")

    def numbered(record: logging.LogRecord) -> bool:
        if number > FIRST and any(getattr(record, mark, False) for mark in ONCE_A_SERVER):
            return False
        record.msg = f"worker {number}: {record.msg}"
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(numbered)
