"""The names of a certificate's key.

Rules kept here: one key has several encodings, such as a compressed point of a curve. Such a certificate verifies nothing
(`keyencoding.py`), and may be on a list of what is refused, beside another of the same key. `openssl x509 -pubkey` prints the bytes
of the certificate, the library a form of its own. So a key is named by the hashes of both.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from mooring.pki.keys import UNREADABLE
from mooring.pki.x509.certificate import Certificate


def key_identities(certificate: Certificate) -> tuple[str, ...]:
    """Return `sha256:<hex>` of the normal form of the key, then of its bytes in the certificate where these differ."""
    written = certificate.public_key_info
    try:
        normal = load_der_public_key(written).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except UNREADABLE:
        normal = written
    return tuple(dict.fromkeys(f"sha256:{hashlib.sha256(one).hexdigest()}" for one in (normal, written)))
