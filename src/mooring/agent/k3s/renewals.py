"""Renewal of one certificate through a supervisor (docs/protocol/k3s.md#renewals-of-an-agent).

Rules kept here: every renewal has a new key, which is on disk before it is used. The certificate of the node authenticates it, and
the pair in use stays until the next one is whole. After 401 the API server is asked whether the membership has ended. (k3s renews
at a restart only.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from mooring.agent.acceptance import check_issued, check_membership
from mooring.agent.certificates.pairfiles import Pair
from mooring.agent.certificates.renewal import ClientCertificateExpiredError, Renewal, random_draw
from mooring.agent.k3s.membership import SupervisedMember, obtain
from mooring.client.http.driver import ignore
from mooring.clock import Clock
from mooring.trust.discovery.polling import Polling
from mooring.trust.k3s.refusals import CredentialRefusedError
from mooring.trust.k3s.responses import KUBELET, Wanted, is_usable

ONCE = Polling(attempts=1)
"""One round of requests: the loop around them has pauses of its own."""


class SupervisorRenewal(Renewal):
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
        self._pairs = member().files.pair(wanted)
        super().__init__(wanted.name, self._pairs, clock, on_renewed, draw)

    def satisfies(self, pair: Pair) -> bool:
        return is_usable(pair.leaf, self._wanted, self._member().node_name, self._clock.now())

    def check_usable(self) -> None:
        current = self._member().files.client.read_pair()
        if current is None or not current.valid_at(self._clock.now()):
            raise ClientCertificateExpiredError(
                "the certificate client-kubelet of this machine is missing or has expired"
            )

    def place(self, pair: Pair) -> Path:
        self._pairs.replace(pair)
        return self._pairs.current

    async def obtain(self) -> Pair:
        member = self._member()
        supervisor = member.supervisor(polling=ONCE)
        try:
            pair = await obtain(supervisor, member.files, self._wanted, member.identity, self._clock, ignore)
        except CredentialRefusedError:
            current = member.files.client.read_pair()
            if current is not None:
                uid = member.known_uid()
                await check_membership(current, member.node_name, uid, member.clusters, self._clock)
            raise
        if self._wanted is KUBELET:
            await check_issued(pair, member.node_name, member.clusters, self._clock)
        return pair
