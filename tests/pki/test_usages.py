"""Key usages: words, bits and purposes."""

from __future__ import annotations

import pytest
from cryptography import x509

from mooring.pki.errors import IssueError
from mooring.pki.x509 import profiles
from tests.support.testca import ThrowawayCA


def test_every_word_means_a_bit_or_a_purpose_and_nothing_else_does() -> None:
    assert set(profiles.USAGES) == set(profiles.KEY_USAGES) | set(profiles.EXTENDED_USAGES)
    assert len(profiles.USAGES) == len(set(profiles.USAGES)) == 23


@pytest.mark.parametrize(
    ("words", "bits"),
    [
        pytest.param(["signing", "digital signature"], {"digital_signature"}, id="signing is digital signature"),
        pytest.param(["key encipherment", "client auth"], {"key_encipherment"}, id="purposes are not bits"),
        pytest.param(["key agreement", "encipher only"], {"key_agreement", "encipher_only"}, id="encipher only"),
        pytest.param(["key agreement", "decipher only"], {"key_agreement", "decipher_only"}, id="decipher only"),
        pytest.param(
            ["cert sign", "crl sign", "content commitment", "data encipherment"],
            {"key_cert_sign", "crl_sign", "content_commitment", "data_encipherment"},
            id="the others",
        ),
    ],
)
def test_bits(words: list[str], bits: set[str]) -> None:
    extension = profiles.key_usage(words)
    assert extension is not None
    certificate = ThrowawayCA().custom("x", extensions=[(extension, True)]).certificate
    assert certificate.extensions.key_usage == frozenset(bits)


def test_without_bits_there_is_no_extension() -> None:
    assert profiles.key_usage(["client auth"]) is None
    assert profiles.extended_key_usage(["digital signature"]) is None


def test_purposes_come_in_gos_order_and_once() -> None:
    extension = profiles.extended_key_usage(
        ["netscape sgc", "s/mime", "client auth", "email protection", "server auth", "any"]
    )
    assert extension is not None
    assert [oid.dotted_string for oid in extension] == [
        "2.5.29.37.0", "1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2", "1.3.6.1.5.5.7.3.4", "2.16.840.1.113730.4.1"
    ]  # fmt: skip


# RFC 5280 4.2.1.12, RFC 4945 and Microsoft's and Netscape's arcs, as OpenSSL's object table lists them
@pytest.mark.parametrize(
    ("word", "oid"),
    [
        ("code signing", "1.3.6.1.5.5.7.3.3"),
        ("ipsec end system", "1.3.6.1.5.5.7.3.5"),
        ("ipsec tunnel", "1.3.6.1.5.5.7.3.6"),
        ("ipsec user", "1.3.6.1.5.5.7.3.7"),
        ("timestamping", "1.3.6.1.5.5.7.3.8"),
        ("ocsp signing", "1.3.6.1.5.5.7.3.9"),
        ("microsoft sgc", "1.3.6.1.4.1.311.10.3.3"),
    ],
)
def test_purposes(word: str, oid: str) -> None:
    assert profiles.extended_key_usage([word]) == x509.ExtendedKeyUsage([x509.ObjectIdentifier(oid)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["client auth", "fly"], 'unrecognised key usage "fly"', id="a word outside the list"),
        pytest.param(["encipher only"], "only together with", id="encipher only alone"),
        pytest.param(["decipher only", "server auth"], "only together with", id="decipher only alone"),
    ],
)
def test_what_cannot_be_stated_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(IssueError, match=message):
        profiles.check(words)


def test_every_usage_can_be_encoded() -> None:
    profiles.check(profiles.USAGES)
    bits, purposes = profiles.key_usage(profiles.USAGES), profiles.extended_key_usage(profiles.USAGES)
    assert bits is not None
    assert purposes is not None
    ThrowawayCA().custom("x", extensions=[(bits, True), (purposes, False)])
