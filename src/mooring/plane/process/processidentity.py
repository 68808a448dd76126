"""Identity of a server process among all that ever ran, for leader election: host, boot, process number and start time."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def process_identity(pid: int = 0) -> str:
    """Return `<host>_<boot>_<pid>_<start>` of a process, of this one by default, as far as /proc knows it.

    The boot carries the PID namespace: in another container of this machine the same number is another process.
    """
    pid = pid or os.getpid()
    return f"{socket.gethostname()}_{_boot()}_{pid}_{_start_time(pid)}"


def is_gone(identity: str) -> bool:
    """Return whether the process of that identity ran on this machine since its boot and has ended; False when unknown."""
    parts = identity.rsplit("_", 3)
    if len(parts) != 4 or parts[0] != socket.gethostname() or parts[1] != _boot() or not parts[2].isdigit():
        return False
    return identity != process_identity(int(parts[2]))


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return "unknown"


def _start_time(pid: int) -> str:
    """Return the start of a process in clock ticks since boot; "" when there is none, or only its entry, not yet collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return fields[19] if fields[0] not in ("Z", "X") else ""
