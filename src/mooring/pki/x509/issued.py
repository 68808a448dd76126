"""Checks of issued certificates against their template or request.

Rules condition here (SPIRE has a `credvalidator` beside its `credtemplate` for the same reason):
* The checks read the encoded certificate and share no code with the encoding.
* Everything that grants rights is compared: issuer, signature, key, subject, alternative names, usages, CA bit, lifetime. An
  extension that was not requested is refused.
* `check_issued` is for the issuer; `check_matches_request` for the requester.
"""

from __future__ import annotations

from datetime import datetime

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtensionOID, ObjectIdentifier

from mooring.clock import rfc3339
from mooring.pki.errors import CertificateMismatchError
from mooring.pki.keys import UNREADABLE, public_key_der
from mooring.pki.x509 import names, usages
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.encoding.extensions import BasicConstraints
from mooring.pki.x509.profiles import Template
from mooring.pki.x509.requests import CertificateRequest

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
        == {usages.KEY_USAGES[word] for word in words if word in usages.KEY_USAGES},
        "it has another key usage",
    )
    _require(
        set(extensions.extended_key_usage or ())
        == {usages.EXTENDED_USAGES[word] for word in words if word in usages.EXTENDED_USAGES},
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
