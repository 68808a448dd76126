"""PEM: strict decoding and encoding of blocks and certificates (RFC 7468).

Source: docs/protocol/certificate-signing-requests.md#validation.

Rules kept here:
* A block is `-----BEGIN LABEL-----`, base64 lines, `-----END LABEL-----` with the same label, each boundary on its own
  line. Text around blocks is allowed (openssl writes it), a begin without its end or undecodable base64 is an error.
* RFC 1421 headers (`Key: value` lines, as encrypted keys carry) are recognised and refused: no accepted file has them.
* Blocks are decoded lazily: a caller that needs only the first block does not decode the others.
* The size of the text is capped before anything is parsed.
"""

from __future__ import annotations

import base64
import binascii
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.pki.errors import PemError

MAX_PEM_BYTES = 1 << 20  # a CA bundle of the whole web is a quarter of this; Kubernetes stores no object above 1.5 MiB
MAX_CERTIFICATES = 1024  # each certificate of a bundle is kept in memory and tried as an issuer

CERTIFICATE = "CERTIFICATE"
CERTIFICATE_REQUEST = "CERTIFICATE REQUEST"

UNPARSABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Exceptions of the library for DER that it cannot parse."""

_BEGIN = re.compile(rb"^-----BEGIN ([A-Z0-9](?:[A-Z0-9 ]{0,62}[A-Z0-9])?)-----[ \t]*\r?$", re.MULTILINE)

NO_CERTIFICATE = "the text holds no CERTIFICATE PEM block"


@dataclass(frozen=True, slots=True)
class Block:
    """One PEM block: its label and its DER bytes."""

    label: str
    der: bytes


def blocks(data: bytes, limit: int = MAX_PEM_BYTES) -> Iterator[Block]:
    """Yield the blocks of `data` in order. Raises PemError at the first malformed block, and for more than `limit` bytes."""
    if len(data) > limit:
        raise PemError(f"the PEM text is longer than {limit} bytes")
    position = 0
    while begin := _BEGIN.search(data, position):
        end = re.compile(rb"^-----END " + begin[1] + rb"-----[ \t]*\r?$", re.MULTILINE).search(data, begin.end())
        label = begin[1].decode("ascii")
        if end is None:
            raise PemError(f"the PEM block {label} has no end line")
        yield Block(label, _content(label, data[begin.end() : end.start()]))
        position = end.end()


def _content(label: str, body: bytes) -> bytes:
    if b":" in body:
        raise PemError(f"the PEM block {label} carries headers, which are not allowed")
    try:
        return base64.b64decode(b"".join(body.split()), validate=True)
    except binascii.Error:
        raise PemError(f"the PEM block {label} is not base64") from None


def encode(label: str, der: bytes) -> bytes:
    """Return one PEM block with lines of 64 characters and a final newline, as Go and openssl write it."""
    text = base64.b64encode(der)
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    tag = label.encode("ascii")
    return b"\n".join([b"-----BEGIN " + tag + b"-----", *lines, b"-----END " + tag + b"-----", b""])


def certificate_from_der(der: bytes) -> x509.Certificate:
    """Return the certificate, with names and extensions parsed so that reading them later cannot fail. Raises PemError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Go accepts these oddities too, such as long names
            certificate = x509.load_der_x509_certificate(der)
            _ = (certificate.subject, certificate.issuer, certificate.extensions, certificate.version)
    except UNPARSABLE as error:
        raise PemError("the certificate cannot be parsed") from error
    # The signature is the last field. The library ignores its octet of unused bits, so that one signature had several encodings,
    # each with a fingerprint of its own. Go's `RightAlign` makes another signature of them.
    if der[-len(certificate.signature) - 1] != 0:
        raise PemError("the certificate's signature is not a whole number of octets")
    return certificate


def certificates(data: bytes) -> tuple[x509.Certificate, ...]:
    """Return one or more certificates of a text without other blocks (the rule of `status.certificate` and of CA files)."""
    found: list[x509.Certificate] = []
    for block in blocks(data):
        if block.label != CERTIFICATE:
            raise PemError(f"only CERTIFICATE PEM blocks are allowed, found {block.label}")
        if len(found) == MAX_CERTIFICATES:
            raise PemError(f"the PEM text holds more than {MAX_CERTIFICATES} certificates")
        found.append(certificate_from_der(block.der))
    if not found:
        raise PemError(NO_CERTIFICATE)
    return tuple(found)


def certificates_among(data: bytes) -> tuple[x509.Certificate, ...]:
    """Return the certificates, at least one, of a file that also contains a key, such as `kubelet-client-current.pem`."""
    return certificates(
        b"".join(encode(CERTIFICATE, block.der) for block in blocks(data) if block.label == CERTIFICATE)
    )


def certificates_pem(certs: Iterable[x509.Certificate]) -> bytes:
    """Return the certificates as concatenated PEM blocks, in the given order."""
    return b"".join(encode(CERTIFICATE, cert.public_bytes(Encoding.DER)) for cert in certs)
