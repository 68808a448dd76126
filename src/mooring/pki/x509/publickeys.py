"""The public keys of a PEM text, in every form that `--service-account-key-file` accepts."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
)

from mooring.pki import pem
from mooring.pki.errors import CertificateUnreadableError, KeyRefusedError
from mooring.pki.keys import PRIVATE_LABELS, UNREADABLE, PublicKey, accepted_private_key, accepted_public_key
from mooring.pki.x509.certificate import Certificate


def load_public_keys(data: bytes) -> tuple[PublicKey, ...]:
    """Return the public keys of a PEM text: `PUBLIC KEY`, `RSA PUBLIC KEY`, certificates, and the public halves of private keys,
    as `--service-account-key-file` accepts them (docs/protocol/service-account-tokens.md#keys-and-flags). Raises PemError,
    KeyRefusedError."""
    found: list[PublicKey] = []
    for block in pem.blocks(data):
        try:
            if block.label in ("PUBLIC KEY", "RSA PUBLIC KEY"):
                found.append(accepted_public_key(load_der_public_key(block.der)))
            elif block.label in PRIVATE_LABELS:
                # unchecked: proving a long RSA key takes seconds, and its private half is not used here
                private = load_der_private_key(block.der, password=None, unsafe_skip_rsa_key_validation=True)
                found.append(accepted_private_key(private).public_key())
            elif block.label == pem.CERTIFICATE:
                found.append(accepted_public_key(Certificate(block.der).public_key()))
        except (CertificateUnreadableError, *UNREADABLE):
            raise KeyRefusedError(f"the PEM block {block.label} cannot be parsed") from None
    if not found:
        raise KeyRefusedError("the text holds no public key in PEM form")
    return tuple(found)


# The names of a certificate's key.
#
# Rules kept here: one key has several encodings, such as a compressed point of a curve. Such a certificate verifies nothing
# (`signatures.py`), and may be on a list of what is refused, beside another of the same key. `openssl x509 -pubkey`
# prints the bytes of the certificate, the library a form of its own. So a key is named by the hashes of both.


def key_identities(certificate: Certificate) -> tuple[str, ...]:
    """Return `sha256:<hex>` of the normal form of the key, then of its bytes in the certificate where these differ."""
    written = certificate.public_key_info
    try:
        normal = load_der_public_key(written).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except UNREADABLE:
        normal = written
    return tuple(dict.fromkeys(f"sha256:{hashlib.sha256(one).hexdigest()}" for one in (normal, written)))
