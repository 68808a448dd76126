"""The next CA of a cluster: its certificate, and the certificates by which the old and the new CA vouch for each other.

Rules kept here:
* The name of a new CA ends in the time at which it was made (`kubernetes@1767225600`, as k3s names CAs), because OpenSSL finds the
  issuer of a certificate by name.
* Between both CAs stand certificates of two kinds. That of the new CA, signed by the old one, leads machines that come back later
  to the server. That of the old CA, signed by the new one, would make anyone who has the old key a CA under the new one: it lives a
  week, for the names of one server, and is made again while clients may need it (`bridge`).
* Both are for servers alone (`server auth`), so that neither leads to a client certificate.
* A cross-signed certificate has the name, the key and the key identifier of one CA and the signature of the other. It ends with the
  earlier of both. A client that trusts only the other CA verifies a chain that contains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from cryptography.x509.oid import ExtensionOID

from mooring.pki.keys import PrivateKey, accepted_public_key
from mooring.pki.x509 import profiles, usages
from mooring.pki.x509.authority import Authority, self_signed_ca, serial_number
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import NO_NAMES, AlternativeNames

Entropy = Callable[[int], bytes]
BRIDGE_LIFE = timedelta(days=7)


def successor(key: PrivateKey, now: datetime, entropy: Entropy) -> Authority:
    """Return a new root CA for `key`."""
    name = f"{profiles.CLUSTER_CA_NAME}@{int(now.timestamp())}"
    return self_signed_ca(key, name, now, serial_number(entropy))


def cross_sign(
    subject: Certificate,
    issuer: Authority,
    now: datetime,
    entropy: Entropy,
    *,
    lifetime: timedelta = profiles.CA_LIFETIME,
    permitted: AlternativeNames = NO_NAMES,
) -> Certificate:
    """Return the CA `subject`, certified by `issuer` for servers. Raises IssueError."""
    template = replace(
        profiles.certificate_authority(accepted_public_key(subject.public_key()), now, lifetime=lifetime),
        subject=subject.subject,
        subject_key_identifier=subject.extensions.subject_key_identifier or b"",
        permitted=permitted,
    )
    template = replace(template, usages=(*template.usages, usages.SERVER_AUTH))
    return issuer.sign(template.ending_by(subject.not_valid_after_utc), now, serial_number(entropy))


def bridge(
    subject: Certificate, issuer: Authority, permitted: AlternativeNames, now: datetime, entropy: Entropy
) -> Certificate:
    """Return the CA `subject`, certified by `issuer` for BRIDGE_LIFE and servers of the permitted names. Raises IssueError."""
    return cross_sign(subject, issuer, now, entropy, lifetime=BRIDGE_LIFE, permitted=permitted)


def is_bridge(
    certificate: Certificate,
    subject: Certificate,
    issuer: Authority,
    permitted: AlternativeNames,
    now: datetime,
) -> bool:
    """Return whether a certificate is a bridge between these CAs for these names, with more than half of its life left."""
    limits = certificate.extensions.by_oid.get(ExtensionOID.NAME_CONSTRAINTS)
    return (
        limits is not None
        and limits.value == permitted.constraints().public_bytes()
        and certificate.is_issued_by(issuer.certificate)
        and certificate.subject == subject.subject
        and certificate.public_key() == subject.public_key()
        and certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - BRIDGE_LIFE / 2
    )


def find_cross_signed(
    certificates: Iterable[Certificate], subject: Certificate, issuer: Certificate
) -> Certificate | None:
    """Return the certificate that certifies the key of `subject` under `issuer`; None when there is none."""
    names = (subject.subject, issuer.subject)
    return next(
        (
            one
            for one in certificates
            if (one.subject, one.issuer) == names and one.public_key() == subject.public_key()
        ),
        None,
    )
