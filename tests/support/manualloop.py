"""An event loop whose time a test sets."""

from __future__ import annotations

import asyncio


class ManualLoop(asyncio.SelectorEventLoop):
    """Event loop whose time is set by the test."""

    now = 1000.0

    def time(self) -> float:
        return self.now
