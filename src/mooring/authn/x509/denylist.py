"""Check of revocation: refuse a certificate that a CertificateRevocation concerns.

Rules kept here:
* The name of an entry follows from what it revokes, so the view itself is the index: a certificate costs four lookups by name,
  however long the denylist is.
* A certificate of a node is revoked by name when it was issued before `issuedBefore`. The moment of issue is the begin of the
  certificate, plus BACKDATE under the cluster's own CAs (`VerifiedPeer.issued_at`). For another CA the begin counts, which may
  also catch a certificate that was issued up to five minutes later.
* A certificate is of a node when its common name is, whatever its groups.
* The presence of the entry counts, and not its `expiresAt`. An entry that lacks `issuedBefore` revokes every certificate of the
  node.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.certificaterevocation import PLURAL, key_entry, node_entry, serial_entry, time_of
from mooring.api.view import View, Views
from mooring.apimachinery.schema import Obj
from mooring.authn.verdict import Rejected
from mooring.authn.x509.reasons import CERTIFICATE_REVOKED, KEY_REVOKED, NODE_REVOKED
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.verify import VerifiedPeer

READS = (PLURAL,)


def revoked(peer: VerifiedPeer, views: Views, now: datetime) -> Rejected | None:
    """Return the rejection of a revoked certificate; None when no entry concerns it."""
    for reason, entry in _entries(peer, views[PLURAL]):
        return Rejected(reason, _detail(entry))
    return None


def _entries(peer: VerifiedPeer, denylist: View) -> Iterator[tuple[str, Obj]]:
    """Yield the entries that concern the certificate, with their reason codes."""
    serial_number = f"{peer.serial_number:x}"
    for reason, name in (
        (CERTIFICATE_REVOKED, serial_entry(serial_number)),
        (CERTIFICATE_REVOKED, serial_entry(serial_number, peer.issuer)),
        (KEY_REVOKED, key_entry(peer.public_key)),
    ):
        if (entry := denylist.get(name)) is not None:
            yield reason, entry
    if peer.common_name.startswith(NODE_PREFIX):
        entry = denylist.get(node_entry(peer.common_name.removeprefix(NODE_PREFIX)))
        if entry is not None:
            before = time_of(spec_of(entry), "issuedBefore")
            if before is None or peer.issued_at < before:
                yield NODE_REVOKED, entry


def _detail(entry: Obj) -> str:
    spec, name = spec_of(entry), entry["metadata"]["name"]
    message = f": {spec['message']}" if spec.get("message") else ""
    return f"{PLURAL}/{name}, {spec.get('reason')}{message}"
