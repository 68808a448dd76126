"""Requests to the supervisor API of k3s: a second way through the pipeline, which groups open and not the authorizers.

Rules kept here (docs/adr/0051-the-supervisor-api.md):
* A path belongs to the supervisor or to the Kubernetes API, never to both. `Supervisor.find` decides it once, by the whole path,
  and the route that it returns serves the request. Credentials of the supervisor are judged for such a request only.
* What is not found is answered as by a server without the supervisor.
* A redirect to a path of the supervisor is a route of public level. It is recorded and limited as any other request.
* Of the requests at agent level so many run at a time on the host as k3s allows; one beyond that is answered with 429.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mooring.authn.credentials import CONNECTION, Authenticator
from mooring.errors import ForbiddenError, TooManyRequestsError
from mooring.server.hostshare.counts import Count
from mooring.server.hostshare.share import ALONE, Counted, HostShare
from mooring.server.requestcontext import RequestContext
from mooring.server.transport.http import Response
from mooring.trust.k3s.identity import Access

MAX_READING, MAX_CHANGING = 20, 10
"""Requests at agent level that run at a time on a host: those with GET and HEAD, and others
(docs/protocol/k3s.md#limits-of-the-supervisor)."""
_READING = frozenset({"GET", "HEAD"})


class SupervisorForbiddenError(ForbiddenError):
    """403 in the form of the supervisor: its Status has no details."""

    shows_details = False


@dataclass(frozen=True, slots=True)
class Supervised:
    """The route of one request."""

    path: str
    access: Access
    methods: tuple[str, ...] | None
    """None: every method."""
    serve: Callable[[RequestContext], Awaitable[Response]]
    max_body: int
    """Bytes of the request body."""
    screen: Callable[[RequestContext], None] | None = None
    """Raises ApiError for a request that shall not take a place. It does no work worth mentioning."""
    needs_machine: bool = False
    """The request is about the machine that makes it: its client certificate decides, and not the token that machines share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """The supervisor API of one server process, as the pipeline sees it."""

    find: Callable[[str], Supervised | None]
    """Returns the route of a path; None for a path of the Kubernetes API."""
    authenticators: Sequence[Authenticator]
    schemes: Mapping[str, str]
    in_flight: InFlight

    def authenticators_of(self, route: Supervised) -> Sequence[Authenticator]:
        """Return the authenticators of a route, in order."""
        if not route.needs_machine:
            return self.authenticators
        return sorted(self.authenticators, key=lambda one: one.judges != CONNECTION)


class InFlight:
    """Requests at agent level that run now."""

    def __init__(self, share: HostShare = ALONE) -> None:
        self._share = share
        self._counts = {
            True: _Running(share.count(Counted.SUPERVISOR_READING), MAX_READING),
            False: _Running(share.count(Counted.SUPERVISOR_CHANGING), MAX_CHANGING),
        }

    @contextmanager
    def place(self, method: str) -> Iterator[None]:
        """Hold a place while the request runs. Raises TooManyRequestsError when none is free."""
        running = self._counts[method in _READING]
        running.enter()
        try:
            yield
        finally:
            running.leave()


class _Running:
    """Requests of one sort: those of this worker, and those of the host."""

    def __init__(self, count: Count, most: int) -> None:
        self._count = count
        self._most = most
        self._here = 0

    def enter(self) -> None:
        self._set(self._here + 1)  # first, so that two workers that take the last place both see each other
        if self._count.total > self._most:
            self.leave()
            raise TooManyRequestsError

    def leave(self) -> None:
        self._set(self._here - 1)

    def _set(self, number: int) -> None:
        self._here = number
        self._count.set(number)
