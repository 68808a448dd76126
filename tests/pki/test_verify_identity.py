"""Identity of a verified leaf, and leaves that openssl and easy-rsa make."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ObjectIdentifier

from mooring.pki import keys
from mooring.pki.errors import PeerCertificateError
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.verify import ClientTrust
from tests.support.testca import ThrowawayCA, bit_string_attribute, group_name, name_of, user_name

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CA = ThrowawayCA(now=NOW)
TRUST = ClientTrust([CA.certificate])
JANE = CA.client("jane", "devs", "ops")
UID = names.UID_ATTRIBUTE


def test_the_identity_of_an_ordinary_client() -> None:
    peer = TRUST.verify([JANE.der], NOW)
    digest = hashlib.sha256(JANE.der).hexdigest()
    assert peer.common_name == "jane"
    assert set(peer.organizations) == {"devs", "ops"}
    assert peer.uid == ""
    assert peer.fingerprint == digest
    assert peer.credential_id == f"X509SHA256={digest}"
    assert (peer.not_before, peer.not_after) == (NOW - timedelta(minutes=5), NOW + timedelta(days=365))
    assert (peer.valid_from, peer.valid_until) == (peer.not_before, peer.not_after)
    assert peer.leaf == JANE.certificate


def test_a_client_made_the_way_of_old_tutorials(tmp_path: Path) -> None:
    # A CA by `openssl req -x509` and a leaf by `openssl x509 -req`, without any extension file.
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=kube-ca -days 10",
        "req -new -newkey rsa:2048 -nodes -keyout jane.key -out jane.csr -subj /O=app1/O=app2/CN=jane",
        "x509 -req -in jane.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out jane.crt -days 10",
    ):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, capture_output=True, check=True)
    leaf = bundles.certificates((tmp_path / "jane.crt").read_bytes())[0]
    trust = ClientTrust(bundles.certificates((tmp_path / "ca.crt").read_bytes()))
    peer = trust.verify([leaf.der], datetime.now(UTC))
    assert leaf.version == 1
    assert (peer.common_name, peer.organizations) == ("jane", ("app1", "app2"))


EASY_RSA = b"""
basicConstraints = CA:FALSE
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid,issuer:always
extendedKeyUsage = clientAuth
keyUsage = digitalSignature
nsComment = "made by easy-rsa"
"""


def test_a_client_with_the_extensions_of_easy_rsa(tmp_path: Path) -> None:
    ca = ThrowawayCA()
    (tmp_path / "ext").write_bytes(EASY_RSA)
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    (tmp_path / "ca.key").write_bytes(keys.private_key_pem(ca.key))
    for command in (
        "req -new -newkey rsa:2048 -nodes -keyout jane.key -out jane.csr -subj /CN=jane",
        "x509 -req -in jane.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out jane.crt -days 10 -extfile ext",
    ):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, capture_output=True, check=True)
    leaf = bundles.certificates((tmp_path / "jane.crt").read_bytes())[0]
    assert ClientTrust([ca.certificate]).verify([leaf.der], datetime.now(UTC)).common_name == "jane"


@pytest.mark.parametrize(
    ("stated", "uid"),
    [
        pytest.param([], "", id="none"),
        pytest.param([(UID, "1234")], "1234", id="one"),
    ],
)
def test_the_uid_attribute(stated: list[tuple[ObjectIdentifier, str]], uid: str) -> None:
    leaf = CA.custom(name_of(group_name("devs"), *stated, user_name("jane")))
    assert TRUST.verify([leaf.der], NOW).uid == uid


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        pytest.param([(UID, "1"), (UID, "1")], "the certificate states more than one UID", id="two"),
        pytest.param([(UID, "")], "the certificate states a UID that is empty", id="empty"),
    ],
)
def test_a_bad_uid_attribute_refuses_the_certificate(stated: list[tuple[ObjectIdentifier, str]], message: str) -> None:
    with pytest.raises(PeerCertificateError) as raised:
        TRUST.verify([CA.custom(name_of(user_name("jane"), *stated)).der], NOW)
    assert (raised.value.code, str(raised.value)) == ("bad-uid", message)


def test_an_attribute_that_is_no_text_refuses_the_certificate() -> None:
    der = CA.custom_der(x509.Name([bit_string_attribute()]), CA.key)
    with pytest.raises(PeerCertificateError) as raised:
        TRUST.verify([der], NOW)
    assert (raised.value.code, str(raised.value)) == (
        "malformed",
        "the subject of the certificate cannot be read: the attribute 2.5.4.45 has a value that is no text",
    )


def test_version_1_leaves_are_accepted_as_in_go(v1_certificate: Callable[[], Certificate]) -> None:
    certificate = v1_certificate()
    peer = ClientTrust([certificate]).verify([certificate.der], datetime.now(UTC))
    assert peer.common_name == "old"
