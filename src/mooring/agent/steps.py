"""Steps of a join: each has a stable name, is timed, and fails with its name.

Rules kept here: names are part of the interface (scripts read them); a message never holds a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from mooring.clock import Clock
from mooring.errors import (
    ForbiddenError,
    InternalServerError,
    MooringError,
    RequestTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from mooring.trust.discovery.errors import EndpointDownError, EndpointTimeoutError, FetchError, NotKubernetesError

EXISTING = "existing"
DISCOVERY = "discovery"
NAME = "name"
BOOTSTRAP = "bootstrap"
KEY = "key"
REQUEST = "request"
WAIT = "wait"
CERTIFICATE = "certificate"
FILES = "files"
NODE = "node"
STEPS = (EXISTING, DISCOVERY, NAME, BOOTSTRAP, KEY, REQUEST, WAIT, CERTIFICATE, FILES, NODE)
"""In order."""

API_CALL_SECONDS = 60.0
API_CALL_PAUSE = 0.5
"""kubeadm's `timeouts.kubernetesAPICall` and its interval (docs/protocol/discovery-and-join.md#objects-that-join-reads)."""
LONGEST_PAUSE = 5.0
"""Seconds. The interval doubles up to this, so that a minute of refusals stays below the 20 failed authentications that a
server may count against one address."""

UNREACHABLE = (EndpointDownError, EndpointTimeoutError, FetchError, NotKubernetesError)
"""The last one is what a load balancer answers while no API server is behind it."""
REFUSALS = (UnauthorizedError, ForbiddenError)
"""An API server whose informers have not listed Secrets and roles yet refuses good credentials for a moment."""
PASSING = (
    *UNREACHABLE,
    *REFUSALS,
    InternalServerError,
    RequestTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
"""Failures of a server that is starting or stopping."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of progress. `seconds` is given once, when the step is done; `kept`: to be read afterwards as well."""

    step: str
    message: str
    seconds: float | None = None
    kept: bool = False

    @property
    def passing(self) -> bool:
        """Whether only who watches this very moment needs it."""
        return self.seconds is None and not self.kept


Report = Callable[[Progress], None]


class JoinError(MooringError):
    """A step failed: which one, why, and what to do. The cause is the error of the room below."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"join failed at step {step}: {why}")
        self.step = step
        self.why = why


class Steps:
    """Times and reports steps."""

    def __init__(self, clock: Clock, report: Report) -> None:
        self._clock = clock
        self._report = report
        self._name = ""

    def say(self, message: str, *, kept: bool = False, step: str = "") -> None:
        """Progress within the present step, or about another one."""
        self._report(Progress(step or self._name, message, kept=kept))

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Run a step; what is put into the list is the closing message. Raises JoinError for every MooringError."""
        started = self._clock.monotonic()
        self._name = name
        said: list[str] = []
        try:
            yield said
        except JoinError:
            raise
        except MooringError as error:
            raise JoinError(name, str(error)) from error
        self._report(Progress(name, "; ".join(said) or "done", self._clock.monotonic() - started))


class Patience:
    """Decides whether a failing request is sent again, and pauses before it is."""

    def __init__(self, clock: Clock, seconds: float = API_CALL_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self.restore()

    def restore(self) -> None:
        """Begin anew, after the server answered."""
        self._deadline: float | None = None
        self._pause = API_CALL_PAUSE

    async def wait_out(self, error: MooringError) -> None:
        """Pause before the next try. Raise `error` once requests have failed for the whole time."""
        now = self._clock.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now >= self._deadline:
            raise error
        await self._clock.sleep(min(self._pause, self._deadline - now))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)


async def patiently(
    clock: Clock,
    call: Callable[[], Awaitable[T]],
    seconds: float = API_CALL_SECONDS,
    *,
    passing: tuple[type[MooringError], ...] = PASSING,
    on_failure: Callable[[MooringError], None] = lambda error: None,
) -> T:
    """Return the result of `call`, repeated while it fails in a way that a restart of the server explains (`passing`).

    `call` must be safe to repeat. `on_failure` gets the first failure.
    """
    patience, troubled = Patience(clock, seconds), False
    while True:
        try:
            return await call()
        except passing as error:
            if not troubled:
                troubled = True
                on_failure(error)
            await patience.wait_out(error)


async def before(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """What `work` gives, if it does within `seconds` of `clock`. Raises TimeoutError and cancels it otherwise."""
    task, timer = asyncio.ensure_future(work), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError
    finally:
        for future in (task, timer):
            future.cancel()
        await asyncio.gather(task, timer, return_exceptions=True)


async def beside(side: Coroutine[Any, Any, None], work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. `side` runs in the meantime and is cancelled with it."""
    task = asyncio.ensure_future(side)
    try:
        return await work
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
