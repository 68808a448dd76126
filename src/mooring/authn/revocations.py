"""Revocation of client certificates in the cluster: by its deny list, and by the end of a node's membership."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from mooring.api.mooring.certificaterevocation import (
    PLURAL,
    issued_before,
    key_entry,
    known_serial_numbers,
    node_entry,
    revokes_known,
    serial_entry,
)
from mooring.api.mooring.membership import has_companion, lapse, may_use_name
from mooring.api.mooring.nodeidentity import PLURAL as NODE_IDENTITIES
from mooring.api.objectmeta import spec_of
from mooring.api.view import View, Views
from mooring.apimachinery.schema import Obj
from mooring.authn.reasons import UNREADABLE, Code
from mooring.authn.verdict import Rejected
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.clientcertificate import ClientCertificate, PathCertificate

NO_COMMON_NAME = Code("certificate-without-common-name")
CERTIFICATE_REVOKED = Code("certificate-revoked")
KEY_REVOKED = Code("certificate-key-revoked")
NODE_REVOKED = Code("certificate-node-revoked")
NODE_DELETED = Code("node-deleted")
NODE_KEY_REPLACED = Code("node-key-replaced")
RETIRED_CA = Code("retired-ca")
CRL_REVOKED = Code("certificate-on-crl")
CRL_MISSING = Code("crl-missing")
CRL_NOT_CURRENT = Code("crl-not-current")


# Check of revocation: refuse a certificate that a CertificateRevocation concerns.
#
# Rules kept here:
# * The name of an entry follows from what it revokes, so the view itself is the index: a certificate costs four lookups by name,
#   however long the denylist is, and three more for each intermediate above it.
# * Every certificate of the path is looked up, apart from the CAs of the cluster, which are replaced and not revoked. A key is
#   looked up by its bytes in the certificate and by its normal form.
# * A certificate that the server knew at the write of a node's entry is revoked whatever the clock said when it was issued: one
#   that ran ahead then, or that was behind at the revocation, would otherwise leave it good.
# * A certificate of a node is revoked by name when it was issued before `issuedBefore`. The moment of issue is the begin of the
#   certificate, plus BACKDATE under the cluster's own CAs (`CheckedPeer.issued_at`). For another CA the begin counts, which may
#   also catch a certificate that was issued up to five minutes later.
# * A certificate is of a node when its common name is, whatever its groups, or when it is bound to the node's machine.
# * An entry that cannot be read is present: its name says what it revokes. The entry of a node, which revokes up to a moment,
#   then leaves every certificate of the node undecided.
# * The presence of the entry counts, and not its `expiresAt`. An entry that lacks `issuedBefore`, as another API server stores
#   it, revokes up to the moment of its creation (`certificaterevocation.issued_before`).

READS = (PLURAL,)


def revoked(peer: ClientCertificate, views: Views, now: datetime) -> Rejected | None:
    """Return the rejection of a revoked certificate; None when no entry concerns it."""
    for reason, entry in entries_about(peer, views[PLURAL]):
        return Rejected(reason, _detail(entry))
    return _unreadable(peer, views[PLURAL])


def _names(peer: ClientCertificate) -> tuple[tuple[str, str], ...]:
    """Return the names of the entries whose presence revokes the certificate, with their reason codes."""
    return tuple(name for one in peer.path for name in _names_of(one))


def _names_of(certificate: PathCertificate) -> Iterator[tuple[str, str]]:
    yield CERTIFICATE_REVOKED, serial_entry(certificate.serial_number)
    yield CERTIFICATE_REVOKED, serial_entry(certificate.serial_number, certificate.issuer)
    for key in certificate.public_keys:
        yield KEY_REVOKED, key_entry(key)


def _unreadable(peer: ClientCertificate, denylist: View) -> Rejected | None:
    """Return the rejection of a certificate that an entry concerns which cannot be read."""
    for reason, name in _names(peer):
        if problem := denylist.problem(name):
            return Rejected(reason, f"{PLURAL}/{name}, which cannot be read: {problem}")
    if peer.node_name:
        name = node_entry(peer.node_name)
        if problem := denylist.problem(name):
            return Rejected(UNREADABLE, f"{PLURAL}/{name} cannot be read: {problem}", is_undecided=True)
    return None


def entries_about(peer: ClientCertificate, denylist: View) -> Iterator[tuple[str, Obj]]:
    """Yield the entries that concern the certificate, with their reason codes."""
    for reason, name in _names(peer):
        if (entry := denylist.get(name)) is not None:
            yield reason, entry
    if peer.node_name:
        entry = denylist.get(node_entry(peer.node_name))
        if entry is not None:
            before = issued_before(entry)
            if before is None or peer.issued_at < before or _was_known(peer, entry):
                yield NODE_REVOKED, entry


def _was_known(peer: ClientCertificate, entry: Obj) -> bool:
    """Return true for a certificate that existed when an entry was written that revokes up to its own writing."""
    return revokes_known(entry) and peer.path[0].serial_number in known_serial_numbers(spec_of(entry))


def _detail(entry: Obj) -> str:
    spec, name = spec_of(entry), entry["metadata"]["name"]
    message = f": {spec['message']}" if spec.get("message") else ""
    return f"{PLURAL}/{name}, {spec.get('reason')}{message}"


# Check of membership: refuse the certificate of a node whose name belongs to another key, or whose Node was deleted.
#
# Rules kept here:
# * The common name `system:node:<name>` decides, no matter who issued the certificate. A name without a NodeIdentity restricts
#   none: an administrator may make certificates of nodes by hand.
# * A NodeIdentity or a Node that cannot be read is not the absence of one. Certificates of this name do not count until it can be
#   read again, and no other certificate is concerned.
# * A Node that was deleted before the store was restored, and that is not settled, ends the certificates of its name, whether or
#   not the store has the Node or the NodeIdentity. While the list of these cannot be read, or is not complete, no certificate of
#   a node counts.
# * A certificate of a user that all machines share names its machine, and is recorded as one of its companions. It ends with the
#   membership and with the ownership of the name, and counts for nothing where the machine has no NodeIdentity.
# * The end of the membership is told before the key: the remedies differ.


def ended_or_replaced(peer: ClientCertificate, views: Views, now: datetime) -> Rejected | None:
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
    identity = views[NODE_IDENTITIES].get(name)
    if identity is None:
        return Rejected(NODE_KEY_REPLACED, f"{NODE_IDENTITIES}/{name} does not exist") if is_companion else None
    if is_companion:
        is_known = has_companion(identity, peer.public_key)
    else:
        is_known = may_use_name(identity, peer.public_key, f"sha256:{peer.fingerprint}")
    return (
        None if is_known else Rejected(NODE_KEY_REPLACED, f"{NODE_IDENTITIES}/{name} does not list {peer.public_key}")
    )
