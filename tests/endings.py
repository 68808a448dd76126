"""Signals that end a program of the suite end it by an exception, so that what it started is stopped and its files are removed."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


def stop(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def ended_by_exceptions() -> None:
    """Raise SystemExit at SIGTERM and SIGHUP, where they are not ignored, as nohup leaves one."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
