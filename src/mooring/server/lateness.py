"""How late the event loop is, for `/readyz` and the metrics.

Rules kept here:
* A timer that recurs says by how much it came late: so long does everything wait that the loop does.
* One long turn is forgotten. A median of several says that requests are late now, and says the opposite soon after they are not.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import deque

INTERVAL_SECONDS = 0.5
"""Two timers a second cost nothing that can be measured."""
LOOKS = 9
"""Of these the median counts: half of 4.5 s must have been late, and 2.5 s in time are enough to recover."""
MAX_LATE_SECONDS = 0.25
"""Five times what one request may hold the loop. A request takes several turns, and probes wait for one second (Kubernetes'
default of `timeoutSeconds`): a load balancer should send requests elsewhere before its own probes fail."""


class Lateness:
    """Measures the loop that it is started on."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=LOOKS)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Median of the last looks; 0 before the first."""
        return statistics.median(self._seen) if self._seen else 0.0

    @property
    def is_late(self) -> bool:
        """Whether requests should go elsewhere."""
        return self.seconds > MAX_LATE_SECONDS

    def note(self, seconds: float) -> None:
        """Add one look."""
        self._seen.append(max(0.0, seconds))

    def start(self) -> None:
        """Look from now on."""
        loop = asyncio.get_running_loop()
        self._wait(loop)

    def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL_SECONDS
        self._timer = loop.call_at(due, self._look, loop, due)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.note(loop.time() - due)
        self._wait(loop)
