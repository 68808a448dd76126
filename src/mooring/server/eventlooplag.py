"""Measure the lag of the event loop, for `/readyz` and the metrics.

Rules kept here:
* A periodic timer measures by how much it fires late: every callback of the loop waits that long.
* The lag is the median of several measurements, so that one long turn of the loop does not count, and recovery shows soon.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import deque

INTERVAL_SECONDS = 0.5
"""Time between measurements. Two timers a second have no measurable cost."""
SAMPLES = 9
"""Measurements of which the median is taken: half of 4.5 s must have been late, and 2.5 s on time are enough to recover."""
MAX_LATE_SECONDS = 0.25
"""Five times the longest turn that one request may take. A request takes several turns, and probes time out after one second
(Kubernetes' default of `timeoutSeconds`): a load balancer should use other servers before its own probes fail."""


class EventLoopLag:
    """Lag of the event loop on which it is started."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Median of the last measurements; 0 before the first."""
        return statistics.median(self._samples) if self._samples else 0.0

    @property
    def is_late(self) -> bool:
        """True when a load balancer should use other servers."""
        return self.seconds > MAX_LATE_SECONDS

    def note(self, seconds: float) -> None:
        """Add one measurement."""
        self._samples.append(max(0.0, seconds))

    def start(self) -> None:
        """Begin to measure."""
        loop = asyncio.get_running_loop()
        self._schedule(loop)

    def stop(self) -> None:
        """Stop measuring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL_SECONDS
        self._timer = loop.call_at(due, self._measure, loop, due)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.note(loop.time() - due)
        self._schedule(loop)
