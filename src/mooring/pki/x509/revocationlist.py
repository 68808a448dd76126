"""Certificate revocation list (RFC 5280 5): its entries, and the list that an authority signs.

Rules kept here:
* The list is version 2, with the extensions that RFC 5280 5.2 demands of every CA: AuthorityKeyIdentifier and CRLNumber.
* The reason `unspecified` is left out of an entry (RFC 5280 5.3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from mooring.pki import pem
from mooring.pki.errors import IssueError
from mooring.pki.x509 import usages
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.certificate import Certificate

LIFETIME = timedelta(days=7)
"""Time from an issue to nextUpdate: software that reads copies of the list goes on for some days when the server is down."""

_NO_REASON = x509.ReasonFlags.unspecified


@dataclass(frozen=True, slots=True)
class SignedList:
    """A signed list in both encodings."""

    der: bytes
    pem: bytes

    @classmethod
    def of(cls, der: bytes) -> SignedList:
        """Encode a list."""
        return cls(der, pem.encode("X509 CRL", der))


def revoked_certificate(serial_number: int, revoked_at: datetime, reason: str) -> x509.RevokedCertificate:
    """Return the entry of one certificate. `reason` is a word of RFC 5280 5.3.1, such as `keyCompromise`."""
    builder = x509.RevokedCertificateBuilder().serial_number(serial_number).revocation_date(revoked_at)
    flag = x509.ReasonFlags(reason)
    if flag is not _NO_REASON:
        builder = builder.add_extension(x509.CRLReason(flag), critical=False)
    return builder.build()


def revocation_list(authority: Authority, revoked: Sequence[x509.RevokedCertificate], now: datetime) -> bytes:
    """Return the DER of the list of `authority`. Raises IssueError when its certificate does not allow it to sign one.

    CRLNumber is the time in microseconds, which grows from list to list although several servers issue them.
    """
    _require_crl_signing(authority.certificate)
    # the constructor takes all entries at once; the method for one entry copies those before it
    builder = x509.CertificateRevocationListBuilder(revoked_certificates=list(revoked))
    whole_second = now.replace(microsecond=0)
    number = int(now.timestamp() * 1_000_000)
    builder = (
        builder.last_update(whole_second)
        .next_update(whole_second + LIFETIME)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    return authority.sign_revocation_list(builder)


def _require_crl_signing(certificate: Certificate) -> None:
    if not usages.may_sign_crls(certificate.extensions.key_usage):
        raise IssueError("the CA certificate may not sign revocation lists according to its key usage (cRLSign)")
