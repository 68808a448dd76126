"""Keys: generation, accepted types, files and fingerprints."""

from __future__ import annotations

import hashlib
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from mooring.pki import keys, pem
from mooring.pki.errors import KeyRefusedError, PemError
from mooring.pki.x509.bundles import load_public_keys
from tests.support.slowkeys import dsa_key, rsa_key
from tests.support.testca import ThrowawayCA

P256 = keys.generate_key()
RSA = rsa_key(2048)
ED = ed25519.Ed25519PrivateKey.generate()
P521 = ec.generate_private_key(ec.SECP521R1())
ALLOWED = [
    pytest.param(P256, id="P-256"),
    pytest.param(RSA, id="RSA"),
    pytest.param(ED, id="Ed25519"),
    pytest.param(P521, id="P-521"),
]


def openssl(*arguments: str, stdin: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=stdin, capture_output=True, check=True).stdout


@pytest.mark.parametrize("name", ["ECDSA-P256", "ECDSA-P384", "RSA-2048", "RSA-3072", "Ed25519"])
def test_a_key_is_of_the_named_algorithm(name: str) -> None:
    assert keys.algorithm_of(keys.generate_key(name)) == name


def test_the_table_names_kubeadms_algorithms_and_ed25519() -> None:
    assert set(keys.ALGORITHMS) == {"ECDSA-P256", "ECDSA-P384", "RSA-2048", "RSA-3072", "RSA-4096", "Ed25519"}
    assert keys.algorithm_of(keys.generate_key()) == "ECDSA-P256"


def test_rsa_4096_has_4096_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def generate(exponent: int, size: int) -> rsa.RSAPrivateKey:
        asked.append((exponent, size))
        return RSA

    monkeypatch.setattr(rsa, "generate_private_key", generate)
    assert keys.generate_key("RSA-4096") is RSA
    assert asked == [(65537, 4096)]


def test_an_unknown_algorithm_is_refused_with_the_list() -> None:
    with pytest.raises(KeyRefusedError) as raised:
        keys.generate_key("DSA-1024")
    assert str(raised.value).startswith(
        'unknown key algorithm "DSA-1024", use one of: ECDSA-P256, ECDSA-P384, RSA-2048'
    )


@pytest.mark.parametrize("key", ALLOWED)
def test_writing_and_reading_are_inverse(key: keys.PrivateKey) -> None:
    text = keys.private_key_pem(key)
    assert text.startswith(b"-----BEGIN PRIVATE KEY-----\n")
    again = keys.load_private_key(text)
    assert keys.public_key_fingerprint(again) == keys.public_key_fingerprint(key)
    assert load_public_keys(keys.public_key_pem(key)) == (key.public_key(),)


@pytest.mark.parametrize("key", [pytest.param(P256, id="SEC 1"), pytest.param(RSA, id="PKCS#1")])
def test_traditional_forms_are_read(key: keys.PrivateKey) -> None:
    text = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    assert keys.load_private_key(text).public_key() == key.public_key()


def test_a_key_made_by_openssl_with_its_parameters_is_read() -> None:
    text = openssl("ecparam", "-genkey", "-name", "prime256v1")
    assert b"EC PARAMETERS" in text
    assert keys.algorithm_of(keys.load_private_key(text)) == "ECDSA-P256"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:secp256k1"],
            "unsupported elliptic curve secp256k1",
            id="secp256k1",
        ),
        pytest.param(
            ["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:1024"],
            "an RSA key of 1024 bits is not accepted",
            id="short RSA",
        ),
        pytest.param(["-algorithm", "ED448"], "unsupported private key", id="Ed448"),
        pytest.param(
            ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-aes256", "-pass", "pass:x"],
            "is encrypted",
            id="encrypted",
        ),
    ],
)
def test_keys_that_are_not_accepted(arguments: list[str], message: str) -> None:
    with pytest.raises(KeyRefusedError, match=message):
        keys.load_private_key(openssl("genpkey", *arguments))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"", "the text holds no private key in PEM form", id="nothing"),
        pytest.param(keys.public_key_pem(P256), "the text holds no private key in PEM form", id="a public key"),
        pytest.param(
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
            "the private key cannot be parsed",
            id="junk",
        ),
    ],
)
def test_texts_without_a_private_key(text: bytes, message: str) -> None:
    with pytest.raises(KeyRefusedError) as raised:
        keys.load_private_key(text)
    assert str(raised.value) == message


@given(st.binary(max_size=200))
def test_junk_never_crashes(data: bytes) -> None:
    for text in (
        data,
        *(pem.encode(label, data) for label in ("PRIVATE KEY", "PUBLIC KEY", "EC PRIVATE KEY", "CERTIFICATE")),
    ):
        for read in (keys.load_private_key, load_public_keys):
            with pytest.raises((KeyRefusedError, PemError)):
                read(text)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(dsa_key().public_key(), id="DSA"),
        pytest.param(ed448.Ed448PrivateKey.generate().public_key(), id="Ed448"),
        pytest.param("not a key", id="a text"),
    ],
)
def test_public_keys_of_other_kinds_are_refused(key: object) -> None:
    with pytest.raises(KeyRefusedError, match="unsupported public key: use ECDSA, RSA or Ed25519"):
        keys.accepted_public_key(key)


def test_every_form_a_service_account_key_file_may_have_is_read() -> None:
    ca = ThrowawayCA()
    text = (
        keys.private_key_pem(P256)
        + keys.public_key_pem(RSA)
        + ca.certificate_pem
        + b"-----BEGIN X-----\nAAAA\n-----END X-----\n"
    )
    assert load_public_keys(text) == (P256.public_key(), RSA.public_key(), ca.key.public_key())


@pytest.mark.parametrize("label", ["PUBLIC KEY", "RSA PUBLIC KEY", "EC PRIVATE KEY", "CERTIFICATE"])
def test_a_block_of_junk_is_refused_by_its_label(label: str) -> None:
    with pytest.raises(KeyRefusedError) as raised:
        load_public_keys(keys.public_key_pem(P256) + pem.encode(label, b"junk"))
    assert str(raised.value) == f"the PEM block {label} cannot be parsed"


def test_a_text_without_public_keys_is_refused() -> None:
    with pytest.raises(KeyRefusedError, match="the text holds no public key in PEM form"):
        load_public_keys(b"nothing")


@pytest.mark.parametrize(
    ("key", "bits"),
    [
        pytest.param(P256, 256, id="P-256"),
        pytest.param(P521, 512, id="P-521"),
        pytest.param(RSA, 256, id="RSA"),
        pytest.param(ED, 0, id="Ed25519"),
    ],
)
def test_signatures_are_made_over_a_hash_as_strong_as_the_key(key: keys.PrivateKey, bits: int) -> None:
    for half in (key, key.public_key()):
        used = keys.signature_hash(half)
        assert (used.digest_size * 8 if used else 0) == bits


def test_the_fingerprint_is_what_openssl_computes_for_a_pin() -> None:
    der = openssl("pkey", "-pubout", "-outform", "DER", stdin=keys.private_key_pem(P256))
    assert keys.public_key_fingerprint(P256) == hashlib.sha256(der).hexdigest()
    assert keys.public_key_fingerprint(P256.public_key()) == keys.public_key_fingerprint(P256)
