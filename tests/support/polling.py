"""Waits for what another process brings about, by looking again until it is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.liveserver import LiveServer

T = TypeVar("T")
SECONDS = 60.0
INTERVAL_SECONDS = 0.05


def eventually(look: Callable[[], T], server: LiveServer | None = None) -> T:
    """Return the first true result of `look`. Fails after SECONDS, and shows the end of the server's log."""
    deadline = time.monotonic() + SECONDS
    while not (result := look()):
        assert time.monotonic() < deadline, server.log[-4000:] if server else "it never became true"
        time.sleep(INTERVAL_SECONDS)
    return result
