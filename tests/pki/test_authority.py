"""The certificate authority: issued and refused certificates, checked with openssl."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from mooring.pki import keys
from mooring.pki.errors import IssueError, KeyRefusedError
from mooring.pki.x509 import bundles, names, profiles
from mooring.pki.x509.authority import Authority, self_signed_ca, serial_number
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import AlternativeNames
from mooring.pki.x509.requests import parse_request
from mooring.settings.signing import SIGNING_DURATION
from tests.support.testca import ThrowawayCA, by_library, request, with_broken_key

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = keys.generate_key()
CA = ThrowawayCA(now=NOW)


def leaf_template() -> profiles.Template:
    return profiles.admin(keys.generate_key().public_key(), NOW)


def test_a_serial_number_is_128_bits_of_the_entropy_given() -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return b"\xff" * count

    assert serial_number(entropy) == 2**128 - 1
    assert asked == [16]
    assert serial_number(bytes) == 1, "zero is not a serial number"


def test_a_root_is_marked_as_a_ca_and_identifies_its_key() -> None:
    certificate = CA.certificate
    extensions = {extension.oid: extension for extension in by_library(certificate).extensions}
    assert extensions[x509.BasicConstraints.oid].value == x509.BasicConstraints(ca=True, path_length=None)
    assert extensions[x509.BasicConstraints.oid].critical
    assert extensions[x509.KeyUsage.oid].critical
    usage = by_library(certificate).extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert usage.crl_sign
    assert usage.digital_signature
    assert extensions[x509.SubjectKeyIdentifier.oid].value == x509.SubjectKeyIdentifier.from_public_key(
        CA.key.public_key()
    )
    assert extensions.keys() == {x509.BasicConstraints.oid, x509.KeyUsage.oid, x509.SubjectKeyIdentifier.oid}
    assert certificate.subject == certificate.issuer == names.subject("kubernetes")


def test_a_leaf_carries_exactly_the_extensions_of_its_profile() -> None:
    listed = AlternativeNames(("a",), (ip_address("::1"),))
    certificate = CA.authority.sign(replace(leaf_template(), alternative_names=listed), NOW, 99)
    extensions = {extension.oid: extension for extension in by_library(certificate).extensions}
    assert certificate.version == 3
    assert certificate.serial_number == 99
    assert certificate.issuer == CA.certificate.subject
    assert extensions[x509.BasicConstraints.oid].critical
    assert extensions[x509.BasicConstraints.oid].value == x509.BasicConstraints(ca=False, path_length=None)
    assert extensions[x509.KeyUsage.oid].critical
    assert not extensions[x509.ExtendedKeyUsage.oid].critical
    assert not extensions[x509.SubjectAlternativeName.oid].critical
    assert certificate.extensions.authority_key_identifier == CA.certificate.extensions.subject_key_identifier
    assert x509.SubjectKeyIdentifier.oid not in extensions
    assert len(extensions) == 5


def test_alternative_names_of_an_empty_subject_are_critical() -> None:
    template = replace(leaf_template(), subject=names.subject(""), alternative_names=AlternativeNames(("a",)))
    extensions = by_library(CA.authority.sign(template, NOW, 1)).extensions
    assert extensions.get_extension_for_class(x509.SubjectAlternativeName).critical


def test_a_certificate_without_bits_or_purposes_has_no_such_extensions() -> None:
    template = replace(leaf_template(), usages=())
    found = {extension.oid for extension in by_library(CA.authority.sign(template, NOW, 1)).extensions}
    assert found == {x509.BasicConstraints.oid, x509.AuthorityKeyIdentifier.oid}


def test_no_certificate_outlives_its_authority() -> None:
    template = replace(leaf_template(), not_after=CA.authority.not_after + timedelta(days=1))
    assert CA.authority.sign(template, NOW, 1).not_valid_after_utc == CA.authority.not_after


def test_an_expired_authority_signs_nothing() -> None:
    with pytest.raises(IssueError, match="the CA expired at 2035-12-31T03:04:05Z"):
        CA.authority.sign(leaf_template(), CA.authority.not_after, 1)


@pytest.mark.parametrize(
    ("changed", "serial"),
    [
        pytest.param({}, 0, id="serial zero"),
        pytest.param({}, 1 << 160, id="a serial that is too long"),
        pytest.param({"alternative_names": AlternativeNames(("büro",))}, 1, id="a DNS name outside ASCII"),
        pytest.param({"not_before": datetime(1900, 1, 1, tzinfo=UTC)}, 1, id="a year X.509 cannot state"),
    ],
)
def test_what_cannot_be_encoded_is_refused(changed: dict[str, object], serial: int) -> None:
    with pytest.raises(IssueError, match="the certificate cannot be encoded: "):
        CA.authority.sign(replace(leaf_template(), **changed), NOW, serial)  # type: ignore[arg-type]  # one field each


CA_BIT = (x509.BasicConstraints(True, None), True)
NO_SIGNING = x509.KeyUsage(True, False, False, False, False, False, True, False, False)


@pytest.mark.parametrize(
    ("extensions", "message"),
    [
        pytest.param([], "has no basic constraints: it is not a CA", id="no basic constraints"),
        pytest.param(
            [(x509.BasicConstraints(False, None), True)],
            "is not a CA according to its basic constraints",
            id="not a CA",
        ),
        pytest.param(
            [CA_BIT, (NO_SIGNING, True)], "may not sign certificates according to its key usage", id="only for CRLs"
        ),
    ],
)
def test_a_certificate_that_may_not_sign_is_refused(
    extensions: list[tuple[x509.ExtensionType, bool]], message: str
) -> None:
    pair = CA.custom("not a ca", extensions=extensions)
    with pytest.raises(IssueError, match=message):
        Authority(pair.certificate, pair.key)


def test_a_ca_needs_its_own_key() -> None:
    with pytest.raises(IssueError, match="does not belong to its certificate"):
        Authority(CA.certificate, KEY)


def test_a_ca_whose_public_key_is_broken_is_refused() -> None:
    with pytest.raises(IssueError, match="public key cannot be parsed"):
        Authority(Certificate(with_broken_key(CA.certificate)), CA.key)


def test_a_ca_key_of_another_kind_is_refused() -> None:
    with pytest.raises(KeyRefusedError):
        Authority(CA.certificate, "key")  # type: ignore[arg-type]  # what a careless caller might pass


def test_a_foreign_ca_without_key_usage_and_key_identifier_signs(tmp_path: Path) -> None:
    key = keys.generate_key()
    pair = CA.custom("foreign", key=key, extensions=[CA_BIT])
    foreign = Authority(pair.certificate, pair.key)
    leaf = foreign.sign(replace(leaf_template(), not_after=NOW + timedelta(minutes=5)), NOW, 1)
    identifier = by_library(leaf).extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert identifier == x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def test_an_authority_prints_no_key() -> None:
    assert repr(CA.authority) == "Authority('CN=kubernetes')"


@pytest.mark.parametrize("ca_algorithm", ["ECDSA-P256", "ECDSA-P384", "RSA-2048", "Ed25519"])
@pytest.mark.parametrize("leaf_algorithm", ["ECDSA-P256", "RSA-2048", "Ed25519"])
def test_openssl_verifies_what_is_issued(tmp_path: Path, ca_algorithm: str, leaf_algorithm: str) -> None:
    now = datetime.now(UTC)
    authority = self_signed_ca(keys.generate_key(ca_algorithm), "kubernetes", now, 1)
    text, _ = request("system:node:" + "n" * 80, ["system:nodes"], key=keys.generate_key(leaf_algorithm))
    template = profiles.from_request(
        parse_request(text), ["digital signature", "client auth"], now, None, SIGNING_DURATION
    )
    leaf = bundles.certificates_pem([authority.sign(template, now, 2**127 + 1)])
    (tmp_path / "ca.crt").write_bytes(authority.certificate_pem)
    (tmp_path / "leaf.crt").write_bytes(leaf)
    verified = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-purpose", "sslclient", "-CAfile", "ca.crt", "leaf.crt"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert verified.stdout == "leaf.crt: OK\n", verified.stderr


def test_openssl_accepts_the_serving_certificate_for_its_names(tmp_path: Path) -> None:
    ca = ThrowawayCA()
    ca.server("localhost", "127.0.0.1").write(tmp_path, "server")
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    for check in (
        ["-verify_hostname", "kubernetes.default.svc"],
        ["-verify_hostname", "localhost"],
        ["-verify_ip", "127.0.0.1"],
    ):
        subprocess.run(
            ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", *check, "-CAfile", "ca.crt", "server.crt"],
            cwd=tmp_path, capture_output=True, check=True,
        )  # fmt: skip
