"""Client certificates: the common name is the user, the organizations are the groups.

Rules kept here (reference/kubernetes.md 5.1, 5.3):
1. No certificate is not mine. One that does not verify under the client CAs is refused (401), though a good bearer token
   beside it still rescues the request: that is the chain's business.
2. A verified certificate without a common name is not mine.
3. The chain walk happens once per connection; after that only the validity dates of the whole chain are compared with
   `now`. A refusal is remembered too, unless it was about time. Another bundle of CAs, or another chain, asks anew: a
   memo that was passed on by mistake never lends one peer the identity of another.
4. Accepted chains are also remembered across connections (bounded, oldest out): who opens one connection a request, as
   kubectl does, pays for the walk once. What was verified can only stop being valid by time, which is always looked at.
5. The credential id is `X509SHA256=<hex of the leaf's SHA-256>`, in extra.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from mooring.authn.authenticator import CONNECTION
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.identity import CREDENTIAL_ID, UserInfo
from mooring.kinds.view import Views
from mooring.pki.errors import PeerCertificateError
from mooring.pki.verify import ClientTrust, VerifiedPeer, valid_at

NO_COMMON_NAME = "certificate-without-common-name"
MAX_REMEMBERED = 4096  # chains of about 1 kB: as many as a large cluster has nodes, 8 MB at the most
_NOT_MINE = NotMine()
_OF_TIME = frozenset({"expired", "not-yet-valid"})


@dataclass(frozen=True, slots=True)
class _Known:
    """What a connection remembers about one presented chain; `peer` is None for a refusal."""

    chain: tuple[bytes, ...]
    verdict: Verdict
    peer: VerifiedPeer | None = None

    def holds(self, chain: tuple[bytes, ...], now: datetime) -> bool:
        """Whether the verdict is about this chain and no date has passed since."""
        return self.chain == chain and (self.peer is None or valid_at(self.peer, now))


class ClientCertificateAuthenticator:
    """Judges the peer chain of the connection."""

    name = "client-certificate"
    judges = CONNECTION

    def __init__(self, trust: ClientTrust, max_remembered: int = MAX_REMEMBERED) -> None:
        self._trust = trust
        self._max_remembered = max_remembered
        self._accepted: dict[tuple[bytes, ...], _Known] = {}

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        if not credentials.peer:
            return _NOT_MINE
        memo = credentials.memo
        known = memo.known if memo.trust is self._trust else None
        if isinstance(known, _Known) and known.holds(credentials.peer, now):
            return known.verdict
        known = self._accepted.get(credentials.peer)
        if known is not None and known.holds(credentials.peer, now):
            memo.trust, memo.known = self._trust, known
            return known.verdict
        try:
            peer = self._trust.verify(credentials.peer, now)
        except PeerCertificateError as error:
            refused = Rejected(error.code, str(error))
            memo.trust = self._trust
            memo.known = None if error.code in _OF_TIME else _Known(credentials.peer, refused)
            return refused
        known = _Known(credentials.peer, _verdict(peer), peer)
        if len(self._accepted) >= self._max_remembered:
            del self._accepted[next(iter(self._accepted))]
        self._accepted[credentials.peer] = known
        memo.trust, memo.known = self._trust, known
        return known.verdict


def _verdict(peer: VerifiedPeer) -> Verdict:
    if not peer.common_name:
        return NotMine(NO_COMMON_NAME)
    extra = MappingProxyType({CREDENTIAL_ID: (peer.credential_id,)})
    return Accepted(UserInfo(peer.common_name, peer.uid, peer.organizations, extra))
