"""Verdicts about presented certificate chains under one bundle of CAs, each chain walked once.

Rules kept here (docs/protocol/authentication.md#client-certificates):
1. The chain is read once for a request, whatever the number of bundles, and walked once for a connection and bundle. Afterwards
   only the validity dates of the whole chain are compared with `now`. Rejections are remembered too, those about time for a second:
   a large certificate takes 5 ms to read, and anyone may present one that has expired. Another bundle or another chain is judged
   again, so that a memo passed on by mistake never lends one peer the identity of another.
2. Verified chains are also remembered across connections (bounded, oldest out): a client that opens a connection for each
   request, as kubectl does, pays for the walk once. Only time can end the validity of a verified chain, and it is always checked.
3. A verified certificate must pass the checks of `mooring.authn.x509.checks`. Their result is remembered with the revisions of the
   views that they read and the states of the checks, and the checks run again once one of them differs.
4. For the recovery of nodes a chain is verified at the last moment of its leaf, so that time changes no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.view import Views
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Rejected, Verdict
from mooring.authn.x509.checks import CHECKS, CertificateCheck, Revisions, rejection, revisions, stateless
from mooring.bounded import Bounded
from mooring.pki.errors import PeerCertificateError
from mooring.pki.x509.verify import ClientTrust, ReadChain, VerifiedPeer, read_chain, valid_at

States = tuple[Hashable, ...]
MAX_REMEMBERED = 4096  # chains of about 1 kB: as many as a large cluster has nodes, 8 MB at the most
_OF_TIME = frozenset({"expired", "not-yet-valid"})
_NO_TIME, _SECOND = timedelta(), timedelta(seconds=1)


@dataclass(slots=True)
class Known:
    """Remembered verdict about one chain. `peer` is None for a chain that does not verify.

    `of_time` is the moment of a rejection that time may change. `rejection` is that of the checks at `checked_at`, the revisions of
    the views that they read and their states; None there: not checked yet.
    """

    chain: tuple[bytes, ...]
    verdict: Verdict
    peer: VerifiedPeer | None = None
    rejection: Rejected | None = None
    checked_at: tuple[Revisions, States] | None = None
    of_time: datetime | None = None
    at_end: bool = False

    def holds(self, chain: tuple[bytes, ...], now: datetime) -> bool:
        """Return whether the verdict is about this chain and its dates still hold."""
        is_recent = self.of_time is None or _NO_TIME <= now - self.of_time < _SECOND
        return self.chain == chain and is_recent and (self.peer is None or self.at_end or valid_at(self.peer, now))


class Peers:
    """One bundle of CAs. `verdict` turns a verified peer into a verdict. Make a new object for a new bundle.

    `at_end`: chains are verified at the last moment of their leaf.
    """

    def __init__(
        self,
        trust: ClientTrust,
        verdict: Callable[[VerifiedPeer], Verdict],
        max_remembered: int = MAX_REMEMBERED,
        checks: Sequence[CertificateCheck] = CHECKS,
        *,
        at_end: bool = False,
    ) -> None:
        self._at_end = at_end
        self._trust = trust
        self._verdict = verdict
        self._checks = checks
        self._reads = tuple(dict.fromkeys(plural for check in checks for plural in check.reads))
        self._states = tuple(check.state for check in checks if check.state is not stateless)
        self._accepted: Bounded[tuple[bytes, ...], Known] = Bounded(max_remembered)

    def judged(self, credentials: Credentials, views: Views, now: datetime) -> Verdict:
        """Return the verdict about the chain in `credentials`, which has one; `Rejected` when it does not verify."""
        known = self.known(credentials, now)
        if known.peer is None:
            return known.verdict
        current = revisions(views, self._reads), tuple([state(now) for state in self._states])
        if known.checked_at != current:
            known.rejection = rejection(known.peer, views, now, self._checks)
            undecided = known.rejection is not None and known.rejection.is_undecided
            known.checked_at = None if undecided else current  # what can be read again has the revision that it had
        return known.rejection or known.verdict

    def peer(self, credentials: Credentials) -> VerifiedPeer | None:
        """Return the peer that `judged` has verified on this connection."""
        known = credentials.memo.known.get(self)
        return known.peer if isinstance(known, Known) else None

    def known(self, credentials: Credentials, now: datetime) -> Known:
        """Return the verdict about the chain alone, without the checks, from memory where it still holds."""
        memo = credentials.memo.known
        known = memo.get(self)
        if isinstance(known, Known) and known.holds(credentials.peer, now):
            return known
        known = self._accepted.get(credentials.peer)
        if known is not None and known.holds(credentials.peer, now):
            memo[self] = known
            return known
        chain = _read(credentials)
        if isinstance(chain, Rejected):
            known = memo[self] = Known(credentials.peer, chain)
            return known
        try:
            peer = self._trust.verify_read(chain, None if self._at_end else now)
        except PeerCertificateError as error:
            of_time = now if error.code in _OF_TIME and not self._at_end else None
            known = memo[self] = Known(credentials.peer, Rejected(error.code, str(error)), of_time=of_time)
            return known
        known = Known(credentials.peer, self._verdict(peer), peer, at_end=self._at_end)
        self._accepted[credentials.peer] = known
        memo[self] = known
        return known


def _read(credentials: Credentials) -> ReadChain | Rejected:
    if credentials.read_peer is None:
        try:
            credentials.read_peer = read_chain(credentials.peer)
        except PeerCertificateError as error:
            credentials.read_peer = Rejected(error.code, str(error))
    return credentials.read_peer
