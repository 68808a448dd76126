"""Renewal of one certificate through a supervisor, for as long as the agent runs.

Rules kept here (docs/protocol/k3s.md#renewals-of-an-agent):
* A certificate is renewed after 70 % to 90 % of its lifetime, as kubelet does, and at once when it is missing or not the wanted
  one. k3s renews at a restart only. A replacement of the CA asks for an earlier renewal.
* Every renewal has a new key, which is on disk before it is used. The certificate of the node authenticates it, and the pair in use
  stays until the next one is whole.
* A new certificate of the node is used only after the server has accepted it.
* A failed attempt is repeated after 2 s, doubled up to 16 s, then every 32 s. After 401 the API server is asked whether the
  membership has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

from mooring.agent.acceptance import check_membership
from mooring.agent.certificates import rotation
from mooring.agent.certificates.pairfiles import Pair
from mooring.agent.certificates.renewal import (
    EARLY_SECONDS,
    EARLY_SHARE,
    LOOK_SECONDS,
    ClientCertificateExpiredError,
    random_draw,
)
from mooring.agent.k3s.membership import SupervisedMember, obtain
from mooring.agent.registration import CertificateRefusedError, MembershipEndedError
from mooring.agent.steps import described, reason_of, with_deadline
from mooring.client.http.driver import ignore
from mooring.clock import Clock, rfc3339
from mooring.errors import MooringError, PeerError
from mooring.trust.auditid import explained_by
from mooring.trust.discovery.polling import Polling
from mooring.trust.k3s.refusals import CredentialRefusedError
from mooring.trust.k3s.responses import KUBELET, Wanted, is_usable

log = logging.getLogger("mooring.agent")

ONCE = Polling(attempts=1)
"""One round of requests: the loop around them has pauses of its own."""


class SupervisorRenewal:
    """Keeps one certificate fresh. `member` returns the membership with its present addresses."""

    def __init__(
        self,
        wanted: Wanted,
        member: Callable[[], SupervisedMember],
        clock: Clock,
        on_renewed: Callable[[], Awaitable[None]],
        draw: Callable[[], float] = random_draw,
    ) -> None:
        self._wanted = wanted
        self._member = member
        self._clock = clock
        self._on_renewed = on_renewed
        self._draw = draw
        self._files = member().files.pair(wanted)
        self._early_seconds: float | None = None
        self._woken = asyncio.Event()
        self._warned = ""

    def renew_early(self) -> None:
        """Renew the present certificate soon. Further calls before that change nothing."""
        pair = self._files.read_pair()
        if pair is None or self._early_seconds is not None:
            return
        lifetime = (pair.leaf.not_valid_after_utc - pair.leaf.not_valid_before_utc).total_seconds()
        self._early_seconds = self._clock.monotonic() + self._draw() * min(EARLY_SECONDS, lifetime * EARLY_SHARE)
        self._woken.set()

    async def run(self) -> NoReturn:
        """Renew until cancelled. Raises ClientCertificateExpiredError, MembershipEndedError, ConfigError."""
        while True:
            await self._wait_until_due()
            await self._renew()

    async def _wait_until_due(self) -> None:
        drawn = self._draw()
        while (left := self._seconds_left(drawn)) > 0:
            with suppress(TimeoutError):  # the clock is read again every minute: a machine may have slept
                await with_deadline(self._clock, min(left, LOOK_SECONDS), self._woken.wait())
            self._woken.clear()

    def _seconds_left(self, drawn: float) -> float:
        pair, now = self._files.read_pair(), self._clock.now()
        if pair is None or not is_usable(pair.leaf, self._wanted, self._member().node_name, now):
            return 0.0
        left = (rotation.renewal_time(pair.leaf, drawn) - now).total_seconds()
        return left if self._early_seconds is None else min(left, self._early_seconds - self._clock.monotonic())

    async def _renew(self) -> None:
        """Replace the certificate, however many attempts it takes."""
        pauses = rotation.retry_pauses(self._draw)
        while True:
            try:
                pair = await self._obtain()
            except (MembershipEndedError, ClientCertificateExpiredError):
                raise
            except MooringError as error:
                self._warn(error)
                await self._clock.sleep(next(pauses))
                continue
            self._files.replace(pair)
            self._warned, self._early_seconds = "", None
            until = rfc3339(pair.leaf.not_valid_after_utc)
            log.info("the certificate %s was renewed, valid until %s", self._wanted.name, until)
            await self._on_renewed()
            return

    async def _obtain(self) -> Pair:
        member = self._member()
        current = member.files.client.read_pair()
        if current is None or not current.valid_at(self._clock.now()):
            raise ClientCertificateExpiredError(
                "the certificate client-kubelet of this machine is missing or has expired"
            )
        supervisor = member.supervisor(polling=ONCE)
        try:
            pair = await obtain(supervisor, member.files, self._wanted, member.identity, self._clock, ignore)
        except CredentialRefusedError:
            await check_membership(current, member.node_name, member.member.known_uid(), member.clusters, self._clock)
            raise
        if self._wanted is KUBELET:
            await self._check_accepted(pair, member)
        return pair

    async def _check_accepted(self, pair: Pair, member: SupervisedMember) -> None:
        try:
            await check_membership(pair, member.node_name, "", member.clusters, self._clock)
        except CertificateRefusedError as error:
            raise PeerError(
                "the server does not accept the certificate that it has just issued; the CA that signs certificates must be among "
                f"those of its --client-ca-file{explained_by(error.audit_id)}"
            ) from None

    def _warn(self, error: MooringError) -> None:
        """Log why there is no new certificate, once for each reason. Each response has an Audit-Id of its own."""
        reason = reason_of(error)
        if reason != self._warned:
            log.warning(
                "the certificate %s could not be renewed, trying again: %s", self._wanted.name, described(error)
            )
        self._warned = reason
