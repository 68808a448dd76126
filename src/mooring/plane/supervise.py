"""One server process from start to stop: key store, plane, signals, logs.

Rules kept here: SIGTERM and SIGINT drain, a second one ends at once; what is said when ready is one line, on stderr with the
rest of the log; the process title and the log never hold a secret.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvloop

from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.plane.assemble import Plane
from mooring.plane.configuration import ServerConfig
from mooring.plane.keystore import prepare
from mooring.settings.network import NetworkSettings

log = logging.getLogger("mooring")


def process_identity(pid: int = 0) -> str:
    """`<host>_<boot>_<pid>_<start>`: names this process among all that ever ran, as far as /proc tells.

    The boot carries the PID namespace: in another container of this machine the same number is another process.
    """
    pid = pid or os.getpid()
    return f"{socket.gethostname()}_{_boot()}_{pid}_{_started(pid)}"


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return "unknown"


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot; "" when there is none, or only its entry, not yet collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return fields[19] if fields[0] not in ("Z", "X") else ""


def holder_is_gone(identity: str) -> bool:
    """Whether the process of that identity ran on this machine since its boot and is no more. False when unknown."""
    parts = identity.rsplit("_", 3)
    if len(parts) != 4 or parts[0] != socket.gethostname() or parts[1] != _boot() or not parts[2].isdigit():
        return False
    return identity != process_identity(int(parts[2]))


def serve(config: ServerConfig, on_ready: Callable[[Plane], None] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Raises MooringError when the server cannot start."""
    clock = SystemClock()
    prepared = prepare(config, clock.now(), secrets.token_bytes)
    plane = Plane(config, prepared.key_store, clock, os.urandom, process_identity(), holder_is_gone)
    uvloop.run(_run(plane, config, on_ready))


def _reason(error: OSError) -> str:
    """The system's own words: asyncio's repeat the address, which our sentence names already."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


async def _run(plane: Plane, config: ServerConfig, on_ready: Callable[[Plane], None] | None) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)  # asked twice: whoever asks does not want to wait for the drain
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await plane.start()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config[NetworkSettings].bind_address}:{config[NetworkSettings].secure_port}: {_reason(error)}; "
            "stop what uses the port or choose another with --secure-port"
        ) from error
    log.info(
        "serving on %s:%d, reached as %s", config[NetworkSettings].bind_address, plane.port, config.endpoints[0].url
    )
    if on_ready is not None:
        on_ready(plane)
    await stopping.wait()
    log.info("draining")
    await plane.stop()
