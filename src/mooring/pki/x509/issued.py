"""Checks of issued certificates against their template or request.

Rules condition here (SPIRE has a `credvalidator` beside its `credtemplate` for the same reason):
* The checks parse the encoded certificate and share no code with the encoding.
* Everything that grants rights is compared: issuer, signature, key, subject, alternative names, usages, CA bit, lifetime. An
  extension that was not requested is refused.
* `check_issued` is for the issuer; `check_matches_request` for the requester.
"""

from __future__ import annotations

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.clock import rfc3339
from mooring.pki import pem
from mooring.pki.errors import CertificateMismatchError, PemError
from mooring.pki.keys import public_key_der
from mooring.pki.x509 import names, usages
from mooring.pki.x509.profiles import Template
from mooring.pki.x509.requests import CertificateRequest

_KNOWN_EXTENSIONS = frozenset(
    {
        x509.BasicConstraints.oid, x509.KeyUsage.oid, x509.ExtendedKeyUsage.oid, x509.SubjectAlternativeName.oid,
        x509.AuthorityKeyIdentifier.oid, x509.SubjectKeyIdentifier.oid, x509.NameConstraints.oid,
    }
)  # fmt: skip


def check_issued(certificate: x509.Certificate, template: Template, issuer: x509.Certificate, now: datetime) -> None:
    """Raise CertificateMismatchError unless `certificate` is exactly what `template` describes, signed by `issuer`."""
    parsed = _parse_again(certificate)
    extensions = {extension.oid: extension for extension in parsed.extensions}

    # (1) Version, issuer and signature.
    _require(parsed.version is x509.Version.v3, "it is not of version 3")
    try:
        parsed.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        raise CertificateMismatchError("the issued certificate is wrong: it was not signed by the authority") from None

    # (2) The key is that of the template.
    _require(_key_der(parsed) == public_key_der(template.public_key), "it certifies another key")

    # (3) Subject and alternative names.
    _require(parsed.subject == template.subject, "it names another subject")
    _require(
        names.alternative_names(parsed.extensions) == template.alternative_names, "it names other alternative names"
    )

    # (4) Validity: as in the template, within that of the issuer, and current.
    window = (parsed.not_valid_before_utc, parsed.not_valid_after_utc)
    _require(window == (template.not_before, template.not_after), "it has another validity")
    _require(window[1] <= issuer.not_valid_after_utc, "it outlives its issuer")
    _require(window[0] <= now < window[1], "it is not valid now")

    # (5) CA bit and usages.
    constraints = extensions.get(x509.BasicConstraints.oid)
    _require(
        constraints is not None
        and constraints.critical
        and constraints.value == x509.BasicConstraints(template.is_ca, None),
        "it has other basic constraints",
    )
    words = set(template.usages)
    bits = extensions.get(x509.KeyUsage.oid)
    usage_bits = (
        usages.key_usage_bits(bits.value) if bits is not None and isinstance(bits.value, x509.KeyUsage) else frozenset()
    )
    _require(
        usage_bits == {usages.KEY_USAGES[word] for word in words if word in usages.KEY_USAGES},
        "it has another key usage",
    )
    purposes = extensions.get(x509.ExtendedKeyUsage.oid)
    purpose_oids = (
        set(purposes.value) if purposes is not None and isinstance(purposes.value, x509.ExtendedKeyUsage) else set()
    )
    _require(
        purpose_oids == {usages.EXTENDED_USAGES[word] for word in words if word in usages.EXTENDED_USAGES},
        "it has another extended key usage",
    )

    # (6) Name constraints.
    limits = extensions.get(x509.NameConstraints.oid)
    expected = template.permitted.constraints() if template.permitted else None
    _require((limits.value if limits is not None else None) == expected, "it has other name constraints")
    _require(limits is None or limits.critical, "its name constraints are not critical")

    # (7) No other extension.
    known = _KNOWN_EXTENSIONS if template.is_ca else _KNOWN_EXTENSIONS - {x509.SubjectKeyIdentifier.oid}
    _require(extensions.keys() <= known, "it carries an extension that was not requested")


def check_matches_request(certificate: x509.Certificate, request: CertificateRequest, now: datetime) -> None:
    """Raise CertificateMismatchError unless `certificate` answers `request`: same key, user and groups, no alternative name
    beyond the requested ones, not a CA, valid at `now`. The caller verifies the issuer separately."""
    parsed = _parse_again(certificate)
    _require(_key_der(parsed) == public_key_der(request.public_key), "it certifies another key")
    _require(names.common_name(parsed.subject) == request.common_name, "it names another user")
    _require(set(names.organizations(parsed.subject)) == set(request.organizations), "it names other groups")
    granted, requested = names.alternative_names(parsed.extensions), request.alternative_names
    extra = (
        (set(granted.dns) - set(requested.dns))
        | (set(granted.ips) - set(requested.ips))
        | (set(granted.emails) - set(requested.emails))
        | (set(granted.uris) - set(requested.uris))
    )
    _require(not extra, "it carries an alternative name that was not requested")
    constraints = {extension.oid: extension.value for extension in parsed.extensions}.get(x509.BasicConstraints.oid)
    _require(not (isinstance(constraints, x509.BasicConstraints) and constraints.ca), "it is a CA")
    begin, end = parsed.not_valid_before_utc, parsed.not_valid_after_utc
    _require(
        begin <= now < end,
        f"it is valid from {rfc3339(begin)} to {rfc3339(end)}, but this machine's clock says {rfc3339(now)}",
    )


def _parse_again(certificate: x509.Certificate) -> x509.Certificate:
    try:
        return pem.certificate_from_der(certificate.public_bytes(Encoding.DER))
    except PemError:
        raise CertificateMismatchError("the issued certificate is wrong: it cannot be parsed") from None


def _key_der(certificate: x509.Certificate) -> bytes:
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except pem.UNPARSABLE:
        raise CertificateMismatchError("the issued certificate is wrong: its public key cannot be parsed") from None


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise CertificateMismatchError(f"the issued certificate is wrong: {problem}")
