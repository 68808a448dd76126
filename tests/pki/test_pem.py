"""PEM: accepted and refused text, and that decoding inverts encoding."""

from __future__ import annotations

import codecs
import contextlib
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.pki import pem
from mooring.pki.errors import CertificateUnreadableError, PemError, PkiError
from mooring.pki.x509 import bundles
from mooring.pki.x509.certificate import Certificate
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA()
CERT = CA.certificate_pem
KEY_BLOCK = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        pytest.param(b"", [], id="an empty text has no block"),
        pytest.param(b"just words\n", [], id="text without a begin line has no block"),
        pytest.param(KEY_BLOCK, ["PRIVATE KEY"], id="one block"),
        pytest.param(
            b"about it:\n" + KEY_BLOCK + b"and more\n" + CERT, ["PRIVATE KEY", "CERTIFICATE"], id="text around blocks"
        ),
        pytest.param(KEY_BLOCK.replace(b"\n", b"\r\n"), ["PRIVATE KEY"], id="lines that end as on Windows"),
        pytest.param(KEY_BLOCK.rstrip(), ["PRIVATE KEY"], id="no newline at the end"),
        pytest.param(b"  " + KEY_BLOCK, [], id="an indented begin line begins nothing"),
    ],
)
def test_blocks(text: bytes, labels: list[str]) -> None:
    assert [block.label for block in pem.blocks(text)] == labels


def test_a_byte_order_mark_hides_no_block() -> None:
    """Go loses the first CA of such a bundle without a word."""
    assert [block.label for block in pem.blocks(codecs.BOM_UTF8 + KEY_BLOCK)] == ["PRIVATE KEY"]
    assert bundles.certificates_among(codecs.BOM_UTF8 + CERT) == (CA.certificate,)


def test_blocks_glued_by_cat_are_told_so() -> None:
    """A file without a line end, and another behind it."""
    with pytest.raises(
        PemError, match="CERTIFICATE ends in the line in which another begins: begin it on a line of its own"
    ):
        list(pem.blocks(CERT.rstrip() + CERT))


HEADERS = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"
CRL = b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(CERT + CRL, id="a CRL behind it, as for nginx and OpenVPN"),
        pytest.param(HEADERS + CERT, id="an encrypted key before it"),
        pytest.param(CERT + KEY_BLOCK.replace(b"AAAA", b"?"), id="a key that is no base64 behind it"),
        pytest.param(b"Bag Attributes\n    friendlyName: ca\n" + CERT, id="the words of PKCS#12"),
    ],
)
def test_what_stands_beside_a_certificate_of_an_operators_file_is_passed_over(text: bytes) -> None:
    """As by Go's `ParseCertsPEM` of client-go and by OpenSSL."""
    assert bundles.certificates_among(text) == (CA.certificate,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"-----BEGIN A-----\nAAAA\n", "the PEM block A has no end line", id="no end line"),
        pytest.param(
            b"-----BEGIN A-----\nAAAA\n-----END B-----\n", "the PEM block A has no end line", id="another's end line"
        ),
        pytest.param(b"-----BEGIN A-----\nAA!A\n-----END A-----\n", "the PEM block A is not base64", id="not base64"),
        pytest.param(
            b"-----BEGIN A-----\nAAA\n-----END A-----\n", "the PEM block A is not base64", id="padding missing"
        ),
        pytest.param(
            b"-----BEGIN A-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END A-----\n",
            "the PEM block A carries headers, which are not allowed",
            id="headers",
        ),
        pytest.param(b"x" * (pem.MAX_PEM_BYTES + 1), "the PEM text is longer than 1048576 bytes", id="too long"),
    ],
)
def test_malformed_text_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(PemError) as raised:
        list(pem.blocks(text))
    assert str(raised.value) == message


def test_blocks_are_found_lazily() -> None:
    assert next(pem.blocks(KEY_BLOCK + b"-----BEGIN A-----\nbroken")).label == "PRIVATE KEY"


@given(st.binary(max_size=300), st.sampled_from(["A", "CERTIFICATE", "RSA PRIVATE KEY"]))
def test_writing_and_reading_are_inverse(der: bytes, label: str) -> None:
    assert list(pem.blocks(pem.encode(label, der))) == [pem.Block(label, der)]


@given(st.binary(max_size=300) | st.text(alphabet="-BEGINDA \n:+/=", max_size=120).map(str.encode))
def test_junk_never_crashes(data: bytes) -> None:
    for text in (data, b"-----BEGIN CERTIFICATE-----\n" + data + b"\n-----END CERTIFICATE-----\n"):
        for read in (bundles.certificates, bundles.certificates_among):
            with pytest.raises(PkiError):
                read(text)


@given(st.binary(max_size=300))
def test_junk_der_never_crashes(data: bytes) -> None:
    with pytest.raises(CertificateUnreadableError, match="cannot be read"):
        Certificate(data)


@given(st.integers(0, len(next(pem.blocks(CERT)).der) - 1), st.integers(1, 255))
def test_a_certificate_with_one_byte_changed_parses_or_is_refused(place: int, change: int) -> None:
    der = bytearray(next(pem.blocks(CERT)).der)
    der[place] ^= change
    with contextlib.suppress(CertificateUnreadableError):  # any other exception is a bug
        Certificate(bytes(der))


def test_a_signature_has_one_encoding() -> None:
    """A bit string whose last bit is 0 can be encoded without it, which is the same signature under another fingerprint."""
    issued = (ThrowawayCA().certificate for _ in range(64))
    der, length = next((one.der, len(one.signature)) for one in issued if one.signature[-1] % 2 == 0)
    assert Certificate(der).signature[-1] % 2 == 0
    with pytest.raises(CertificateUnreadableError, match="the signature is not a whole number of octets"):
        Certificate(der[: -length - 1] + b"\1" + der[-length:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"", "the text holds no CERTIFICATE PEM block", id="nothing"),
        pytest.param(
            CERT + KEY_BLOCK, 'only CERTIFICATE PEM blocks are allowed, found "PRIVATE KEY"', id="a key among them"
        ),
        pytest.param(
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "the certificate cannot be read: an element is missing or of another type",
            id="junk inside",
        ),
    ],
)
def test_texts_that_are_not_certificates_only(text: bytes, message: str) -> None:
    with pytest.raises(PkiError) as raised:
        bundles.certificates(text)
    assert str(raised.value) == message


def test_several_certificates_keep_their_order() -> None:
    other = ThrowawayCA("other")
    both = (other.certificate, CA.certificate)
    assert bundles.certificates(bundles.certificates_pem(both)) == both


def test_certificates_are_found_among_keys() -> None:
    assert bundles.certificates_among(KEY_BLOCK + CERT + KEY_BLOCK) == (CA.certificate,)


def test_the_number_of_certificates_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_CERTIFICATES", 2)
    assert len(bundles.certificates(CERT * 2)) == 2
    with pytest.raises(PemError, match="more than 2 certificates"):
        bundles.certificates(CERT * 3)


def test_openssl_reads_what_we_write() -> None:
    read = subprocess.run(
        ["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253"], input=CERT, capture_output=True, check=True
    )
    assert b"CN=kubernetes" in read.stdout
