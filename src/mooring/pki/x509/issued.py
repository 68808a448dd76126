"""The twin of the authority: reads a certificate back and refuses what its template or request does not say.

Rules kept here (SPIRE keeps a `credvalidator` beside its `credtemplate` for the same reason):
* The reading starts from the encoded certificate and shares no code with the building of it.
* Everything that gives power is compared: issuer, signature, key, subject, alternative names, usages, CA bit, life time. An
  extension nobody asked for is refused.
* `check_answers` is the same for who asked: is this certificate for my key and my name, and valid by my clock?
"""

from __future__ import annotations

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.clock import rfc3339
from mooring.pki import pem
from mooring.pki.errors import IssuedWrongError, PemError
from mooring.pki.keys import public_key_der
from mooring.pki.x509 import names, usages
from mooring.pki.x509.profiles import Template
from mooring.pki.x509.requests import CertificateRequest

_KNOWN_EXTENSIONS = frozenset(
    {
        x509.BasicConstraints.oid, x509.KeyUsage.oid, x509.ExtendedKeyUsage.oid, x509.SubjectAlternativeName.oid,
        x509.AuthorityKeyIdentifier.oid, x509.SubjectKeyIdentifier.oid,
    }
)  # fmt: skip


def check_issued(certificate: x509.Certificate, template: Template, issuer: x509.Certificate, now: datetime) -> None:
    """Returns nothing when `certificate` is exactly what `template` says, signed by `issuer`. Raises IssuedWrongError."""
    found = _reread(certificate)
    extensions = {extension.oid: extension for extension in found.extensions}

    # (1) Version, issuer and signature.
    _require(found.version is x509.Version.v3, "it is not of version 3")
    try:
        found.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        raise IssuedWrongError("the issued certificate is wrong: it was not signed by the authority") from None

    # (2) The key is the one that was asked for, and nobody else's.
    _require(_key_of(found) == public_key_der(template.public_key), "it certifies another key")

    # (3) Who it names.
    _require(found.subject == template.subject, "it names another subject")
    _require(
        names.alternative_names(found.extensions) == template.alternative_names, "it names other alternative names"
    )

    # (4) How long it lives: as the template says, not beyond its issuer, not born expired.
    window = (found.not_valid_before_utc, found.not_valid_after_utc)
    _require(window == (template.not_before, template.not_after), "it lives for another time")
    _require(window[1] <= issuer.not_valid_after_utc, "it outlives its issuer")
    _require(window[0] <= now < window[1], "it is not valid now")

    # (5) What it may do.
    constraints = extensions.get(x509.BasicConstraints.oid)
    _require(
        constraints is not None
        and constraints.critical
        and constraints.value == x509.BasicConstraints(template.is_ca, None),
        "it has other basic constraints",
    )
    words = set(template.usages)
    bits = extensions.get(x509.KeyUsage.oid)
    stated = (
        usages.key_usage_bits(bits.value) if bits is not None and isinstance(bits.value, x509.KeyUsage) else frozenset()
    )
    _require(
        stated == {usages.KEY_USAGES[word] for word in words if word in usages.KEY_USAGES}, "it has another key usage"
    )
    purposes = extensions.get(x509.ExtendedKeyUsage.oid)
    listed = (
        set(purposes.value) if purposes is not None and isinstance(purposes.value, x509.ExtendedKeyUsage) else set()
    )
    _require(
        listed == {usages.EXTENDED_USAGES[word] for word in words if word in usages.EXTENDED_USAGES},
        "it has another extended key usage",
    )

    # (6) Nothing else.
    known = _KNOWN_EXTENSIONS if template.is_ca else _KNOWN_EXTENSIONS - {x509.SubjectKeyIdentifier.oid}
    _require(extensions.keys() <= known, "it carries an extension nobody asked for")


def check_answers(certificate: x509.Certificate, request: CertificateRequest, now: datetime) -> None:
    """Returns nothing when `certificate` answers `request`: same key, user and groups, no alternative name beyond those
    asked, not a CA, valid at `now`. Raises IssuedWrongError. Who issued it is for the trust in the cluster to say."""
    found = _reread(certificate)
    _require(_key_of(found) == public_key_der(request.public_key), "it certifies another key")
    _require(names.common_name(found.subject) == request.common_name, "it names another user")
    _require(set(names.organizations(found.subject)) == set(request.organizations), "it names other groups")
    given, asked = names.alternative_names(found.extensions), request.alternative_names
    extra = (
        (set(given.dns) - set(asked.dns))
        | (set(given.ips) - set(asked.ips))
        | (set(given.emails) - set(asked.emails))
        | (set(given.uris) - set(asked.uris))
    )
    _require(not extra, "it carries an alternative name nobody asked for")
    constraints = {extension.oid: extension.value for extension in found.extensions}.get(x509.BasicConstraints.oid)
    _require(not (isinstance(constraints, x509.BasicConstraints) and constraints.ca), "it is a CA")
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    _require(
        begin <= now < end,
        f"it is valid from {rfc3339(begin)} to {rfc3339(end)}, but this machine's clock says {rfc3339(now)}",
    )


def _reread(certificate: x509.Certificate) -> x509.Certificate:
    try:
        return pem.certificate_from_der(certificate.public_bytes(Encoding.DER))
    except PemError:
        raise IssuedWrongError("the issued certificate is wrong: it cannot be parsed") from None


def _key_of(certificate: x509.Certificate) -> bytes:
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except pem.UNPARSABLE:
        raise IssuedWrongError("the issued certificate is wrong: its public key cannot be parsed") from None


def _require(kept: bool, broken: str) -> None:
    if not kept:
        raise IssuedWrongError(f"the issued certificate is wrong: {broken}")
