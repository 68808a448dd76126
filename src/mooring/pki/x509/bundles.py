"""Certificates and public keys of a PEM text: a chain, a bundle of CAs, or a file that also has a key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
)

from mooring.pki import pem
from mooring.pki.errors import CertificateUnreadableError, KeyRefusedError, PemError
from mooring.pki.keys import PRIVATE_LABELS, UNREADABLE, PublicKey, accepted_private_key, accepted_public_key
from mooring.pki.pem import CERTIFICATE, Block, blocks, encode
from mooring.pki.x509.certificate import MAX_ELEMENTS, Certificate
from mooring.pki.x509.der import ElementBudget

# The public keys of a PEM text, in every form that `--service-account-key-file` accepts.


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


# The certificates of a PEM text: a chain, a bundle of CAs, or a file that also has a key.
#
# Rules kept here: an error names the part of a certificate that cannot be read, and its place where the text has several. Their
# number is capped.

MAX_CERTIFICATES = 1024  # each certificate of a bundle is kept in memory and tried as an issuer
MAX_BUNDLE_ELEMENTS = 100 * MAX_CERTIFICATES
"""Elements of all certificates of a text. A usual CA has 60. 1 MiB of certificates with `MAX_ELEMENTS` each has four times as many,
which took 0.6 s."""
NO_CERTIFICATE = "the text holds no CERTIFICATE PEM block"


def certificates(data: bytes) -> tuple[Certificate, ...]:
    """Return one or more certificates of a text without other blocks (the rule of `status.certificate` and of CA files).

    Raises PkiError; its message names the place of a certificate that cannot be read, when there are several.
    """
    return _certificates(certificate_blocks(data))


def certificate_blocks(data: bytes) -> tuple[Block, ...]:
    """Return the blocks of such a text, perhaps none. What is in them is not read. Raises PkiError."""
    found = tuple(blocks(data))
    for block in found:
        if block.label != CERTIFICATE:
            raise PemError(f'only CERTIFICATE PEM blocks are allowed, found "{block.label}"')
    return found


def certificates_among(data: bytes) -> tuple[Certificate, ...]:
    """Return the certificates, at least one, of a file that people or programs write: keys, CRLs and whatever else is in it are
    passed over, as by Go and OpenSSL. Raises PkiError, as `certificates`."""
    return _certificates(tuple(blocks(data, label=CERTIFICATE)))


def have_common(one: bytes, other: bytes) -> bool:
    """Return whether two bundles share a certificate; two empty ones, which mean the system's roots, do. Raises PkiError."""
    if not one or not other:
        return one == other
    return not set(certificates_among(one)).isdisjoint(certificates_among(other))


def first_certificate(data: bytes) -> Certificate:
    """Return the first certificate of a text that `certificates` has accepted; the others are not read again. Raises PkiError."""
    block = next(blocks(data), None)
    if block is None:
        raise PemError(NO_CERTIFICATE)
    return Certificate(block.der)


def element_budget(count: int) -> ElementBudget:
    """Return the budget of a text with so many certificates."""
    return ElementBudget(min(count * MAX_ELEMENTS, MAX_BUNDLE_ELEMENTS))


def _certificates(found: Sequence[Block]) -> tuple[Certificate, ...]:
    if not found:
        raise PemError(NO_CERTIFICATE)
    if len(found) > MAX_CERTIFICATES:
        raise PemError(f"the PEM text holds more than {MAX_CERTIFICATES} certificates")
    budget = element_budget(len(found))
    return tuple(_certificate(block, number, len(found), budget) for number, block in enumerate(found, 1))


def _certificate(block: Block, number: int, count: int, budget: ElementBudget) -> Certificate:
    try:
        return Certificate(block.der, budget)
    except CertificateUnreadableError as error:
        if count == 1:
            raise
        raise type(error)(f"certificate {number} of {count}, in line {block.line}: {error}") from error


def certificates_pem(certs: Iterable[Certificate]) -> bytes:
    """Return the certificates as concatenated PEM blocks, in the given order."""
    return b"".join(encode(CERTIFICATE, cert.der) for cert in certs)
