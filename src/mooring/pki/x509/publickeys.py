"""The public keys of a PEM text, in every form that `--service-account-key-file` accepts."""

from __future__ import annotations

from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key

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
