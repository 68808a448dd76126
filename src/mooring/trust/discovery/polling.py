"""Notice messages of discovery, and the type of its exchanges."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from typing import TypeVar

from mooring.duration import format_duration
from mooring.trust.discovery.errors import DiscoveryError, SignatureMissingError
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse, Reply, Wait, send

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for the user, without secrets. `keep`: the line stays on the terminal, as one about a failure does."""

    message: str
    keep: bool = False


DiscoveryExchange = Generator[HttpRequest | Wait | Notice, Reply, R]


# Polling of a cluster's servers until one passes discovery: rounds, budget, and repeated errors.

LEAST_SECONDS = 1.0
"""Seconds of a request, however little of the budget is left: one round is always made."""
P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Polling:
    """Limits of polling: a round every `interval` seconds, for `total` seconds or `attempts` rounds.

    `jitter` is the fraction by which a wait may be longer or shorter, where the driver has entropy. `unsigned` limits the seconds
    after the first answer that has no signature for the token: the token may be unknown, or its signature late.
    """

    interval: float = 5.0
    total: float = 300.0
    attempts: int | None = None
    jitter: float = 0.0
    unsigned: float = inf

    def __post_init__(self) -> None:
        if self.interval <= 0:
            raise ValueError("polling waits between its rounds: the interval is more than 0 seconds")


class Rounds:
    """Rounds of one discovery. Time is counted from the replies and the waits, not read from a clock."""

    def __init__(self, polling: Polling) -> None:
        self._polling = polling
        self._spent = 0.0
        self._finished = 0
        self._unsigned_since: float | None = None
        self._left = inf
        self._reported = set[str]()

    def send(self, request: HttpRequest) -> Generator[HttpRequest, Reply, HttpResponse | HttpFailure]:
        """Yield one request, which has what is left of the budget, charge its duration, and return the reply."""
        left = max(LEAST_SECONDS, self._polling.total - self._spent)
        reply = yield from send(replace(request, within=min(request.within, left)))
        self._spent += reply.elapsed
        return reply

    def next_wait(self) -> Wait | None:
        """Finish a round: return the wait before the next one, or None when the budget is spent."""
        polling = self._polling
        end = polling.total
        if self._unsigned_since is not None:
            end = min(end, self._unsigned_since + polling.unsigned)
        self._finished += 1
        self._left = end - self._spent
        self._spent += polling.interval
        if self._spent > end or self._finished == polling.attempts:
            return None
        return Wait(polling.interval, polling.jitter)

    def first_that_passes(
        self, places: Iterable[P], attempt: Callable[[P], DiscoveryExchange[T]], *, drops_final: bool = True
    ) -> DiscoveryExchange[T]:
        """Return what `attempt` returns for the first place that passes, in as many rounds as there are.

        A final error ends the attempts on one place where `drops_final` is True. Raises the last error; the others are reported.
        """
        left = list(dict.fromkeys(places))
        while True:
            last: DiscoveryError | None = None
            unsigned: DiscoveryError | None = None
            for place in tuple(left):
                if last is not None:
                    yield self.report(last)
                try:
                    return (yield from attempt(place))
                except DiscoveryError as error:
                    last = error
                if isinstance(last, SignatureMissingError):
                    unsigned = last
                if last.final and drops_final:
                    left.remove(place)
            assert last is not None  # there was a place, and none passed
            if unsigned is None:
                self._unsigned_since = None
            elif self._unsigned_since is None:
                self._unsigned_since = self._spent
            wait = self.next_wait() if left else None
            if wait is None:
                raise unsigned or last
            yield self.report(last, retried=True)
            yield wait

    def report(self, error: DiscoveryError, *, retried: bool = False) -> Notice:
        """Return the notice of an error that does not end discovery. Only the first of equal notices is kept.

        `retried`: a round is over, and the notice says for how long more rounds follow.
        """
        message = str(error)
        first_time = message not in self._reported
        self._reported.add(message)
        if retried and self._polling.attempts is None and self._left < inf:
            left = format_duration(timedelta(seconds=round(self._left)))
            message = f"{message}; trying again for up to {left} more"
        return Notice(message, keep=first_time)
