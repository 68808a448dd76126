"""The SubjectPublicKeyInfo of a certificate, as its bytes stand there, and the encodings of it that are refused.

Rules kept here:
* One key has several encodings: a point of a curve is compressed or not, parameters may be left out or repeated. `openssl x509
  -pubkey` prints the bytes of the certificate, the library a form of its own. So a key is named by the hashes of both.
* Explicit parameters of a curve and id-RSASSA-PSS are refused, as Go's `x509.ParseCertificate` and `Verify` do.
"""

from __future__ import annotations

import hashlib

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.pki.errors import KeyRefusedError
from mooring.pki.x509 import der

_OID, _VERSION = 0x06, 0xA0
_EC = bytes.fromhex("06072a8648ce3d0201")
_PSS = bytes.fromhex("06092a864886f70d01010a")
_BEFORE_KEY = 5
"""Serial number, signature, issuer, validity and subject stand before the key (RFC 5280 4.1)."""


def public_key_info(certificate: x509.Certificate) -> bytes:
    """Return the SubjectPublicKeyInfo as it stands in the certificate, in DER."""
    tbs = der.content(certificate.tbs_certificate_bytes)
    if tbs[0] == _VERSION:
        tbs = tbs[der.length(tbs) :]
    for _ in range(_BEFORE_KEY):
        tbs = tbs[der.length(tbs) :]
    return tbs[: der.length(tbs)]


def key_identities(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return `sha256:<hex>` of the normal form of the key, then of its bytes in the certificate where these differ."""
    normal = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return tuple(
        dict.fromkeys(f"sha256:{hashlib.sha256(one).hexdigest()}" for one in (normal, public_key_info(certificate)))
    )


def check_encoding(certificate: x509.Certificate) -> None:
    """Raise KeyRefusedError for a key that Go refuses for its encoding."""
    algorithm = der.content(der.content(public_key_info(certificate)))
    if algorithm.startswith(_PSS):
        raise KeyRefusedError("a key of the type id-RSASSA-PSS is not accepted: use rsaEncryption")
    if algorithm.startswith(_EC) and algorithm[len(_EC) : len(_EC) + 1] != bytes([_OID]):
        raise KeyRefusedError("an elliptic curve with explicit parameters is not accepted: name the curve")
