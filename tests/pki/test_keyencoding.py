"""Encodings of public keys: the verdicts are those of Go 1.27 on certificates with them, as leaves and as CAs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.pki.errors import PeerCertificateError, RequestError
from mooring.pki.keys import PrivateKey
from mooring.pki.x509 import der
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.der import encoded
from mooring.pki.x509.requests import parse_request
from mooring.pki.x509.signatures import is_signed, load_public_key, signature_algorithm
from mooring.pki.x509.verify import ClientTrust
from tests.support.rawcertificate import (
    COMMON_NAME,
    KEY,
    SEQUENCE,
    UTF8,
    Foreign,
    attribute,
    edited,
    name,
    oid,
    plain,
    request,
)
from tests.support.slowkeys import rsa_key
from tests.support.testca import Pair, ThrowawayCA

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CA = ThrowawayCA("kubernetes", NOW)
EC_KEY, RSA_KEY = CA.key, rsa_key(2048)
assert isinstance(EC_KEY, ec.EllipticCurvePrivateKey)
assert isinstance(RSA_KEY, rsa.RSAPrivateKey)
NUMBERS = RSA_KEY.private_numbers()
POINT = EC_KEY.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
COMPRESSED = EC_KEY.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
HYBRID = bytes([6 | POINT[-1] & 1]) + POINT[1:]
P256 = oid("1.2.840.10045.3.1.7")
NULL = b"\5\0"
SHA256 = signature_algorithm(der.only(encoded(SEQUENCE, oid("1.2.840.10045.4.3.2")), SEQUENCE))
LONG_EXPONENT = NUMBERS.public_numbers.e + (NUMBERS.p - 1) * (NUMBERS.q - 1)
"""The same key: each signature with it verifies, and takes as long as it is large."""


def info(kind: str, parameters: bytes, octets: bytes) -> bytes:
    return encoded(SEQUENCE, encoded(SEQUENCE, oid(kind), parameters), encoded(der.BIT_STRING, b"\0", octets))


def on_curve(octets: bytes, parameters: bytes = P256) -> bytes:
    return info("1.2.840.10045.2.1", parameters, octets)


def number(value: int) -> bytes:
    return encoded(der.INTEGER, value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True))


def of_rsa(
    parameters: bytes = NULL, modulus: int = NUMBERS.public_numbers.n, exponent: int = 65537, kind: str = "01"
) -> bytes:
    numbers = encoded(SEQUENCE, number(modulus), number(exponent))
    return info(f"2a864886f70d0101{kind}", parameters, numbers)


REFUSED: Mapping[str, tuple[PrivateKey, bytes, str]] = {
    "a compressed point": (EC_KEY, on_curve(COMPRESSED), "a compressed point"),
    "a hybrid point": (EC_KEY, on_curve(HYBRID), "a compressed point"),
    "the point at infinity": (EC_KEY, on_curve(b"\0"), "a compressed point"),
    "no curve": (EC_KEY, on_curve(POINT, b""), "name the curve"),
    "RSA without NULL": (RSA_KEY, of_rsa(b""), "without the parameter NULL"),
    "RSA with another parameter": (RSA_KEY, of_rsa(b"\x30\0"), "without the parameter NULL"),
    "RSA with a long exponent": (RSA_KEY, of_rsa(exponent=LONG_EXPONENT), "an exponent above 31 bits"),
    "RSA with a negative exponent": (RSA_KEY, of_rsa(exponent=-3), "negative number"),
    "RSA with a negative modulus": (RSA_KEY, of_rsa(modulus=-NUMBERS.public_numbers.n), "negative number"),
    "id-RSASSA-PSS": (RSA_KEY, of_rsa(b"", kind="0a"), "id-RSASSA-PSS"),
    "ML-DSA-44": (EC_KEY, info("608648016503040311", b"", bytes(1312)), "an ML-DSA-44 key is not accepted"),
    "ML-DSA-65": (EC_KEY, info("608648016503040312", b"", bytes(1952)), "an ML-DSA-65 key is not accepted"),
    "ML-DSA-87": (EC_KEY, info("608648016503040313", b"", bytes(2592)), "an ML-DSA-87 key is not accepted"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_an_encoding_that_go_refuses_verifies_no_client(form: str) -> None:
    key, encoding, message = REFUSED[form]
    leaf = edited(CA.key, plain(CA), {KEY: encoding})
    with pytest.raises(PeerCertificateError, match=message) as raised:
        ClientTrust([CA.certificate]).verify([leaf.der], NOW)
    assert raised.value.code == "weak-key"
    root = Certificate(edited(CA.key, Foreign(CA.certificate.der, CA.key), {KEY: encoding}).der)
    with pytest.raises(PeerCertificateError) as raised:
        ClientTrust([root]).verify([CA.custom("jane", issuer=Pair(root, key)).der], NOW)
    assert raised.value.code == "bad-signature"


@pytest.mark.parametrize(
    "encoding", [on_curve(POINT), of_rsa(), of_rsa(exponent=2**31 - 1)], ids=["EC", "RSA", "31 bits"]
)
def test_encodings_that_are_read(encoding: bytes) -> None:
    assert load_public_key(encoding).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) == encoding


def test_a_root_with_a_key_on_a_curve_that_go_does_not_know_verifies_nobody() -> None:
    key = ec.generate_private_key(ec.SECP256K1())
    signature = key.sign(b"data", ec.ECDSA(hashes.SHA256()))
    assert not is_signed(b"data", signature, SHA256, key.public_key())


@pytest.mark.parametrize("form", ["a compressed point", "ML-DSA-65"])
def test_a_request_with_such_a_key_is_refused(form: str) -> None:
    _, encoding, message = REFUSED[form]
    text = request(name(attribute(COMMON_NAME, UTF8, b"jane")), key=EC_KEY, info=encoding)
    with pytest.raises(RequestError, match=f"cannot be parsed: {message}"):
        parse_request(text)
