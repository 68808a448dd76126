"""The CRL that an authority signs (RFC 5280 5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from mooring.pki.errors import IssueError
from mooring.pki.keys import generate_key
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.crl import LIFETIME, SignedList, revocation_list, revoked_certificate
from tests.support.testca import ThrowawayCA, by_library

NOW = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
CA = self_signed_ca(generate_key(), "kubernetes", NOW, 1)
REVOKED = [
    revoked_certificate(0x1F, NOW - timedelta(days=1), "keyCompromise"),
    revoked_certificate(2**150, NOW - timedelta(days=1), "unspecified"),
]


def test_a_list_is_version_2_with_the_extensions_that_every_ca_sends() -> None:
    signed = x509.load_der_x509_crl(revocation_list(CA, REVOKED, NOW))
    assert CA.public_key == CA.certificate.public_key()
    assert signed.is_signature_valid(CA.certificate.public_key())  # type: ignore[arg-type]  # an ECDSA key
    assert (signed.issuer.public_bytes(), len(signed)) == (CA.certificate.subject.der, 2)
    assert (signed.last_update_utc, signed.next_update_utc) == (
        NOW.replace(microsecond=0),
        NOW.replace(microsecond=0) + LIFETIME,
    )
    identifier = signed.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    own = by_library(CA.certificate).extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert identifier == own


def test_an_entry_has_a_reason_unless_it_is_unspecified() -> None:
    signed = x509.load_der_x509_crl(revocation_list(CA, REVOKED, NOW))
    compromised = signed.get_revoked_certificate_by_serial_number(0x1F)
    plain = signed.get_revoked_certificate_by_serial_number(2**150)
    assert compromised is not None
    assert plain is not None
    reason = compromised.extensions.get_extension_for_class(x509.CRLReason).value.reason
    assert (reason, len(plain.extensions)) == (x509.ReasonFlags.key_compromise, 0)


def test_the_number_grows_with_the_time() -> None:
    numbers = [
        x509.load_der_x509_crl(revocation_list(CA, [], moment))
        .extensions.get_extension_for_class(x509.CRLNumber)
        .value.crl_number
        for moment in (NOW, NOW + timedelta(microseconds=1), NOW + timedelta(days=1))
    ]
    assert numbers == sorted(set(numbers))


def test_both_encodings_hold_the_same_list() -> None:
    signed = SignedList.of(revocation_list(CA, REVOKED, NOW))
    assert x509.load_pem_x509_crl(signed.pem) == x509.load_der_x509_crl(signed.der)


def ca_with(*extensions: tuple[x509.ExtensionType, bool]) -> Authority:
    pair = ThrowawayCA(now=NOW).custom("ca", extensions=[(x509.BasicConstraints(True, None), True), *extensions])
    return Authority(pair.certificate, pair.key)


def test_a_ca_that_may_not_sign_lists_signs_none() -> None:
    bits = profiles.key_usage((profiles.CERT_SIGN,))
    assert bits is not None
    with pytest.raises(IssueError, match="cRLSign"):
        revocation_list(ca_with((bits, True)), [], NOW)


def test_a_ca_without_key_usage_may_sign_everything() -> None:
    assert len(x509.load_der_x509_crl(revocation_list(ca_with(), [], NOW))) == 0
