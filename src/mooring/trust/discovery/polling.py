"""Polling of a cluster's servers until one passes discovery: rounds, budget, and repeated errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from mooring.trust.discovery.errors import DiscoveryError
from mooring.trust.discovery.notices import DiscoveryExchange, Notice
from mooring.trust.httpexchange import HttpFailure, HttpResponse, Wait

P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Polling:
    """Limits of polling: a round every `interval` seconds, for `total` seconds or `attempts` rounds.

    `jitter` is the fraction by which a wait may be longer or shorter, where the driver has entropy.
    """

    interval: float = 5.0
    total: float = 300.0
    attempts: int | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.interval <= 0:
            raise ValueError("polling waits between its rounds: the interval is more than 0 seconds")


class Rounds:
    """Rounds of one discovery. Time is counted from the replies and the waits, not read from a clock."""

    def __init__(self, polling: Polling) -> None:
        self._polling = polling
        self._spent = 0.0
        self._finished = 0
        self._reported = set[str]()

    def charge(self, reply: HttpResponse | HttpFailure) -> None:
        """Charge the duration of a request to the budget."""
        self._spent += reply.elapsed

    def next_wait(self) -> Wait | None:
        """Finish a round: return the wait before the next one, or None when the budget is spent."""
        self._finished += 1
        self._spent += self._polling.interval
        if self._spent > self._polling.total or self._finished == self._polling.attempts:
            return None
        return Wait(self._polling.interval, self._polling.jitter)

    def first_that_passes(
        self, places: Iterable[P], attempt: Callable[[P], DiscoveryExchange[T]], *, drops_final: bool = True
    ) -> DiscoveryExchange[T]:
        """Return what `attempt` returns for the first place that passes, in as many rounds as there are.

        A final error ends the attempts on one place where `drops_final` is True. Raises the last error; the others are reported.
        """
        left = list(dict.fromkeys(places))
        while True:
            last: DiscoveryError | None = None
            for place in tuple(left):
                if last is not None:
                    yield self.report(last)
                try:
                    return (yield from attempt(place))
                except DiscoveryError as error:
                    last = error
                if last.final and drops_final:
                    left.remove(place)
            assert last is not None  # there was a place, and none passed
            wait = self.next_wait() if left else None
            if wait is None:
                raise last
            yield self.report(last)
            yield wait

    def report(self, error: DiscoveryError) -> Notice:
        """Return the notice of an error that does not end discovery. Only the first of equal notices is kept."""
        message = str(error)
        first_time = message not in self._reported
        self._reported.add(message)
        return Notice(message, keep=first_time)
