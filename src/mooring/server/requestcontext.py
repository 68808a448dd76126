"""Context of one request: the facts that the pipeline gathers and that handlers, audit and metrics read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from mooring.api.kind import Gate
from mooring.apimachinery.auditpolicy import AuditDecision
from mooring.apimachinery.requestinfo import RequestInfo
from mooring.authn.chain import Outcome
from mooring.authn.credentials import CONNECTION, Authenticator
from mooring.errors import ForbiddenError, TooManyRequestsError
from mooring.identity import UserInfo
from mooring.server.sharedmemory import ALONE, Count, Counted, WorkerMemory
from mooring.server.transport.http import Request, Response
from mooring.trust.k3s.identity import Access

_NOT_AUTHENTICATED = Outcome(None)


class Recheck(Gate, Protocol):
    """The credential of a request, without the credential itself (`mooring.server.authentication.recheck`)."""

    def check_running(self) -> None:
        """Return when the credential of a running watch counts now. Raises UnauthorizedError."""

    async def confirm(self) -> None:
        """Return when the credential counts by views as fresh as a linearizable read. Raises UnauthorizedError."""


@dataclass(slots=True)
class RequestContext:
    """One request on its way through the pipeline."""

    request: Request
    info: RequestInfo
    audit_id: str
    received: datetime
    user: UserInfo
    impersonator: UserInfo | None = None
    constraint: str = ""
    """Mode of constrained impersonation that let the impersonator act as `user`, for the audit record."""
    warnings: list[str] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    outcome: Outcome = _NOT_AUTHENTICATED
    """Verdicts of the authenticators."""
    recheck: Recheck | None = None
    """Judges the credential again when the request takes effect; None for a request without authentication."""
    rejected_reason: str = ""
    """Reason for which the request is refused, for the operator."""
    created: str = ""
    """Name of the object that a create request makes: the path does not contain it."""
    body: bytes = b""
    """Request body, kept only when an audit policy may record it."""
    audit: AuditDecision | None = None
    """Decision of the audit policy; None until the policy is evaluated."""
    supervised: bool = False
    """True for a request to the supervisor API: groups decide in place of authorizers. No policy may record its body, which carries
    tokens and keys."""
    ended_itself: bool = False
    """True once the request has ended the credential with which it was made: the reply says so, and is not judged by that."""
    routed: bool = False
    """True once the path is known to be served: verb and resource then come from closed sets and may become metric labels."""

    async def prepare(self) -> None:
        """Return when the views are young enough to judge by, after a wait. Raises ApiError."""
        if self.recheck is not None:
            await self.recheck.prepare()

    async def confirm(self) -> None:
        """Return when the credential counts by views as fresh as a linearizable read. The effect follows with no `await`.

        Raises UnauthorizedError.
        """
        if self.recheck is not None:
            await self.recheck.confirm()


# Requests to the supervisor API of k3s: a second way through the pipeline, which groups open and not the authorizers.
#
# Rules kept here (docs/adr/0051-the-supervisor-api.md):
# * A path belongs to the supervisor or to the Kubernetes API, never to both. `Supervisor.find` decides it once, by the whole
#   path, and the route that it returns serves the request. Credentials of the supervisor are judged for such a request only.
# * What is not found is answered as by a server without the supervisor.
# * A redirect to a path of the supervisor is a route of public level. It is recorded and limited as any other request.
# * Of the requests at agent level so many run at a time on the host as k3s allows; one beyond that is answered with 429.

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

    def __init__(self, share: WorkerMemory = ALONE) -> None:
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
