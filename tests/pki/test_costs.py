"""What strangers make so that reading it is costly: the work is bounded by the elements that are read, whatever the octets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import certifi
import pytest

from mooring import base64url
from mooring.pki import pem
from mooring.pki.errors import (
    CertificateTooLargeError,
    CertificateUnreadableError,
    KeyRefusedError,
    PeerCertificateError,
    PemError,
    RequestError,
)
from mooring.pki.jwt import keyset
from mooring.pki.x509 import bundles, der, names, requests
from mooring.pki.x509.certificate import MAX_ELEMENTS, Certificate
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.extensions import MAX_EXTENSIONS
from mooring.pki.x509.requests import MAX_REQUEST, build_request, parse_request
from mooring.pki.x509.verify import MAX_SIGNATURE_CHECKS, ClientTrust, read_chain
from tests.support.costlycertificates import ATTRIBUTES, FORMS, bundle, certificate_request, chain, key_set, labels
from tests.support.rawcertificate import COMMON_NAME, UTF8, attribute
from tests.support.testca import ThrowawayCA
from tests.support.work import work

NOW = datetime.now(UTC)
CA = ThrowawayCA(now=NOW)
TRUST = ClientTrust([CA.certificate])
MOST_WORK = 60 * MAX_ELEMENTS
"""Lines and calls of Python, each of some 50 ns. Without a limit of elements they are twenty times as many."""
OF_REQUESTS = 40 << 10
"""Octets of what is large in a request, whose base64 is below `MAX_REQUEST`."""

MANY = [one for one in FORMS if "one alternative" not in one and "one long" not in one and "one policy" not in one]
"""Forms that have many elements, beside those that have many octets."""


def judged(presented: tuple[bytes, ...]) -> Callable[[], object]:
    return lambda: TRUST.verify(presented, NOW)


@pytest.mark.parametrize("above", [False, True], ids=["a leaf", "a leaf and an intermediate"])
@pytest.mark.parametrize("form", FORMS)
def test_the_work_for_a_chain_of_a_stranger_is_bounded(form: str, above: bool) -> None:
    with pytest.raises(PeerCertificateError) as refused:
        judged(chain(form, above=above))()
    assert refused.value.code in PeerCertificateError.CODES
    assert len(str(refused.value)) < 500
    assert work(judged(chain(form, above=above))) < MOST_WORK


@pytest.mark.parametrize("form", [*FORMS, *ATTRIBUTES])
def test_the_work_for_a_request_is_bounded(form: str) -> None:
    text = certificate_request(form, OF_REQUESTS)
    assert OF_REQUESTS < len(text) <= MAX_REQUEST
    assert work(lambda: requests._parse(text)) < MOST_WORK


@pytest.mark.parametrize("form", MANY)
def test_what_has_more_elements_is_refused_as_too_large(form: str) -> None:
    limit = f"{MAX_EXTENSIONS} extensions" if form.startswith("extensions") else f"{MAX_ELEMENTS} elements"
    with pytest.raises(PeerCertificateError, match=f"more than {limit}") as refused:
        read_chain(chain(form))
    assert refused.value.code == "too-large"
    with pytest.raises(CertificateTooLargeError):
        Certificate(chain(form)[0])


@pytest.mark.parametrize("form", FORMS)
def test_a_hundred_of_each_are_read(form: str) -> None:
    if form == "extensions that are all the same":
        with pytest.raises(CertificateUnreadableError, match="stands there twice"):
            Certificate(chain(form, most=100)[0])
        return
    assert [one.der for one in read_chain(chain(form, most=100)).certificates] == list(chain(form, most=100))


def test_the_certificates_of_a_chain_share_the_elements() -> None:
    (half,) = chain("alternative names that are empty DNS names", most=MAX_ELEMENTS * 2 // 3)
    assert len(read_chain((half,)).certificates) == 1
    with pytest.raises(PeerCertificateError) as refused:
        read_chain((half, half))
    assert refused.value.code == "too-large"
    assert Certificate(half) == Certificate(half), "in a bundle each has its own"


@pytest.mark.parametrize(
    ("dns", "groups"),
    [
        pytest.param(0, 1000, id="a user with a thousand groups"),
        pytest.param(1000, 0, id="a server with a thousand names"),
    ],
)
def test_large_certificates_that_are_read(dns: int, groups: int) -> None:
    every = tuple(f"n{number:04d}.nodes.example.com" for number in range(dns))
    pair = CA.server(*every) if dns else CA.client("jane", *(f"group-{number:03d}" for number in range(groups)))
    assert set(every) <= set(names.alternative_names(pair.certificate.extensions).dns)
    assert len(names.organizations(pair.certificate.subject)) == groups


def test_a_request_with_a_thousand_names_is_read_and_remembered() -> None:
    text = build_request(CA.key, "jane", dns=[f"n{number:04d}.nodes.example.com" for number in range(1000)])
    first = parse_request(text)
    assert len(text) > requests.LARGE
    assert len(first.alternative_names.dns) == 1000
    assert parse_request(text) is first


@pytest.mark.parametrize("form", ["alternative names that are empty URIs", *ATTRIBUTES])
def test_a_request_with_more_elements_is_refused(form: str) -> None:
    with pytest.raises(RequestError, match=f"more than {MAX_ELEMENTS} elements"):
        parse_request(certificate_request(form, OF_REQUESTS))


@pytest.mark.parametrize(
    "rdns",
    [
        pytest.param([[attribute(COMMON_NAME, UTF8, b"a")] * 480], id="one RDN of many attributes"),
        pytest.param([[attribute(COMMON_NAME, UTF8, b"a")]] * 480, id="many RDNs"),
        pytest.param([[]] * 1990, id="many empty RDNs"),
        pytest.param([[attribute(COMMON_NAME, UTF8, b"+" * 60_000)]], id="one long text"),
    ],
)
def test_a_name_is_formatted_as_far_as_it_is_printed(rdns: list[list[bytes]]) -> None:
    encoding = der.encoded(der.SEQUENCE, *(der.encoded(der.SET, *rdn) for rdn in rdns))
    name = DistinguishedName.read(der.only(encoding, der.SEQUENCE))
    printed = names.printable(name)
    assert printed == names.printable_text(name.rfc4514_string())
    assert len(printed) == names.MAX_PRINTED + 1
    assert work(lambda: names.printable(name)) < 40 * names.MAX_PRINTED


def test_bundles_share_the_signature_checks_of_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[Certificate] = []
    real = Certificate.has_signed

    def counting(self: Certificate, *given: object) -> bool:
        checks.append(self)
        return real(self, *given)  # type: ignore[arg-type]  # the arguments of the real one

    stranger = ThrowawayCA("stranger", NOW)
    alike = [ThrowawayCA("stranger", NOW).certificate.der for _ in range(8)]
    read = read_chain([stranger.client("x").der, *alike])
    monkeypatch.setattr(Certificate, "has_signed", counting)
    for _ in range(4):
        with pytest.raises(PeerCertificateError):
            ClientTrust([CA.certificate]).verify_read(read, NOW)
    assert len(checks) == 8 <= MAX_SIGNATURE_CHECKS


@pytest.mark.parametrize("form", ["alternative names that are empty URIs", "an issuer of one RDN with all attributes"])
def test_the_certificates_of_a_text_share_elements(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_BUNDLE_ELEMENTS", 2 * MAX_ELEMENTS)
    text = bundle(form, MAX_ELEMENTS // 5, 1 << 18)
    assert len(list(pem.blocks(text))) > 10
    assert work(lambda: bundles.certificates(text)) < 2 * MOST_WORK
    with pytest.raises(
        CertificateTooLargeError,
        match=rf"certificate \d+ of \d+, in line \d+: .* more than {2 * MAX_ELEMENTS} elements",
    ):
        bundles.certificates_among(text)


def test_a_text_of_two_certificates_has_the_elements_of_two() -> None:
    one = bundle("alternative names that are empty DNS names", MAX_ELEMENTS * 2 // 3, 1)
    assert len(bundles.certificates(one * 2)) == 2


@pytest.mark.parametrize("copies", [pytest.param(1, id="as they are"), pytest.param(4, id="four times as many")])
def test_the_cas_of_the_web_are_read(copies: int) -> None:
    """An operator may name the bundle of a distribution, which is Mozilla's of some 140 CAs, as certifi's is."""
    text = b"".join(pem.encode(block.label, block.der) for block in pem.blocks(Path(certifi.where()).read_bytes()))
    assert len(bundles.certificates_among(text * copies)) > 100 * copies


def test_a_certificate_of_a_text_that_was_read_before_is_read_alone() -> None:
    first, other = (ThrowawayCA(name, NOW).certificate for name in ("first", "other"))
    text = bundles.certificates_pem([first, other])
    assert bundles.first_certificate(text) == first
    assert work(lambda: bundles.first_certificate(text * 50)) == work(lambda: bundles.first_certificate(text))
    with pytest.raises(PemError, match="holds no CERTIFICATE"):
        bundles.first_certificate(b"")


def test_labels_that_are_all_different_cost_what_one_label_costs() -> None:
    def reading(text: bytes) -> Callable[[], object]:
        return lambda: list(pem.blocks(text))

    assert work(reading(labels(400))) == work(reading(labels(400, different=False)))


@pytest.mark.parametrize("kind", ["RSA", "EC"])
def test_a_number_of_a_key_set_is_read_up_to_a_length(kind: str) -> None:
    padded = keyset.parse_key_set(key_set(kind, keyset.MAX_NUMBER)) if kind == "RSA" else None
    assert padded is None or len(padded.keys) == 1
    with pytest.raises(KeyRefusedError, match="none of the 1 keys"):
        keyset.parse_key_set(key_set(kind, keyset.MAX_NUMBER + 4))


def test_no_long_number_of_a_key_set_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "ECKey", None)
    monkeypatch.setattr(base64url, "decode", None)
    for kind in ("RSA", "EC"):
        with pytest.raises(KeyRefusedError, match="none of the 1 keys"):
            keyset.parse_key_set(key_set(kind, 250_000))
