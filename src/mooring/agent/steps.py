"""Steps of a join: their messages, errors and retries; and the difference between this machine's clock and the server's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import is_mooring_server
from mooring.clock import Clock, doubling, parse_rfc3339
from mooring.errors import (
    ForbiddenError,
    InternalServerError,
    MooringError,
    RequestTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from mooring.pki.x509.certificate import Certificate
from mooring.trust.answertext import explained_by, without_audit_id
from mooring.trust.discovery.errors import EndpointDownError, EndpointTimeoutError, FetchError, NotKubernetesError

# Difference between this machine's clock and that of the server.
#
# Rules kept here:
# * The server's time is the Date header of its response (RFC 9110), or the creation time of an object that it has just created.
# * A message names the seconds and the side, so that a person knows which clock to set.
# * Signers set the begin of a certificate 5 minutes back. A machine whose clock is further behind cannot use its certificate yet.

SKEW_LIMIT = timedelta(seconds=60)
"""Difference that is reported. A tenth of the shortest lifetime of a certificate, 10 minutes; requests take less."""


def server_date(headers: Mapping[str, str]) -> datetime | None:
    """Return the time in the Date header of a response; None without one that can be read. Header names are in lower case."""
    try:
        return parsedate_to_datetime(headers.get("date", "")).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def creation_time(obj: Mapping[str, object]) -> datetime | None:
    """Return the creation time in the metadata of an object; None when there is none."""
    metadata = obj.get("metadata")
    text = metadata.get("creationTimestamp") if isinstance(metadata, dict) else None
    try:
        return parse_rfc3339(text) if isinstance(text, str) else None
    except ValueError:
        return None


def describe_skew(server: datetime | None, here: datetime) -> str:
    """Return the difference as a clause when it is above SKEW_LIMIT, else ""."""
    if server is None or abs(here - server) <= SKEW_LIMIT:
        return ""
    seconds = round(abs(here - server).total_seconds())
    side = "behind" if here < server else "ahead of"
    return f"this machine's clock is {seconds} s {side} the server's"


def describe_validity(certificate: Certificate, here: datetime) -> str:
    """Return by how much this machine's clock is outside the validity of a certificate that was just issued, else ""."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if here < begin:
        return f"this machine's clock is at least {round((begin - here).total_seconds())} s behind the server's"
    if here >= end:
        return f"this machine's clock is at least {round((here - end).total_seconds())} s ahead of the server's"
    return ""


# Steps of a join: their names, progress messages and errors, and the retries of their requests.
#
# Rules kept here: names are part of the interface, because scripts read them. A message never holds a secret.

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
"""All steps, in order."""

API_CALL_SECONDS = 60.0
API_CALL_PAUSE = 0.5
"""Seconds of kubeadm: `timeouts.kubernetesAPICall` and interval (docs/protocol/discovery-and-join.md#objects-that-join-reads)."""
LONGEST_PAUSE = 5.0
"""Seconds. The interval doubles up to this, so that a minute of refusals stays below the 20 failed authentications that a
server may count for one address."""

FORBIDDEN_SECONDS = 5.0
"""Seconds for which 403 of a Mooring server is retried: a role that was bound at another server reaches it within that time."""
UNREACHABLE = (EndpointDownError, EndpointTimeoutError, FetchError, NotKubernetesError)
"""NotKubernetesError is the response of a load balancer without an API server."""
REFUSALS = (UnauthorizedError, ForbiddenError)
"""An API server that has not listed Secrets and roles yet refuses valid credentials for a moment. A Mooring server does not."""
TRANSIENT = (
    *UNREACHABLE,
    *REFUSALS,
    InternalServerError,
    RequestTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
"""Errors of a server that is starting or stopping."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of progress. `seconds` is set once, when the step is done. `kept`: the line stays on the terminal."""

    step: str
    message: str
    seconds: float | None = None
    kept: bool = False

    @property
    def transient(self) -> bool:
        """True for a line that the next one may replace."""
        return self.seconds is None and not self.kept


Report = Callable[[Progress], None]


class JoinError(MooringError):
    """A step failed. The message names the step, the reason and the remedy; the cause is the original error."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"join failed at step {step}: {reason}")
        self.step = step
        self.reason = reason


class Steps:
    """Timing and reports of the steps of one join."""

    def __init__(self, clock: Clock, report: Report) -> None:
        self._clock = clock
        self._report = report
        self._name = ""

    def say(self, message: str, *, kept: bool = False, step: str = "") -> None:
        """Report progress of the present step, or of another one."""
        self._report(Progress(step or self._name, message, kept=kept))

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Run a step. The lines in the list that it yields become its closing message. Raises JoinError for every MooringError."""
        started = self._clock.monotonic()
        summary: list[str] = []
        with self.within(name):
            yield summary
        self._report(Progress(name, "; ".join(summary) or "done", self._clock.monotonic() - started))

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Run a part of a step, without a closing message. Raises JoinError for every MooringError."""
        self._name = name
        try:
            yield
        except JoinError:
            raise
        except MooringError as error:
            raise JoinError(name, described(error)) from error


def described(error: MooringError) -> str:
    """Return the message of an error. That of a refused request ends with the command that explains it to an administrator."""
    return f"{error}{explained_by(error.audit_id)}" if isinstance(error, REFUSALS) else str(error)


def reason_of(error: MooringError) -> str:
    """Return the message of an error without an Audit-Id, which differs for each response: loops log each reason once."""
    return without_audit_id(str(error))


class Backoff:
    """Pauses between the attempts of a request, for a limited time.

    `client` is the one that sends the request. 401 of a Mooring server is final, and its 403 after FORBIDDEN_SECONDS.
    """

    def __init__(self, clock: Clock, seconds: float = API_CALL_SECONDS, client: ClusterClient | None = None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._client = client
        self._is_mooring: bool | None = None
        self.reset()

    def reset(self) -> None:
        """Start again, after a response."""
        self._began: float | None = None
        self._pauses = doubling(API_CALL_PAUSE, LONGEST_PAUSE)

    async def pause_after(self, error: MooringError) -> None:
        """Pause before the next attempt. Raise `error` when there is to be none."""
        await self.check(error)
        await self.pause()

    async def check(self, error: MooringError) -> None:
        """Raise `error` once requests have failed for the whole time, or when the refusal is final."""
        now = self._clock.monotonic()
        if self._began is None:
            self._began = now
        if now >= self._began + self._seconds or await self._is_final(error, now - self._began):
            raise error

    async def pause(self) -> None:
        """Pause before the next attempt."""
        now = self._clock.monotonic()
        left = (now if self._began is None else self._began) + self._seconds - now
        await self._clock.sleep(max(0.0, min(next(self._pauses), left)))

    async def _is_final(self, error: MooringError, elapsed: float) -> bool:
        if self._client is None or not isinstance(error, REFUSALS):
            return False
        if isinstance(error, ForbiddenError) and elapsed < FORBIDDEN_SECONDS:
            return False
        # A Mooring server reads its store before it answers 401. Another server that restarts refuses valid
        # credentials for a moment.
        if self._is_mooring is None:
            self._is_mooring = await is_mooring_server(self._client.clusters[0], self._clock)
        return self._is_mooring


async def retry(
    clock: Clock,
    call: Callable[[], Awaitable[T]],
    seconds: float = API_CALL_SECONDS,
    *,
    transient: tuple[type[MooringError], ...] = TRANSIENT,
    on_failure: Callable[[MooringError], None] = lambda error: None,
    client: ClusterClient | None = None,
) -> T:
    """Return the result of `call`, repeated while it fails with a `transient` error, which a restart of the server explains.

    `call` must be safe to repeat, and sends its requests by `client`. `on_failure` is called with the first failure after which
    it is repeated.
    """
    backoff, reported = Backoff(clock, seconds, client), False
    while True:
        try:
            return await call()
        except transient as error:
            await backoff.check(error)
            if not reported:
                reported = True
                on_failure(error)
            await backoff.pause()


async def with_deadline(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Return the result of `work` when it ends within `seconds` of `clock`. Otherwise cancel it and raise TimeoutError."""
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


async def run_beside(side: Coroutine[Any, Any, None], work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. `side` runs in the meantime and is cancelled with it."""
    task = asyncio.ensure_future(side)
    try:
        return await work
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
