"""The next CA of a cluster: its certificate, and the certificates by which the old and the new CA vouch for each other.

Rules kept here:
* The name of a new CA ends in the time at which it was made (`kubernetes@1767225600`, as k3s names CAs), because OpenSSL finds the
  issuer of a certificate by name.
* A cross-signed certificate has the name, the key and the key identifier of one CA and the signature of the other. It ends with the
  earlier of both. A client that trusts only the other CA verifies a chain that contains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from cryptography import x509

from mooring.pki.keys import PrivateKey, accepted_public_key
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca, serial_number

Entropy = Callable[[int], bytes]


def successor(key: PrivateKey, now: datetime, entropy: Entropy) -> Authority:
    """Return a new root CA for `key`."""
    name = f"{profiles.CLUSTER_CA_NAME}@{int(now.timestamp())}"
    return self_signed_ca(key, name, now, serial_number(entropy))


def cross_sign(subject: x509.Certificate, issuer: Authority, now: datetime, entropy: Entropy) -> x509.Certificate:
    """Return the CA `subject`, certified by `issuer`. Raises IssueError."""
    template = replace(
        profiles.certificate_authority(accepted_public_key(subject.public_key()), now),
        subject=subject.subject,
        subject_key_identifier=_key_identifier(subject),
    )
    return issuer.sign(template.ending_by(subject.not_valid_after_utc), now, serial_number(entropy))


def find_cross_signed(
    certificates: Iterable[x509.Certificate], subject: x509.Certificate, issuer: x509.Certificate
) -> x509.Certificate | None:
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


def _key_identifier(certificate: x509.Certificate) -> bytes:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    except x509.ExtensionNotFound:
        return b""
