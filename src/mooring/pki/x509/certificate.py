"""A certificate, read as Go's `crypto/x509` reads it, which is how kube-apiserver and kubectl do (`parseCertificate`).

Rules kept here (docs/adr/0085-certificates-as-go-reads-them.md):
* The outer fields, the names and the extensions that decide something are read once, when the certificate is. Later reads cannot
  fail, but for that of the key: a bundle may have CAs with keys of any kind.
* Everything else stays bytes: a policy with a notice in Latin-1 is as good as one in ASCII.
* An error names the part that cannot be read.
* Two certificates are the same when their bytes are. A CA has issued a certificate when the name in it has the bytes of the CA's
  own, and the CA's key signed it.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ObjectIdentifier

from mooring.pki.errors import CertificateTooLargeError, CertificateUnreadableError
from mooring.pki.keys import UNREADABLE
from mooring.pki.x509 import der
from mooring.pki.x509.der import DerError, ElementBudget, TooManyElementsError
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.extensions import Extensions
from mooring.pki.x509.signatures import Algorithm, is_signed, load_public_key, signature_algorithm, signature_of

MAX_ELEMENTS = 4000
"""Elements that are read of one certificate or request, or of all certificates that a peer presents. A usual certificate has 60,
one with a thousand alternative names 1 060, one with a thousand groups 3 060. Octets do not limit the cost: 64 KiB hold 30 000
elements, and each takes some microseconds of the event loop, for anyone who opens a connection."""
NO_EXTENSIONS = Extensions()


class Certificate:
    """One certificate. Immutable; equal to another of the same bytes."""

    def __init__(self, encoding: bytes, budget: ElementBudget | None = None) -> None:
        """Read DER. Raises CertificateUnreadableError, whose text names the part that cannot be read.

        `budget`: the elements that certificates may have together. None: those that one may have.
        """
        self.der = encoding
        budget = budget or ElementBudget(MAX_ELEMENTS)
        part: str | None = None
        try:
            whole = der.only(encoding, der.SEQUENCE, budget).fields()
            signed = whole.next(der.SEQUENCE)
            outer = whole.next(der.SEQUENCE)
            part = "signature"
            self.signature = signature_of(whole.next(der.BIT_STRING))
            self.signed_bytes = signed.encoding
            fields = signed.fields()
            part = "version"
            self.version = _version(fields.optional(der.CONSTRUCTED))
            part = "serial number"
            self.serial_number = der.integer(fields.next(der.INTEGER))
            if self.serial_number < 0:
                raise DerError("it is negative")
            part = "signature algorithm"
            inner = fields.next(der.SEQUENCE)
            if inner.encoding != outer.encoding:
                raise DerError("it stands there twice, and differently")
            self.signature_algorithm: Algorithm | None = signature_algorithm(inner)
            part = "issuer"
            self.issuer = DistinguishedName.read(fields.next(der.SEQUENCE))
            part = "validity"
            validity = fields.next(der.SEQUENCE).fields()
            self.not_valid_before_utc, self.not_valid_after_utc = der.time(validity.any()), der.time(validity.any())
            part = "subject"
            self.subject = DistinguishedName.read(fields.next(der.SEQUENCE))
            part = "public key"
            self.public_key_info = fields.next(der.SEQUENCE).encoding
            part = "unique identifiers"
            if self.version > 1:
                fields.optional(der.PLAIN | 1)
                fields.optional(der.PLAIN | 2)
            part = "extensions"
            found = fields.optional(der.CONSTRUCTED | 3) if self.version == 3 else None
        except DerError as error:
            whose = "the certificate" if part is None else f"the {part} of the certificate"
            raise _unreadable(error, f"{whose} cannot be read: {error}") from error
        try:
            self.extensions = NO_EXTENSIONS if found is None else Extensions.read(found)
        except DerError as error:
            raise _unreadable(error, str(error)) from error

    def public_key(self) -> PublicKeyTypes:
        """Return the key. Raises one of keys.UNREADABLE for a key that cannot be read or is of an unknown kind. A
        DerError among them says what Go refuses."""
        return self._public_key

    @cached_property
    def _public_key(self) -> PublicKeyTypes:
        return load_public_key(self.public_key_info)

    def is_issued_by(self, issuer: Certificate) -> bool:
        """Return whether the certificate names `issuer`, byte for byte, and has its strong signature."""
        return (
            self.issuer == issuer.subject
            and self.has_strong_signature
            and issuer.has_signed(self.signed_bytes, self.signature, self.signature_algorithm)
        )

    def has_signed(self, data: bytes, signature: bytes, algorithm: Algorithm | None) -> bool:
        """Return whether the key signed `data`. False for a key that cannot be read."""
        try:
            return is_signed(data, signature, algorithm, self.public_key())
        except UNREADABLE:
            return False

    @property
    def has_strong_signature(self) -> bool:
        """Return whether the signature is by an algorithm that is known, over a hash of the SHA-2 family."""
        return self.signature_algorithm is not None and self.signature_algorithm.is_strong

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hex."""
        return hashlib.sha256(self.der).hexdigest()

    def has_extension(self, oid: ObjectIdentifier) -> bool:
        """Return whether an extension stands there, readable or not."""
        return oid in self.extensions.by_oid

    def __eq__(self, other: object) -> bool:
        return self.der == other.der if isinstance(other, Certificate) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.der)

    def __repr__(self) -> str:
        return f"Certificate({self.subject.rfc4514_string()!r}, serial_number={self.serial_number:x})"


def _unreadable(error: DerError, text: str) -> CertificateUnreadableError:
    return (
        CertificateTooLargeError(text) if isinstance(error, TooManyElementsError) else CertificateUnreadableError(text)
    )


def _version(tagged: der.Element | None) -> int:
    number = 0 if tagged is None else der.integer(der.only(tagged.content, der.INTEGER))
    if not 0 <= number <= 2:
        raise DerError("it is none of 1, 2 and 3")
    return number + 1
