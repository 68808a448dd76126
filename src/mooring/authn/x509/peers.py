"""What a presented certificate chain says under one bundle of CAs, without walking it more often than needed.

Rules kept here (docs/protocol/authentication.md#client-certificates):
1. The chain walk happens once per connection; after that only the validity dates of the whole chain are compared with
   `now`. A refusal is remembered too, unless it was about time. Another bundle of CAs, or another chain, asks anew: a
   memo that was passed on by mistake never lends one peer the identity of another.
2. Verified chains are also remembered across connections (bounded, oldest out): who opens one connection a request, as
   kubectl does, pays for the walk once. What was verified can only stop being valid by time, which is always looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Rejected, Verdict
from mooring.pki.errors import PeerCertificateError
from mooring.pki.x509.verify import ClientTrust, VerifiedPeer, valid_at

MAX_REMEMBERED = 4096  # chains of about 1 kB: as many as a large cluster has nodes, 8 MB at the most
_OF_TIME = frozenset({"expired", "not-yet-valid"})


@dataclass(frozen=True, slots=True)
class _Known:
    """What is remembered of one presented chain; `peer` is None for a refusal."""

    chain: tuple[bytes, ...]
    verdict: Verdict
    peer: VerifiedPeer | None = None

    def holds(self, chain: tuple[bytes, ...], now: datetime) -> bool:
        """Whether the verdict is about this chain and no date has passed since."""
        return self.chain == chain and (self.peer is None or valid_at(self.peer, now))


class Peers:
    """One bundle of CAs, and what `verdict` makes of the peers it verifies. Make a new one for a new bundle."""

    def __init__(
        self,
        trust: ClientTrust,
        verdict: Callable[[VerifiedPeer], Verdict],
        max_remembered: int = MAX_REMEMBERED,
    ) -> None:
        self._trust = trust
        self._verdict = verdict
        self._max_remembered = max_remembered
        self._accepted: dict[tuple[bytes, ...], _Known] = {}

    def judged(self, credentials: Credentials, now: datetime) -> Verdict:
        """The verdict about the chain in `credentials`, which has one; `Rejected` when it does not verify."""
        memo = credentials.memo.known
        known = memo.get(self)
        if isinstance(known, _Known) and known.holds(credentials.peer, now):
            return known.verdict
        known = self._accepted.get(credentials.peer)
        if known is not None and known.holds(credentials.peer, now):
            memo[self] = known
            return known.verdict
        try:
            peer = self._trust.verify(credentials.peer, now)
        except PeerCertificateError as error:
            refused = Rejected(error.code, str(error))
            if error.code in _OF_TIME:
                memo.pop(self, None)
            else:
                memo[self] = _Known(credentials.peer, refused)
            return refused
        known = _Known(credentials.peer, self._verdict(peer), peer)
        if len(self._accepted) >= self._max_remembered:
            del self._accepted[next(iter(self._accepted))]
        self._accepted[credentials.peer] = known
        memo[self] = known
        return known.verdict
