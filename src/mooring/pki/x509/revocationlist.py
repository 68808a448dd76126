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
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.pki import pem
from mooring.pki.errors import IssueError
from mooring.pki.x509.authority import Authority

LIFETIME = timedelta(days=7)
"""Time from an issue to nextUpdate: software that reads copies of the list goes on for some days when the server is down."""

_NO_REASON = x509.ReasonFlags.unspecified


@dataclass(frozen=True, slots=True)
class SignedList:
    """A signed list in both encodings."""

    der: bytes
    pem: bytes

    @classmethod
    def of(cls, signed: x509.CertificateRevocationList) -> SignedList:
        """Encode a list."""
        der = signed.public_bytes(Encoding.DER)
        return cls(der, pem.encode("X509 CRL", der))


def revoked_certificate(serial_number: int, revoked_at: datetime, reason: str) -> x509.RevokedCertificate:
    """Return the entry of one certificate. `reason` is a word of RFC 5280 5.3.1, such as `keyCompromise`."""
    builder = x509.RevokedCertificateBuilder().serial_number(serial_number).revocation_date(revoked_at)
    flag = x509.ReasonFlags(reason)
    if flag is not _NO_REASON:
        builder = builder.add_extension(x509.CRLReason(flag), critical=False)
    return builder.build()


def revocation_list(
    authority: Authority, revoked: Sequence[x509.RevokedCertificate], now: datetime
) -> x509.CertificateRevocationList:
    """Return the list of `authority`. Raises IssueError when its certificate does not allow it to sign one.

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


def _require_crl_signing(certificate: x509.Certificate) -> None:
    try:
        allowed = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return
    if not allowed.crl_sign:
        raise IssueError("the CA certificate may not sign revocation lists according to its key usage (cRLSign)")
