"""Certificate signing requests: built, parsed, refused."""

from __future__ import annotations

import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from mooring.pki import keys, pem
from mooring.pki.errors import KeyRefusedError, PkiError, RequestError, RequestSignatureError
from mooring.pki.x509 import der, names
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.requests import (
    LARGE,
    MAX_REQUEST,
    build_request,
    has_key_alone,
    parse_request,
    parse_request_der,
)
from tests.support import rawcertificate
from tests.support.slowkeys import dsa_key, rsa_key
from tests.support.testca import node_request, request, request_with_bad_signature

KEY = keys.generate_key()
TEXT, _ = request("jane", ["a", "b"], ["jane.example", "10.0.0.1"], KEY)


def signed(key: object, *extensions: x509.ExtensionType, subject: x509.Name | None = None) -> bytes:
    builder = x509.CertificateSigningRequestBuilder(subject or names.subject("x").for_builder())
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]  # keys nobody should use


def test_what_is_built_is_what_is_parsed() -> None:
    found = parse_request(TEXT)
    assert found.common_name == "jane"
    assert found.organizations == ("a", "b")
    assert found.alternative_names == names.AlternativeNames(("jane.example",), (ip_address("10.0.0.1"),))
    assert found.public_key == KEY.public_key()
    assert found.key_algorithm == "ECDSA-P256"
    assert found.key_fingerprint == keys.public_key_fingerprint(KEY)


@pytest.mark.parametrize("algorithm", ["ECDSA-P256", "ECDSA-P384", "RSA-2048", "Ed25519"])
def test_openssl_verifies_what_is_built(algorithm: str) -> None:
    text = build_request(
        keys.generate_key(algorithm), "system:node:" + "n" * 100, ["system:nodes"], ["a"], [ip_address("::1")]
    )
    shown = subprocess.run(
        ["openssl", "req", "-verify", "-noout", "-text", "-nameopt", "RFC2253"],
        input=text,
        capture_output=True,
        check=True,
    )
    assert b"verify OK" in shown.stderr + shown.stdout
    assert b"CN=system:node:%b,O=system:nodes" % (b"n" * 100) in shown.stdout
    assert parse_request(text).key_algorithm == algorithm


def test_a_request_of_openssl_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(keys.private_key_pem(KEY))
    text = subprocess.run(
        ["openssl", "req", "-new", "-key", str(tmp_path / "key"), "-subj", "/O=system:nodes/CN=system:node:a", "-text"],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert parse_request(text).subject == names.subject("system:node:a", ["system:nodes"])


def test_a_node_request_has_no_alternative_names() -> None:
    assert not parse_request(node_request("a")[0]).alternative_names


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"about\n" + TEXT, id="words before"),
        pytest.param(TEXT + b"trailing", id="words after"),
        pytest.param(TEXT + b"-----BEGIN X-----\nbroken", id="a broken block after"),
        pytest.param(TEXT + request("other")[0], id="another request after"),
    ],
)
def test_only_the_first_block_counts(text: bytes) -> None:
    assert parse_request(text).common_name == "jane"


WRONG_TYPE = "PEM block type must be CERTIFICATE REQUEST"
UNREADABLE = "the certificate request cannot be parsed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"", WRONG_TYPE, id="nothing"),
        pytest.param(b"hello", WRONG_TYPE, id="no PEM"),
        pytest.param(keys.public_key_pem(KEY) + TEXT, WRONG_TYPE, id="another block first"),
        pytest.param(TEXT.replace(b"CERTIFICATE REQ", b"NEW CERTIFICATE REQ"), WRONG_TYPE, id="the label of old tools"),
        pytest.param(TEXT[:-40], "the PEM block CERTIFICATE REQUEST has no end line", id="cut off"),
        pytest.param(
            pem.encode("CERTIFICATE REQUEST", b"junk"),
            f"{UNREADABLE}: an element is missing or of another type",
            id="junk inside",
        ),
        pytest.param(
            request_with_bad_signature("jane"),
            "the certificate request's signature does not verify with the key it carries",
            id="a signature by another key",
        ),
        pytest.param(
            signed(ec.generate_private_key(ec.SECP256K1())),
            "unsupported elliptic curve secp256k1: use P-256, P-384 or P-521",
            id="a curve nobody uses",
        ),
        pytest.param(
            signed(rsa_key(1024)),
            "an RSA key of 1024 bits is not accepted: use 2048 to 8192 bits",
            id="a short RSA key",
        ),
        pytest.param(signed(dsa_key()), "unsupported public key: use ECDSA, RSA or Ed25519", id="a DSA key"),
        pytest.param(
            signed(KEY, x509.SubjectAlternativeName([x509.IPAddress(ip_network("10.0.0.0/8"))])),
            f"{UNREADABLE}: the extension subject alternative name cannot be read: it has an IP address of 8 octets",
            id="an address range",
        ),
    ],
)
def test_refused_requests(text: bytes, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_request(text)
    assert str(raised.value) == message


def test_other_requested_extensions_and_names_are_not_read() -> None:
    found = parse_request(
        signed(
            KEY,
            x509.BasicConstraints(ca=True, path_length=None),
            x509.SubjectAlternativeName([x509.DNSName("a"), x509.DirectoryName(names.subject("root").for_builder())]),
        )
    )
    assert found.alternative_names == names.AlternativeNames(dns=("a",))


def test_a_request_has_so_many_bytes_at_most() -> None:
    """Its names are read on the event loop."""
    assert parse_request(TEXT + b"#" * (MAX_REQUEST - len(TEXT))).common_name == "jane"
    many = build_request(KEY, "n1", dns=[f"a{index}.example.com" for index in range(5_000)])
    for text in (TEXT + b"#" * (MAX_REQUEST - len(TEXT) + 1), many):
        with pytest.raises(RequestError, match="more than 65536 bytes"):
            parse_request(text)


def test_a_dns_name_outside_ascii_is_refused() -> None:
    with pytest.raises(RequestError, match="xn--"):
        build_request(KEY, "x", dns=["büro.example"])


@given(st.binary(max_size=400))
def test_junk_never_crashes(data: bytes) -> None:
    for text in (data, pem.encode("CERTIFICATE REQUEST", data)):
        with pytest.raises(RequestError):
            parse_request(text)


DER = next(pem.blocks(TEXT)).der


@given(st.integers(0, len(DER) - 1), st.integers(1, 255))
def test_no_byte_of_a_request_can_be_changed(place: int, change: int) -> None:
    der = bytearray(DER)
    der[place] ^= change
    with pytest.raises(RequestError):
        parse_request(pem.encode("CERTIFICATE REQUEST", bytes(der)))


@pytest.mark.parametrize(
    ("challenge", "read"),
    [
        pytest.param("", "", id="none"),
        pytest.param("a proof", "a proof", id="a text"),
        pytest.param("x" * 256, "", id="one that is too long"),
    ],
)
def test_the_challenge_password(challenge: str, read: str) -> None:
    assert parse_request(build_request(KEY, "n1", challenge_password=challenge)).challenge_password == read


@pytest.mark.parametrize(
    "padding",
    [
        pytest.param(b"", id="a usual request"),
        pytest.param(b"#" * LARGE, id="a large text"),
        pytest.param(b"#" * (MAX_REQUEST - 1024), id="one of the greatest size"),
    ],
)
def test_a_request_is_parsed_once(padding: bytes) -> None:
    text = build_request(keys.generate_key(), "system:node:n1", ("system:nodes",)) + padding
    assert parse_request(text) is parse_request(text)


def test_a_request_without_pem_is_parsed_once() -> None:
    (block,) = pem.blocks(build_request(KEY, "jane", dns=("n1.example", "n2.example")))
    first = parse_request_der(block.der)
    assert (first.common_name, len(first.alternative_names.dns)) == ("jane", 2)
    assert parse_request_der(block.der) is first


@pytest.mark.parametrize(
    ("encoding", "error"),
    [
        pytest.param(b"", RequestError, id="nothing"),
        pytest.param(
            next(pem.blocks(request_with_bad_signature("jane"))).der, RequestSignatureError, id="another's key"
        ),
        pytest.param(next(pem.blocks(signed(rsa_key(1024)))).der, KeyRefusedError, id="a short key"),
    ],
)
def test_refused_requests_without_pem(encoding: bytes, error: type[PkiError]) -> None:
    with pytest.raises(error) as raised:
        parse_request_der(encoding)
    assert raised.type is error


def test_the_names_of_a_request_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    request = parse_request(build_request(keys.generate_key(), "jane", ("a", "b")))
    reads: list[DistinguishedName] = []
    read = names.texts

    def noted(name: DistinguishedName) -> dict[x509.ObjectIdentifier, tuple[str, ...]]:
        reads.append(name)
        return read(name)

    monkeypatch.setattr(names, "texts", noted)
    assert [(request.common_name, set(request.organizations)) for _ in range(3)] == [("jane", {"a", "b"})] * 3
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(rawcertificate.request(rawcertificate.name()), True, id="a key alone"),
        pytest.param(build_request(KEY, "jane"), False, id="a subject"),
        pytest.param(
            rawcertificate.request(rawcertificate.name(), der.encoded(der.SEQUENCE)),
            False,
            id="an attribute",
        ),
    ],
)
def test_a_request_that_has_a_key_alone(text: bytes, expected: bool) -> None:
    parse_request(text)
    assert has_key_alone(next(pem.blocks(text)).der) is expected
