"""The way back: a machine whose certificate expired gets another one, without a token, in whichever way it joined.

Rules kept here (docs/come-back-after-expiry.md):
* The expired certificate proves the old key: TLS is opened with it, and `Authorization: Mooring-Recovery` asks the server to judge
  it as of its end. Such a request may only create and read certificate requests.
* The certificate request has a new key, which is on disk before it is used. A request that is held for a person is continued by
  the next run.
* A certificate whose CA a rollover has retired while the machine was off is used in the same way before it expires.
* 401 means that the machine may not come back: its certificate was revoked, its Node was deleted, or the server does not offer
  this. Then only a token helps.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mooring.agent.acceptance import check_membership
from mooring.agent.certificates.certificaterequest import RequestEndedError
from mooring.agent.certificates.pairfiles import Pair
from mooring.agent.certificates.renewal import random_draw
from mooring.agent.certificates.rotation import retry_pauses
from mooring.agent.member import Member
from mooring.agent.oneshot import OneShotRequest, PendingKeyFiles
from mooring.agent.steps import JoinError, Steps, reason_of
from mooring.clock import Clock
from mooring.errors import ForbiddenError, PeerError, UnauthorizedError
from mooring.trust.auditid import explained_by

log = logging.getLogger("mooring.agent")

RECOVERY_HEADER = ("Authorization", "Mooring-Recovery")
REFUSED_SECONDS = 300.0
"""Seconds before the way back is tried again after 401: an administrator may have allowed it meanwhile."""
DENIED_SECONDS = 3600.0
"""Seconds before the way back is tried again after a person denied it: a request for the same person again."""

M = TypeVar("M")


class RecoveryRefusedError(PeerError):
    """The server does not let this machine come back with its expired certificate."""


async def recover(
    member: Member,
    pending: PendingKeyFiles,
    progress: Steps,
    clock: Clock,
    *,
    with_token: str,
    seconds: float,
    expiration_seconds: int = 0,
) -> tuple[Pair, str]:
    """Return a certificate for the pending key, and the name of its request. It is not placed yet. Raises JoinError.

    `with_token` is the advice to join again with a token. `seconds` limits the wait for an approval.
    """
    request = OneShotRequest(
        pending, progress, clock, member.node_name, seconds=seconds, expiration_seconds=expiration_seconds
    )
    async with member.client(clock, [RECOVERY_HEADER]) as client:

        async def check(issued: Pair) -> None:
            await check_membership(issued, member.node_name, "", client.clusters, clock)

        return await request.obtain(client, check, lambda: _explain_refusal(with_token))


@contextmanager
def _explain_refusal(with_token: str) -> Iterator[None]:
    """Replace refusals of the expired certificate by errors that name the remedy."""
    try:
        yield
    except (UnauthorizedError, ForbiddenError) as error:
        raise RecoveryRefusedError(
            "the server does not let this machine come back with its expired certificate: the certificate was revoked, the Node "
            f"was deleted, or the server does not offer the way back; {with_token}{explained_by(error.audit_id)}"
        ) from None


async def keep_trying(
    attempt: Callable[[], Awaitable[M]],
    placed: Callable[[float], Awaitable[M | None]],
    final: Callable[[JoinError], M | None] = lambda error: None,
) -> M:
    """Return the membership that `attempt` obtains, however often it has to be tried. Each reason is logged once.

    `placed` waits for so many seconds, and returns a membership that came about without an attempt. `final` returns the membership
    that an error leaves, or raises.
    """
    pauses, warned = retry_pauses(random_draw), ""
    while True:
        try:
            return await attempt()
        except JoinError as error:
            reason, cause = reason_of(error), error.__cause__
            if (left := final(error)) is not None:
                return left
            if reason != warned:
                log.error("%s", error)
            warned = reason
        if isinstance(cause, RequestEndedError):
            pause = DENIED_SECONDS
        elif isinstance(cause, RecoveryRefusedError):
            pause = REFUSED_SECONDS
        else:
            pause = next(pauses)
        if (found := await placed(pause)) is not None:
            return found
