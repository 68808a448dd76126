"""Certificate authority: signs templates and checks every certificate before it is returned.

Rules kept here (docs/protocol/certificate-signing-requests.md#signing):
* An authority is one CA certificate that may sign certificates, and its private key.
* Issued certificates are version 3, carry critical BasicConstraints, critical KeyUsage, the authority's key identifier, no
  subject key identifier unless they are CAs, and a positive serial from 128 bits of the caller's entropy.
* No certificate is valid longer than its issuer: its end is moved forward. An expired authority signs nothing.
* Every signed certificate is parsed again and checked by `issued.check_issued`, which shares no code with the encoding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.clock import rfc3339
from mooring.pki.errors import CertificateUnreadableError, IssueError
from mooring.pki.keys import (
    UNREADABLE,
    DeviceKey,
    PrivateKey,
    PublicKey,
    accepted_private_key,
    public_key_fingerprint,
    signature_hash,
)
from mooring.pki.x509 import bundles, profiles, usages
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.encoding.distinguishedname import NO_NAME, DistinguishedName
from mooring.pki.x509.encoding.exactnames import signed_with
from mooring.pki.x509.issued import check_issued
from mooring.pki.x509.profiles import Template

SERIAL_BYTES = 16  # RFC 5280 allows 20; 128 random bits never repeat in practice


def serial_number(entropy: Callable[[int], bytes]) -> int:
    """Return a positive serial number of 128 bits."""
    return int.from_bytes(entropy(SERIAL_BYTES), "big") or 1


def request_serial_number(uid: str) -> int:
    """Return the serial number of the certificate for a request with this uid, which an API server chose at random (122 bits).

    It is known before the signature, so that records of the certificate can be written first, and signing again repeats it.
    """
    return int.from_bytes(hashlib.sha256(f"serial number for request {uid}".encode()).digest()[:SERIAL_BYTES], "big")


class Authority:
    """Signs templates with one CA certificate and its key. Immutable."""

    def __init__(self, certificate: Certificate, key: PrivateKey) -> None:
        """`certificate` is a CA that may sign certificates and `key` is its key; raises IssueError otherwise."""
        accepted_private_key(key)
        try:
            certified_key = certificate.public_key()
        except UNREADABLE as error:
            raise IssueError("the CA certificate's public key cannot be parsed") from error
        if certified_key != key.public_key():
            raise IssueError("the CA's private key does not belong to its certificate")
        _require_signing_ca(certificate)
        self.certificate = certificate
        self.certificate_pem = bundles.certificates_pem([certificate])
        self.not_after = certificate.not_valid_after_utc
        self.key_fingerprint = public_key_fingerprint(key)
        self._key = key
        self._extra_extensions: tuple[x509.ExtensionType, ...] = (_authority_key_identifier(certificate, key),)

    @property
    def in_device(self) -> bool:
        """True when a device holds the key. `sign` then takes milliseconds, and may raise DeviceError."""
        return isinstance(self._key, DeviceKey)

    @property
    def public_key(self) -> PublicKey:
        """The public key of the CA."""
        return self._key.public_key()

    def sign(self, template: Template, now: datetime, serial: int) -> Certificate:
        """Return the checked certificate of `template`. Raises IssueError when the CA expired or X.509 cannot encode the
        template."""
        if now >= self.not_after:
            raise IssueError(
                f"refusing to sign a certificate that is already invalid: the CA expired at {rfc3339(self.not_after)}"
            )
        template = template.ending_by(self.not_after)
        certificate = _sign_template(template, self.certificate.subject, serial, self._extra_extensions, self._key)
        check_issued(certificate, template, self.certificate, now)
        return certificate

    def sign_revocation_list(self, builder: x509.CertificateRevocationListBuilder) -> bytes:
        """Return the DER of the list of `builder`, which lacks only the issuer. `revocationlist` makes it."""
        for extension in self._extra_extensions:
            builder = builder.add_extension(extension, critical=False)

        def sign(issuer: x509.Name, _: x509.Name) -> bytes:
            signed = builder.issuer_name(issuer).sign(self._key, signature_hash(self._key))
            return signed.public_bytes(Encoding.DER)

        return signed_with(sign, self._key, self.certificate.subject, NO_NAME)

    def __repr__(self) -> str:
        return f"Authority({self.certificate.subject.rfc4514_string()!r})"


def self_signed_ca(
    key: PrivateKey, common_name: str, now: datetime, serial: int, lifetime: timedelta = profiles.CA_LIFETIME
) -> Authority:
    """Return a new root CA for `key`, checked like every issued certificate."""
    template = profiles.certificate_authority(key.public_key(), now, common_name, lifetime)
    certificate = _sign_template(template, template.subject, serial, (), key)
    check_issued(certificate, template, certificate, now)
    return Authority(certificate, key)


def _sign_template(
    template: Template,
    issuer: DistinguishedName,
    serial: int,
    extra_extensions: tuple[x509.ExtensionType, ...],
    key: PrivateKey,
) -> Certificate:
    try:
        builder = _builder(template, serial, extra_extensions)

        def sign(issuer: x509.Name, subject: x509.Name) -> bytes:
            signed = builder.issuer_name(issuer).subject_name(subject).sign(key, signature_hash(key))
            return signed.public_bytes(Encoding.DER)

        return Certificate(signed_with(sign, key, issuer, template.subject))
    except (ValueError, TypeError, UnsupportedAlgorithm, CertificateUnreadableError) as error:
        raise IssueError(f"the certificate cannot be encoded: {error}") from error


def _builder(
    template: Template, serial: int, extra_extensions: tuple[x509.ExtensionType, ...]
) -> x509.CertificateBuilder:
    """Return the builder of a certificate, which lacks only the names. Raises what the library raises."""
    alternatives = template.alternative_names
    builder = (
        x509.CertificateBuilder()
        .public_key(template.public_key)
        .serial_number(serial)
        .not_valid_before(template.not_before)
        .not_valid_after(template.not_after)
        .add_extension(x509.BasicConstraints(ca=template.is_ca, path_length=None), critical=True)
    )
    if bits := usages.key_usage(template.usages):
        builder = builder.add_extension(bits, critical=True)
    if purposes := usages.extended_key_usage(template.usages):
        builder = builder.add_extension(purposes, critical=False)
    if alternatives:
        # RFC 5280 4.2.1.6: critical when the subject is empty
        builder = builder.add_extension(alternatives.extension(), critical=not template.subject.rdns)
    if template.is_ca:
        identifier = x509.SubjectKeyIdentifier.from_public_key(template.public_key)
        if given := template.subject_key_identifier:
            identifier = x509.SubjectKeyIdentifier(given)
        builder = builder.add_extension(identifier, critical=False)
    if template.permitted:
        builder = builder.add_extension(template.permitted.constraints(), critical=True)
    for extension in extra_extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder


def _require_signing_ca(certificate: Certificate) -> None:
    constraints = certificate.extensions.basic_constraints
    if constraints is None:
        raise IssueError("the CA certificate has no basic constraints: it is not a CA")
    if not constraints.ca:
        raise IssueError("the CA certificate is not a CA according to its basic constraints")
    if not usages.may_sign_certificates(certificate.extensions.key_usage):
        raise IssueError("the CA certificate may not sign certificates according to its key usage")


def _authority_key_identifier(certificate: Certificate, key: PrivateKey) -> x509.AuthorityKeyIdentifier:
    identifier = certificate.extensions.subject_key_identifier
    if identifier is None:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return x509.AuthorityKeyIdentifier(identifier, None, None)
