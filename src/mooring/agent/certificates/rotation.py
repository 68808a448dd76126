"""Times of renewals, as kubelet's certificate manager computes them (docs/protocol/kubelet-certificates.md#rotation).

Rules kept here: no clock is read and no entropy drawn; `draw` is a number in [0, 1). The renewals of many machines that joined in
the same minute spread over a fifth of the lifetime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from cryptography import x509

FIRST_SHARE = 0.7
"""Share of the lifetime after which a renewal may begin."""
SPREAD = 0.2
"""Share of the lifetime over which renewals spread."""
FIRST_PAUSE = 2.0
"""Seconds before the second attempt."""
FACTOR = 2.0
JITTER = 0.1
"""Share by which a pause may be longer."""
STEPS = 5
"""Attempts with growing pauses between them."""
LONG_PAUSE = 32.0
"""Seconds before each further attempt."""
WAIT_SECONDS = 900.0
"""kubelet's `certificateWaitTimeout`: seconds for which one request may stay undecided."""


def renewal_time(leaf: x509.Certificate, draw: float) -> datetime:
    """Return the moment at which a certificate is renewed: after 70 % to 90 % of its lifetime."""
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return begin + (end - begin) * (FIRST_SHARE + draw * SPREAD)


def retry_pauses(draw: Callable[[], float]) -> Iterator[float]:
    """Yield the seconds before each further attempt, without end: 2, 4, 8 and 16 with their jitter, then always 32."""
    pause = FIRST_PAUSE
    for _ in range(STEPS - 1):
        yield pause * (1 + JITTER * draw())
        pause *= FACTOR
    while True:
        yield LONG_PAUSE
