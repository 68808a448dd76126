"""Check of membership: refuse the certificate of a node whose name belongs to another key, or whose Node was deleted.

Rules kept here:
* The common name `system:node:<name>` decides, whoever issued the certificate. A name without a NodeIdentity restricts none: an
  administrator may make certificates of nodes by hand.
* The end of the membership is told before the key: the remedies differ.
"""

from __future__ import annotations

from datetime import datetime

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.membership import has_ended, may_use_name
from mooring.api.mooring.nodeidentity import PLURAL
from mooring.api.view import Views
from mooring.authn.verdict import Rejected
from mooring.authn.x509.reasons import NODE_DELETED, NODE_KEY_REPLACED
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.verify import VerifiedPeer

NODES = "nodes"
READS = (PLURAL, NODES)


def ended_or_replaced(peer: VerifiedPeer, views: Views, now: datetime) -> Rejected | None:
    """Return the rejection of a certificate whose node is no member, or has another key; None for every other certificate."""
    if not peer.common_name.startswith(NODE_PREFIX):
        return None
    name = peer.common_name.removeprefix(NODE_PREFIX)
    identity = views[PLURAL].get(name)
    if identity is None:
        return None
    if has_ended(identity, views[NODES].get(name)):
        return Rejected(NODE_DELETED, f"{PLURAL}/{name}: the Node with uid {spec_of(identity)['nodeUID']} was deleted")
    if not may_use_name(identity, peer.public_key, f"sha256:{peer.fingerprint}"):
        return Rejected(NODE_KEY_REPLACED, f"{PLURAL}/{name} does not list {peer.public_key}")
    return None
