"""The SubjectPublicKeyInfo of a certificate, as its bytes stand there, and the encodings of it that are refused.

Rules kept here:
* One key has several encodings: a point of a curve is compressed or not, parameters may be left out or repeated. `openssl x509
  -pubkey` prints the bytes of the certificate, the library a form of its own. So a key is named by the hashes of both.
* Explicit parameters of a curve and id-RSASSA-PSS are refused, as Go's `x509.ParseCertificate` and `Verify` do.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ObjectIdentifier

from mooring.pki.errors import KeyRefusedError
from mooring.pki.keys import UNREADABLE
from mooring.pki.x509 import der
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.der import DerError

_EC = ObjectIdentifier("1.2.840.10045.2.1")
_PSS = ObjectIdentifier("1.2.840.113549.1.1.10")


def key_identities(certificate: Certificate) -> tuple[str, ...]:
    """Return `sha256:<hex>` of the normal form of the key, then of its bytes in the certificate where these differ."""
    written = certificate.public_key_info
    try:
        normal = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except UNREADABLE:
        normal = written
    return tuple(dict.fromkeys(f"sha256:{hashlib.sha256(one).hexdigest()}" for one in (normal, written)))


def check_encoding(certificate: Certificate) -> None:
    """Raise KeyRefusedError for a key that Go refuses for its encoding."""
    try:
        fields = der.only(certificate.public_key_info, der.SEQUENCE).fields().next(der.SEQUENCE).fields()
        algorithm = der.object_identifier(fields.next(der.OID))
    except DerError as error:
        raise KeyRefusedError(f"the public key cannot be read: {error}") from error
    if algorithm == _PSS:
        raise KeyRefusedError("a key of the type id-RSASSA-PSS is not accepted: use rsaEncryption")
    if algorithm == _EC and not fields.is_next(der.OID):
        raise KeyRefusedError("an elliptic curve with explicit parameters is not accepted: name the curve")
