"""Certificate authority: signs templates, and checks every certificate before it is returned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtensionOID, ObjectIdentifier

from mooring.clock import rfc3339
from mooring.pki.errors import CertificateMismatchError, CertificateUnreadableError, IssueError
from mooring.pki.keys import (
    UNREADABLE,
    DeviceKey,
    PrivateKey,
    PublicKey,
    accepted_private_key,
    public_key_der,
    public_key_fingerprint,
    signature_hash,
)
from mooring.pki.x509 import bundles, names, profiles
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.distinguishedname import NO_NAME, DistinguishedName, signed_with
from mooring.pki.x509.extensions import BasicConstraints
from mooring.pki.x509.profiles import Template
from mooring.pki.x509.requests import CertificateRequest

# Checks of issued certificates against their template or request.
#
# Rules kept here (SPIRE has a `credvalidator` beside its `credtemplate` for the same reason):
# * The checks read the encoded certificate and share no code with the encoding.
# * Everything that grants rights is compared: issuer, signature, key, subject, alternative names, usages, CA bit, lifetime. An
#   extension that was not requested is refused.
# * `check_issued` is for the issuer; `check_matches_request` for the requester.

_BASIC_CONSTRAINTS = ExtensionOID.BASIC_CONSTRAINTS
_KNOWN_EXTENSIONS = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE, ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME, ExtensionOID.AUTHORITY_KEY_IDENTIFIER, ExtensionOID.SUBJECT_KEY_IDENTIFIER,
        ExtensionOID.NAME_CONSTRAINTS,
    }
)  # fmt: skip


def check_issued(certificate: Certificate, template: Template, issuer: Certificate, now: datetime) -> None:
    """Raise CertificateMismatchError unless `certificate` is exactly what `template` describes, signed by `issuer`."""
    extensions = certificate.extensions

    # (1) Version, issuer and signature.
    _require(certificate.version == 3, "it is not of version 3")
    _require(certificate.is_issued_by(issuer), "it was not signed by the authority")

    # (2) The key is that of the template.
    _require(_key_der(certificate) == public_key_der(template.public_key), "it certifies another key")

    # (3) Subject and alternative names.
    _require(certificate.subject == template.subject, "it names another subject")
    _require(names.alternative_names(extensions) == template.alternative_names, "it names other alternative names")

    # (4) Validity: as in the template, within that of the issuer, and current.
    window = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    _require(window == (template.not_before, template.not_after), "it has another validity")
    _require(window[1] <= issuer.not_valid_after_utc, "it outlives its issuer")
    _require(window[0] <= now < window[1], "it is not valid now")

    # (5) CA bit and usages.
    _require(
        extensions.basic_constraints == BasicConstraints(template.is_ca)
        and _is_critical(certificate, _BASIC_CONSTRAINTS),
        "it has other basic constraints",
    )
    words = set(template.usages)
    _require(
        (extensions.key_usage or frozenset())
        == {profiles.KEY_USAGES[word] for word in words if word in profiles.KEY_USAGES},
        "it has another key usage",
    )
    _require(
        set(extensions.extended_key_usage or ())
        == {profiles.EXTENDED_USAGES[word] for word in words if word in profiles.EXTENDED_USAGES},
        "it has another extended key usage",
    )

    # (6) Name constraints.
    limits = extensions.by_oid.get(ExtensionOID.NAME_CONSTRAINTS)
    expected = template.permitted.constraints().public_bytes() if template.permitted else None
    _require((limits.value if limits is not None else None) == expected, "it has other name constraints")
    _require(limits is None or limits.critical, "its name constraints are not critical")

    # (7) No other extension.
    known = _KNOWN_EXTENSIONS if template.is_ca else _KNOWN_EXTENSIONS - {ExtensionOID.SUBJECT_KEY_IDENTIFIER}
    _require(extensions.by_oid.keys() <= known, "it carries an extension that was not requested")


def _is_critical(certificate: Certificate, oid: ObjectIdentifier) -> bool:
    return certificate.extensions.by_oid[oid].critical


def check_matches_request(certificate: Certificate, request: CertificateRequest, now: datetime) -> None:
    """Raise CertificateMismatchError unless `certificate` answers `request`: same key, user and groups, no alternative name
    beyond the requested ones, not a CA, valid at `now`. The caller verifies the issuer separately."""
    _require(_key_der(certificate) == public_key_der(request.public_key), "it certifies another key")
    _require(names.common_name(certificate.subject) == request.common_name, "it names another user")
    _require(set(names.organizations(certificate.subject)) == set(request.organizations), "it names other groups")
    granted, requested = names.alternative_names(certificate.extensions), request.alternative_names
    extra = (
        (set(granted.dns) - set(requested.dns))
        | (set(granted.ips) - set(requested.ips))
        | (set(granted.emails) - set(requested.emails))
        | (set(granted.uris) - set(requested.uris))
    )
    _require(not extra, "it carries an alternative name that was not requested")
    constraints = certificate.extensions.basic_constraints
    _require(constraints is None or not constraints.ca, "it is a CA")
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    _require(
        begin <= now < end,
        f"it is valid from {rfc3339(begin)} to {rfc3339(end)}, but this machine's clock says {rfc3339(now)}",
    )


def _key_der(certificate: Certificate) -> bytes:
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except UNREADABLE:
        raise CertificateMismatchError("the issued certificate is wrong: its public key cannot be read") from None


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise CertificateMismatchError(f"the issued certificate is wrong: {problem}")


# Certificate authority: signs templates and checks every certificate before it is returned.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md#signing):
# * An authority is one CA certificate that may sign certificates, and its private key.
# * Issued certificates are version 3, carry critical BasicConstraints, critical KeyUsage, the authority's key identifier, no
#   subject key identifier unless they are CAs, and a positive serial from 128 bits of the caller's entropy.
# * No certificate is valid longer than its issuer: its end is moved forward. An expired authority signs nothing.
# * Every signed certificate is parsed again and checked by `issued.check_issued`, which shares no code with the encoding.

SERIAL_BYTES = 16  # RFC 5280 allows 20; 128 random bits never repeat in practice


def serial_number(entropy: Callable[[int], bytes]) -> int:
    """Return a positive serial number of 128 bits."""
    return int.from_bytes(entropy(SERIAL_BYTES), "big") or 1


def request_serial_number(uid: str) -> int:
    """Return the serial number of the certificate for a request with this uid, which an API server chose at random (122 bits).

    It is known before the signature.
    """
    # Records of the certificate can be written first, and a signature that is made again after a crash repeats the number.
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
    if bits := profiles.key_usage(template.usages):
        builder = builder.add_extension(bits, critical=True)
    if purposes := profiles.extended_key_usage(template.usages):
        builder = builder.add_extension(purposes, critical=False)
    if alternatives:
        # RFC 5280 4.2.1.6: critical when the subject is empty.
        builder = builder.add_extension(alternatives.extension(), critical=not template.subject.rdns)
    if template.is_ca:
        identifier = x509.SubjectKeyIdentifier.from_public_key(template.public_key)
        if key_identifier := template.subject_key_identifier:
            identifier = x509.SubjectKeyIdentifier(key_identifier)
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
    if not profiles.may_sign_certificates(certificate.extensions.key_usage):
        raise IssueError("the CA certificate may not sign certificates according to its key usage")


def _authority_key_identifier(certificate: Certificate, key: PrivateKey) -> x509.AuthorityKeyIdentifier:
    identifier = certificate.extensions.subject_key_identifier
    if identifier is None:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return x509.AuthorityKeyIdentifier(identifier, None, None)
