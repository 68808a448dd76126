"""Checks of issued certificates: one row for each difference from the template or request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.pki import keys
from mooring.pki.errors import CertificateMismatchError
from mooring.pki.x509 import names, profiles
from mooring.pki.x509.authority import check_issued, check_matches_request
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import AlternativeNames
from mooring.pki.x509.profiles import Template
from mooring.pki.x509.requests import CertificateRequest, parse_request
from tests.support.testca import Pair, ThrowawayCA, request, with_broken_key

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CA = ThrowawayCA(now=NOW)
KEY = keys.generate_key()
OTHER_KEY = keys.generate_key().public_key()
NAMES = AlternativeNames(("a",), (ip_address("::1"),))
TEMPLATE = replace(profiles.client(KEY.public_key(), NOW, "jane", ["devs"]), alternative_names=NAMES)
CERTIFICATE = CA.authority.sign(TEMPLATE, NOW, 7)


def test_what_the_authority_issues_passes() -> None:
    check_issued(CERTIFICATE, TEMPLATE, CA.certificate, NOW)


@pytest.mark.parametrize(
    ("template", "broken"),
    [
        pytest.param(replace(TEMPLATE, public_key=OTHER_KEY), "it certifies another key", id="another key"),
        pytest.param(
            replace(TEMPLATE, subject=names.subject("root", ["devs"])), "it names another subject", id="another user"
        ),
        pytest.param(replace(TEMPLATE, subject=names.subject("jane")), "it names another subject", id="a group more"),
        pytest.param(
            replace(TEMPLATE, alternative_names=AlternativeNames(("a",))),
            "it names other alternative names",
            id="an address more",
        ),
        pytest.param(
            replace(TEMPLATE, alternative_names=names.NO_NAMES),
            "it names other alternative names",
            id="names nobody asked for",
        ),
        pytest.param(
            replace(TEMPLATE, not_after=TEMPLATE.not_after - timedelta(seconds=1)),
            "it has another validity",
            id="a second too long",
        ),
        pytest.param(replace(TEMPLATE, not_before=NOW), "it has another validity", id="too early"),
        pytest.param(replace(TEMPLATE, is_ca=True), "it has other basic constraints", id="not a CA"),
        pytest.param(replace(TEMPLATE, usages=("client auth",)), "it has another key usage", id="a bit more"),
        pytest.param(
            replace(TEMPLATE, usages=("digital signature",)), "it has another extended key usage", id="a purpose more"
        ),
        pytest.param(
            replace(TEMPLATE, usages=("digital signature", "server auth")),
            "it has another extended key usage",
            id="another purpose",
        ),
    ],
)
def test_a_certificate_that_is_not_its_template_is_refused(template: Template, broken: str) -> None:
    with pytest.raises(CertificateMismatchError) as raised:
        check_issued(CERTIFICATE, template, CA.certificate, NOW)
    assert str(raised.value) == f"the issued certificate is wrong: {broken}"


@pytest.mark.parametrize(
    ("now", "issuer", "broken"),
    [
        pytest.param(
            NOW,
            ThrowawayCA("another", now=NOW).certificate,
            "it was not signed by the authority",
            id="another authority",
        ),
        pytest.param(
            NOW,
            ThrowawayCA(now=NOW).certificate,
            "it was not signed by the authority",
            id="an authority of the same name",
        ),
        pytest.param(TEMPLATE.not_after, CA.certificate, "it is not valid now", id="expired"),
        pytest.param(TEMPLATE.not_before - timedelta(seconds=1), CA.certificate, "it is not valid now", id="not begun"),
    ],
)
def test_issuer_and_time_matter(now: datetime, issuer: Certificate, broken: str) -> None:
    with pytest.raises(CertificateMismatchError, match=broken):
        check_issued(CERTIFICATE, TEMPLATE, issuer, now)


def raw(*extensions: tuple[x509.ExtensionType, bool], not_after: datetime | None = None) -> Certificate:
    return CA.custom(
        TEMPLATE.subject,
        key=KEY,
        extensions=extensions,
        not_before=TEMPLATE.not_before,
        not_after=not_after or TEMPLATE.not_after,
    ).certificate


BARE = replace(TEMPLATE, alternative_names=names.NO_NAMES, usages=())
LEAF = (x509.BasicConstraints(False, None), True)


@pytest.mark.parametrize(
    ("certificate", "broken"),
    [
        pytest.param(raw(), "it has other basic constraints", id="no basic constraints"),
        pytest.param(
            raw((x509.BasicConstraints(False, None), False)),
            "it has other basic constraints",
            id="constraints that may be ignored",
        ),
        pytest.param(raw((x509.BasicConstraints(True, None), True)), "it has other basic constraints", id="a CA"),
        pytest.param(
            raw(LEAF, (x509.SubjectKeyIdentifier(b"x"), False)),
            "it carries an extension that was not requested",
            id="an identifier only CAs have",
        ),
        pytest.param(
            raw(LEAF, (x509.OCSPNoCheck(), False)),
            "it carries an extension that was not requested",
            id="an extension more",
        ),
        pytest.param(
            raw(LEAF, (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False)),
            "it has another extended key usage",
            id="a purpose",
        ),
    ],
)
def test_certificates_no_profile_yields_are_refused(certificate: Certificate, broken: str) -> None:
    with pytest.raises(CertificateMismatchError, match=broken):
        check_issued(certificate, BARE, CA.certificate, NOW)


def test_the_bare_certificate_itself_passes() -> None:
    check_issued(raw(LEAF), BARE, CA.certificate, NOW)


def test_a_certificate_that_outlives_its_issuer_is_refused() -> None:
    end = CA.authority.not_after + timedelta(seconds=1)
    with pytest.raises(CertificateMismatchError, match="it outlives its issuer"):
        check_issued(raw(LEAF, not_after=end), replace(BARE, not_after=end), CA.certificate, NOW)


def test_a_version_1_certificate_is_refused(v1_certificate: Callable[[], Certificate]) -> None:
    with pytest.raises(CertificateMismatchError, match="it is not of version 3"):
        check_issued(v1_certificate(), BARE, CA.certificate, NOW)


def test_a_certificate_whose_key_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(CertificateMismatchError, match="its public key cannot be read"):
        check_matches_request(Certificate(with_broken_key(answer().certificate)), REQUEST, NOW)


REQUEST = parse_request(request("jane", ["devs", "ops"], ["a", "::1"], KEY)[0])


def answer(user: str = "jane", groups: tuple[str, ...] = ("ops", "devs"), listed: AlternativeNames = NAMES) -> Pair:
    return CA.sign(replace(profiles.client(KEY.public_key(), NOW, user, groups), alternative_names=listed), KEY)


@pytest.mark.parametrize(
    "certificate",
    [
        pytest.param(answer().certificate, id="groups in another order"),
        pytest.param(answer(listed=AlternativeNames(("a",))).certificate, id="fewer names than asked"),
        pytest.param(answer(listed=names.NO_NAMES).certificate, id="no names"),
        pytest.param(CA.custom(REQUEST.subject, key=KEY, extensions=[]).certificate, id="no extension"),
    ],
)
def test_answers_to_a_request(certificate: Certificate) -> None:
    check_matches_request(certificate, REQUEST, NOW)


MORE_NAMES = [
    AlternativeNames(("a", "b")),
    AlternativeNames(ips=(ip_address("10.0.0.1"),)),
    AlternativeNames(emails=("a@b",)),
    AlternativeNames(uris=("u:a",)),
]


@pytest.mark.parametrize(
    ("certificate", "asked", "now", "broken"),
    [
        pytest.param(
            answer().certificate,
            replace(REQUEST, public_key=OTHER_KEY),
            NOW,
            "it certifies another key",
            id="another key",
        ),
        pytest.param(answer("john").certificate, REQUEST, NOW, "it names another user", id="another user"),
        pytest.param(answer(groups=("devs",)).certificate, REQUEST, NOW, "it names other groups", id="a group less"),
        pytest.param(
            answer(groups=("devs", "ops", "x")).certificate, REQUEST, NOW, "it names other groups", id="a group more"
        ),
        *(
            pytest.param(
                answer(listed=more).certificate,
                REQUEST,
                NOW,
                "it carries an alternative name that was not requested",
                id=str(more),
            )
            for more in MORE_NAMES
        ),
        pytest.param(
            CA.custom(REQUEST.subject, key=KEY, extensions=[(x509.BasicConstraints(True, None), True)]).certificate,
            REQUEST,
            NOW,
            "it is a CA",
            id="a CA",
        ),
        pytest.param(
            answer().certificate,
            REQUEST,
            NOW - timedelta(hours=1),
            "it is valid from 2026-01-02T02:59:05Z to 2027-01-02T03:04:05Z, but this machine's clock says 2026-01-02T02:04:05Z",
            id="this clock is behind",
        ),
        pytest.param(
            answer().certificate,
            REQUEST,
            NOW + timedelta(days=365),
            "but this machine's clock says",
            id="this clock is ahead",
        ),
    ],
)
def test_certificates_that_do_not_answer(
    certificate: Certificate, asked: CertificateRequest, now: datetime, broken: str
) -> None:
    with pytest.raises(CertificateMismatchError, match=broken):
        check_matches_request(certificate, asked, now)
