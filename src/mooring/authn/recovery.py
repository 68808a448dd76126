"""Recovery: a machine whose certificate has expired proves that it has the key, and may request the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import ClassVar

from mooring.api.view import Views
from mooring.authn.credentials import AUTHORIZATION, CONNECTION, Credentials
from mooring.authn.reasons import Code
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.authn.x509 import CHECKS, CertificateCheck, ClientCertificateVerifier
from mooring.clock import rfc3339
from mooring.identity import (
    CREDENTIAL_ID,
    NODE_PREFIX,
    NODES,
    RECOVERING_NODE_PREFIX,
    RECOVERING_NODES,
    RECOVERY_KEY,
    RECOVERY_NOT_AFTER,
    UserInfo,
)
from mooring.pki.keys import accepted_public_key, public_key_fingerprint
from mooring.pki.x509.verify import ClientTrust, VerifiedPeer
from mooring.settings.declaration import DURATION, TEXT, Settings, duration_within, one_of_words, setting

BY_RULE, BY_APPROVAL, OFF = CHOICES = ("by-rule", "by-approval", "off")
MAX_AGE = timedelta(days=30)
"""Longer than a repair or a holiday takes. The disk of a machine that was thrown away may turn up later."""
LONGEST = timedelta(days=3650)
"""Lifetime of the CA: no node certificate is older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings(Settings):
    """Recovery of nodes whose certificate has expired."""

    heading: ClassVar[str] = "Recovery of expired nodes"

    node_recovery: str = setting(
        TEXT,
        default=BY_RULE,
        meaning="How a machine with an expired node certificate gets another: by-rule, by-approval of a person, or off.",
        metavar="MODE",
        parse=one_of_words(CHOICES),
    )
    node_recovery_max_age: timedelta = setting(
        DURATION,
        default=MAX_AGE,
        meaning="Time since the end of the certificate after which a person must approve.",
        metavar="DURATION",
        parse=duration_within(timedelta(0), LONGEST),
    )

    @property
    def rule_age(self) -> timedelta | None:
        """Time since the end of the certificate within which the rule approves; None when only a person does."""
        return self.node_recovery_max_age if self.node_recovery == BY_RULE else None


NOT_A_NODE = Code("recovery-not-a-node")


# Recovery of nodes: a machine whose node certificate has expired may request another one, and nothing else.
#
# Rules kept here (docs/come-back-after-expiry.md):
# 1. Only a request that says `Authorization: Mooring-Recovery` is judged. The certificate of the TLS connection is the
#    credential: its handshake proved possession of the key.
# 2. The chain is verified at the last moment of the leaf: everything but the leaf's end must have been right then. A leaf that
#    has not expired is not mine, unless a CA that a rollover retired is the only one that verifies it.
# 3. Only the certificate of a node recovers: common name `system:node:<name>`, organization `system:nodes` alone.
# 4. The certificate passes the checks of every client certificate: one that was revoked, or whose Node was deleted, is rejected.
# 5. The user is `system:recovering-node:<name>` in the group `system:recovering-nodes`, never the node itself. RBAC and admission
#    let it request a client certificate of that node, and watch it. The key and the end of the old certificate are extra
#    attributes, by which the approver judges the request.

SCHEME = "mooring-recovery"
"""Authentication scheme without a value, in lower case. No response offers it as a challenge."""
_NOT_MINE = NotMine()


class RecoveryAuthenticator:
    """Judges expired certificates of nodes."""

    name = "node-recovery"
    judges = CONNECTION

    def __init__(
        self, trust: ClientTrust, checks: Sequence[CertificateCheck] = CHECKS, retired: ClientTrust | None = None
    ) -> None:
        self._checks = checks
        self.replace(trust, retired)

    def replace(self, trust: ClientTrust, retired: ClientTrust | None = None) -> None:
        """Verify under the CAs of clients and those that a rollover retired from now on, and no others."""
        self._clients = ClientCertificateVerifier(trust, _verdict, checks=self._checks, at_end=True)
        self._retired: ClientCertificateVerifier | None = None
        if retired is not None and not retired.is_empty:
            self._retired = ClientCertificateVerifier(retired, _verdict, checks=self._checks, at_end=True)

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        if not credentials.peer or not _asks_for_recovery(credentials):
            return _NOT_MINE
        peers = self._clients
        # Verified at the last moment of the leaf: everything but its expiry must have been right then.
        known = peers.known(credentials, now)
        if known.peer is not None and now <= known.peer.not_after:
            return _NOT_MINE
        # The machine may have been off during a rollover, so its certificate may be of a CA that is retired.
        if known.peer is None and self._retired is not None:
            under_retired = self._retired.known(credentials, now)
            if under_retired.peer is not None:
                peers, known = self._retired, under_retired
        return known.verdict if isinstance(known.verdict, Rejected) else peers.judged(credentials, views, now)


def _asks_for_recovery(credentials: Credentials) -> bool:
    values = credentials.headers(AUTHORIZATION)
    return bool(values) and values[0].strip().lower() == SCHEME


def _verdict(peer: VerifiedPeer) -> Verdict:
    if not peer.common_name.startswith(NODE_PREFIX) or peer.organizations != (NODES,):
        return Rejected(NOT_A_NODE, f'the certificate is that of "{peer.common_name}"')
    return Accepted(_user(peer), certificate=peer)


def _user(peer: VerifiedPeer) -> UserInfo:
    extra = {
        CREDENTIAL_ID: (peer.credential_id,),
        RECOVERY_KEY: (f"sha256:{public_key_fingerprint(accepted_public_key(peer.leaf.public_key()))}",),
        RECOVERY_NOT_AFTER: (rfc3339(peer.not_after),),
    }
    name = RECOVERING_NODE_PREFIX + peer.common_name.removeprefix(NODE_PREFIX)
    return UserInfo(name, groups=(RECOVERING_NODES,), extra=MappingProxyType(extra))
