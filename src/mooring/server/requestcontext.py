"""Context of one request: the facts that the pipeline gathers and that handlers, audit and metrics read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from mooring.api.kind import Gate
from mooring.apimachinery.auditpolicy import AuditDecision
from mooring.apimachinery.requestinfo import RequestInfo
from mooring.authn.chain import Outcome
from mooring.identity import UserInfo
from mooring.server.transport.http import Request

_NOT_AUTHENTICATED = Outcome(None)


class CredentialStanding(Gate, Protocol):
    """The credential of a request, without the credential itself (`mooring.server.authentication.standing`)."""

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
    standing: CredentialStanding | None = None
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
        if self.standing is not None:
            await self.standing.prepare()

    async def confirm(self) -> None:
        """Return when the credential counts by views as fresh as a linearizable read. The effect follows with no `await`.

        Raises UnauthorizedError.
        """
        if self.standing is not None:
            await self.standing.confirm()
