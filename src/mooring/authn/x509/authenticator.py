"""Client certificates: the common name is the user, the organizations are the groups.

Rules kept here (docs/protocol/authentication.md#client-certificates):
1. No certificate is not mine. A certificate that does not verify under the client CAs is rejected. A good bearer token beside it
   still rescues the request, by the rules of the chain.
2. A verified certificate without a common name is not mine.
3. The credential id is `X509SHA256=<hex of the leaf's SHA-256>`, in extra. A certificate of a user that all machines share has the
   machine to which it is bound there, too, under the key that Kubernetes uses for tokens of Pods (docs/adr/0063).
4. The bundle of CAs may change while the server runs. Every certificate is judged under the new one from then on, on open
   connections too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import MappingProxyType

from mooring.api.view import Views
from mooring.authn.authenticator import CONNECTION
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Accepted, NotMine, Verdict
from mooring.authn.x509.checks import CHECKS, CertificateCheck
from mooring.authn.x509.peers import MAX_REMEMBERED, Peers
from mooring.authn.x509.reasons import NO_COMMON_NAME
from mooring.identity import CREDENTIAL_ID, NODE_NAME, NODE_PREFIX, UserInfo
from mooring.pki.x509.verify import ClientTrust, VerifiedPeer

_NOT_MINE = NotMine()


class ClientCertificateAuthenticator:
    """Judges the peer chain of the connection."""

    name = "client-certificate"
    judges = CONNECTION

    def __init__(
        self, trust: ClientTrust, max_remembered: int = MAX_REMEMBERED, checks: Sequence[CertificateCheck] = CHECKS
    ) -> None:
        self._max_remembered = max_remembered
        self._checks = checks
        self.replace(trust)

    def replace(self, trust: ClientTrust) -> None:
        """Verify under these CAs from now on, and no others."""
        self._peers = Peers(trust, _verdict, self._max_remembered, self._checks)

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        return self._peers.judged(credentials, views, now) if credentials.peer else _NOT_MINE


def _verdict(peer: VerifiedPeer) -> Verdict:
    if not peer.common_name:
        return NotMine(NO_COMMON_NAME)
    extra = {CREDENTIAL_ID: (peer.credential_id,)}
    if peer.node_name and not peer.common_name.startswith(NODE_PREFIX):
        extra[NODE_NAME] = (peer.node_name,)
    user = UserInfo(peer.common_name, peer.uid, peer.organizations, MappingProxyType(extra))
    return Accepted(user, certificate=peer)
