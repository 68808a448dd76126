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
from collections.abc import Iterator
from contextlib import contextmanager

from mooring.agent.acceptance import check_membership
from mooring.agent.certificates.certificaterequest import RequestEndedError
from mooring.agent.certificates.pairfiles import Pair
from mooring.agent.certificates.renewal import random_draw, retry_pauses
from mooring.agent.member import Member
from mooring.agent.oneshot import OneShotRequest, PendingKeyFiles
from mooring.agent.steps import JoinError, Steps, reason_of
from mooring.clock import Clock
from mooring.errors import ForbiddenError, PeerError, UnauthorizedError
from mooring.reminders import LastingProblem
from mooring.trust.answertext import explained_by

log = logging.getLogger("mooring.agent")

RECOVERY_HEADER = ("Authorization", "Mooring-Recovery")
REFUSED_SECONDS = 300.0
"""Seconds before the way back is tried again after 401: an administrator may have allowed it meanwhile."""
DENIED_SECONDS = 3600.0
"""Seconds before the way back is tried again after a person denied it: a request for the same person again."""


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


class Attempts:
    """Attempts to become a member, however often it takes. Each reason of a failure is logged once."""

    def __init__(self) -> None:
        self._pauses = retry_pauses(random_draw)
        self._problem = LastingProblem(log.error)

    def pause_after(self, error: JoinError) -> float:
        """Log why an attempt failed, and return the seconds before the next one."""
        self._problem.note(reason_of(error), str(error))
        if isinstance(error.__cause__, RequestEndedError):
            return DENIED_SECONDS
        return REFUSED_SECONDS if isinstance(error.__cause__, RecoveryRefusedError) else next(self._pauses)
