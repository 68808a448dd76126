"""The certificates of a PEM text: a chain, a bundle of CAs, or a file that also has a key.

Rules kept here: an error names the part of a certificate that cannot be read, and its place where the text has several. Their
number is capped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mooring.pki.errors import CertificateUnreadableError, PemError
from mooring.pki.pem import CERTIFICATE, Block, blocks, encode
from mooring.pki.x509.certificate import MAX_ELEMENTS, Certificate
from mooring.pki.x509.der import ElementBudget

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
