"""Pins: SHA-256 hashes of the public keys of trusted CAs (RFC 7469 section 2.4; kubeadm).

Rules kept here (docs/protocol/discovery-and-join.md#discovery-by-token):
* `sha256:<64 hex>`: exactly one colon, prefix and hex in any case, written in lower case; the hash is over the DER
  SubjectPublicKeyInfo, so a CA renewed with the same key keeps its pin.
* One pinned CA is enough. Without pins nothing is trusted. `check_pins` returns the pinned certificates, so that the caller
  verifies TLS under those and not under other certificates in the bundle.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.der import DerError
from mooring.trust.bootstraptoken.token import may_hold_token
from mooring.trust.discovery.errors import PinMismatchError, UnusableClusterInfoError

_HEX = re.compile(r"[0-9a-fA-F]{64}")


class PinError(ConfigError):
    """A text is not a pin."""


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """SHA-256 digest of one public key, printed as `sha256:<hex>`."""

    digest: bytes

    def __str__(self) -> str:
        return f"sha256:{self.digest.hex()}"


def parse_pin(text: str) -> Pin:
    """Return the pin in `text`. Raises PinError."""
    if may_hold_token(text):
        raise PinError("a token stands where a CA hash is expected: the form is sha256:<64 hexadecimal digits>")
    if text.count(":") != 1:
        raise PinError(f'invalid CA hash "{text}": the form is sha256:<64 hexadecimal digits>')
    algorithm, digest = text.split(":")
    if algorithm.lower() != "sha256":
        raise PinError(f'invalid CA hash "{text}": unknown algorithm "{algorithm}", only sha256 is known')
    if _HEX.fullmatch(digest) is None:
        raise PinError(f'invalid CA hash "{text}": a sha256 hash has exactly 64 hexadecimal digits')
    return Pin(bytes.fromhex(digest))


def pin_of(certificate: Certificate) -> Pin:
    """Return the pin of a certificate's public key. Raises PinError for a key of an unknown kind."""
    try:
        key = certificate.public_key()
    except DerError as error:
        raise PinError(f"the public key of the certificate cannot be pinned: {error}") from error
    except (ValueError, UnsupportedAlgorithm):
        raise PinError("the certificate has a public key of an unknown kind, which cannot be pinned") from None
    return Pin(hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest())


def pins_of(ca_pem: bytes) -> tuple[Pin, ...]:
    """Return the pins of all certificates in a PEM bundle, in its order. Raises PemError or PinError."""
    return tuple(pin_of(certificate) for certificate in bundles.certificates_among(ca_pem))


def check_pins(
    ca_pem: bytes, pins: Collection[Pin], step: str = "checking the CA of the cluster"
) -> tuple[Certificate, ...]:
    """Return the certificates of `ca_pem` that are pinned, at least one. Raises PinMismatchError or UnusableClusterInfoError."""
    try:
        found = [(certificate, pin_of(certificate)) for certificate in bundles.certificates_among(ca_pem)]
    except (PkiError, PinError) as error:
        raise UnusableClusterInfoError(step, f"the CA of the cluster cannot be read: {error}") from None
    pinned = tuple(certificate for certificate, pin in found if pin in pins)
    if not pinned:
        raise PinMismatchError(step, ", ".join(str(pin) for _, pin in found))
    return pinned
