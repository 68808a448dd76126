"""Signals that end a program of the suite end it by an exception, so that what it started is stopped and its files are removed."""

from __future__ import annotations

import signal
import subprocess
from types import FrameType
from typing import NoReturn

PATIENCE = 60.0
"""Seconds within which an interrupted session of pytest ends its workers."""


def stop(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def ended_by_exceptions() -> None:
    """Raise SystemExit at SIGTERM and SIGHUP, where they are not ignored, as nohup leaves one."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


def finished(process: subprocess.Popen[bytes]) -> int:
    """Wait for a session of pytest, also an interrupted one. Return its exit code. Raises SystemExit at a signal that ends."""
    try:
        process.wait()
    except KeyboardInterrupt:  # a terminal interrupts both
        _ended(process)
    except SystemExit:
        process.send_signal(signal.SIGINT)
        _ended(process)
        raise
    return process.returncode


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for pytest to end its workers after an interruption."""
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
