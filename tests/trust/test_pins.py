"""Pins of CAs.

Source: docs/protocol/discovery-and-join.md#discovery-by-token.
"""

from __future__ import annotations

import hashlib
import re

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.trust.discovery import pins
from mooring.trust.discovery.errors import PinMismatchError, UnusableClusterInfoError
from tests.support.discoverypeer import CA, OTHER_CA

HEX = "ab" * 32


@pytest.mark.parametrize(
    "text",
    [f"sha256:{HEX}", f"SHA256:{HEX}", f"Sha256:{HEX.upper()}"],
    ids=["lower case", "a prefix in capitals", "hex in capitals"],
)
def test_a_pin_is_read_in_any_case_and_written_in_lower_case(text: str) -> None:
    assert str(pins.parse_pin(text)) == f"sha256:{HEX}"


@pytest.mark.parametrize("credential", ["server:hunter2", "abcdef.0123456789abcdef"])
def test_a_token_in_place_of_a_pin_is_not_repeated(credential: str) -> None:
    with pytest.raises(pins.PinError) as caught:
        pins.parse_pin(f"K10{HEX}::{credential}")
    assert str(caught.value) == (
        "a token stands where a CA hash is expected: the form is sha256:<64 hexadecimal digits>"
    )


@given(st.binary(min_size=32, max_size=32))
def test_parse_and_print_are_inverse(digest: bytes) -> None:
    assert pins.parse_pin(str(pins.Pin(digest))) == pins.Pin(digest)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the form is"),
        (HEX, "the form is"),
        (f"sha256:{HEX}:", "the form is"),
        (f"sha512:{HEX}", 'unknown algorithm "sha512"'),
        (f":{HEX}", 'unknown algorithm ""'),
        ("sha256:", "exactly 64"),
        (f"sha256:{HEX[2:]}", "exactly 64"),
        (f"sha256:{HEX}ab", "exactly 64"),
        (f"sha256:{HEX[1:]}g", "exactly 64"),
        (f"sha256:{HEX}\n", "exactly 64"),
        (f"sha256: {HEX[1:]}", "exactly 64"),
    ],
)
def test_no_pin_is_read_from(text: str, message: str) -> None:
    with pytest.raises(pins.PinError, match=message):
        pins.parse_pin(text)


def test_the_pin_is_the_hash_of_the_public_key_info() -> None:
    (certificate,) = certificates(CA)
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert str(pins.pin_of(certificate)) == "sha256:" + hashlib.sha256(spki).hexdigest()


def test_a_bundle_has_a_pin_for_each_certificate_in_its_order() -> None:
    assert pins.pins_of(CA + OTHER_CA) == (pins.pins_of(CA)[0], pins.pins_of(OTHER_CA)[0])


def test_a_text_without_certificates_has_no_pins() -> None:
    with pytest.raises(PkiError):
        pins.pins_of(b"")


def test_only_the_pinned_certificates_of_a_bundle_are_returned() -> None:
    found = pins.check_pins(OTHER_CA + CA, pins.pins_of(CA))
    assert found == certificates(CA)


@pytest.mark.parametrize("given_pins", [(), pins.pins_of(OTHER_CA)], ids=["no pins at all", "the pin of another CA"])
def test_nothing_is_trusted_with(given_pins: tuple[pins.Pin, ...]) -> None:
    with pytest.raises(PinMismatchError, match=re.escape(str(pins.pins_of(CA)[0]))):
        pins.check_pins(CA, given_pins)


@pytest.mark.parametrize("ca_pem", [b"", b"junk", CA[:-40]], ids=["nothing", "junk", "a block without its end"])
def test_a_ca_that_cannot_be_read_is_refused(ca_pem: bytes) -> None:
    with pytest.raises(UnusableClusterInfoError, match="cannot be read"):
        pins.check_pins(ca_pem, pins.pins_of(CA))


def test_a_key_that_go_refuses_has_no_pin() -> None:
    der = certificates(CA)[0].der
    point = der.index(b"\x03\x42\x00\x04") + 3
    with pytest.raises(pins.PinError, match="cannot be pinned: a compressed point"):
        pins.pin_of(Certificate(der[:point] + b"\6" + der[point + 1 :]))


def test_a_key_of_an_unknown_kind_has_no_pin() -> None:
    # the OID of the public key (1.2.840.10045.2.1) replaced by one that nobody assigned, same length
    der = certificates(CA)[0].der
    known, unknown = bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8648ce3d027f")
    assert known in der
    certificate = Certificate(der.replace(known, unknown))
    with pytest.raises(pins.PinError, match="unknown kind"):
        pins.pin_of(certificate)
    with pytest.raises(UnusableClusterInfoError, match="unknown kind"):
        pins.check_pins(certificates_pem([certificate]), pins.pins_of(CA))
