"""Check of membership: refuse the certificate of a node whose name belongs to another key, or whose Node was deleted.

Rules kept here:
* The common name `system:node:<name>` decides, no matter who issued the certificate. A name without a NodeIdentity restricts none:
  an administrator may make certificates of nodes by hand.
* A NodeIdentity or a Node that cannot be read is not the absence of one. Certificates of this name do not count until it can be
  read again, and no other certificate is concerned.
* A Node that was deleted before the store was restored, and that is not settled, ends the certificates of its name, whether or not
  the store has the Node or the NodeIdentity. While the list of these cannot be read, or is not complete, no certificate of a node
  counts.
* A certificate of a user that all machines share names its machine, and is recorded as one of its companions. It ends with the
  membership and with the ownership of the name, and counts for nothing where the machine has no NodeIdentity.
* The end of the membership is told before the key: the remedies differ.
"""

from __future__ import annotations

from datetime import datetime

from mooring.api.mooring.membership import has_companion, lapse, may_use_name
from mooring.api.mooring.nodeidentity import PLURAL
from mooring.api.view import Views
from mooring.authn.reasons import UNREADABLE
from mooring.authn.verdict import Rejected
from mooring.authn.x509.reasons import NODE_DELETED, NODE_KEY_REPLACED
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.checkedpeer import CheckedPeer


def ended_or_replaced(peer: CheckedPeer, views: Views, now: datetime) -> Rejected | None:
    """Return the rejection of a certificate whose node is not a member, or has another key; None for every other certificate."""
    name = peer.node_name
    if not name:
        return None
    found = lapse(name, views)
    if found is not None:
        return Rejected(
            UNREADABLE if found.is_undecided else NODE_DELETED, found.detail, is_undecided=found.is_undecided
        )
    is_companion = not peer.common_name.startswith(NODE_PREFIX)
    identity = views[PLURAL].get(name)
    if identity is None:
        return Rejected(NODE_KEY_REPLACED, f"{PLURAL}/{name} does not exist") if is_companion else None
    if is_companion:
        is_known = has_companion(identity, peer.public_key)
    else:
        is_known = may_use_name(identity, peer.public_key, f"sha256:{peer.fingerprint}")
    return None if is_known else Rejected(NODE_KEY_REPLACED, f"{PLURAL}/{name} does not list {peer.public_key}")
