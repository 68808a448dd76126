"""Canonical forms of names and addresses: what is the same to a verifier is the same here."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from mooring.pki.keys import generate_key
from mooring.pki.x509.canonicalnames import address_fault, canonical, canonical_address, name_fault
from mooring.pki.x509.names import alternative_names
from mooring.pki.x509.requests import build_request, parse_request
from tests.support.testca import ThrowawayCA


@pytest.mark.parametrize(
    ("text", "form"),
    [
        pytest.param("::ffff:192.0.2.10", "192.0.2.10", id="an IPv4-mapped address"),
        pytest.param("::FFFF:C000:020A", "192.0.2.10", id="an IPv4-mapped address in digits"),
        pytest.param("2001:DB8:0::1", "2001:db8::1", id="an IPv6 address"),
        pytest.param("API.Example.com.", "api.example.com", id="a DNS name"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_each_name_has_one_form(text: str, form: str) -> None:
    assert str(canonical(text)) == form


@pytest.mark.parametrize(
    "text",
    ["192.0.2.1", "10.0.0.1", "127.0.0.1", "169.254.0.1", "240.0.0.1", "2001:db8::1", "fd00::1", "fe80::1", "::1"],
)
def test_addresses_that_a_certificate_may_have(text: str) -> None:
    assert address_fault(ip_address(text)) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.0.0.0", "not the address of a machine"),
        ("0.1.2.3", "not the address of a machine"),
        ("224.0.0.1", "not the address of a machine"),
        ("255.255.255.255", "not the address of a machine"),
        ("::", "not the address of a machine"),
        ("ff02::1", "not the address of a machine"),
        ("fe80::1%eth0", "zone"),
        ("::192.0.2.10", "IPv4-compatible"),
        ("::ffff:0:192.0.2.10", "IPv4-translated"),
        ("64:ff9b::192.0.2.10", "NAT64"),
        ("64:ff9b:1::192.0.2.10", "NAT64"),
        ("2001:0:c000:20a::", "Teredo"),
        ("2002:c000:20a::1", "6to4"),
        ("fe80::5efe:192.0.2.10", "ISATAP"),
        ("2001:db8::200:5efe:192.0.2.10", "ISATAP"),
    ],
)
def test_addresses_that_a_certificate_may_not_have(text: str, why: str) -> None:
    assert why in address_fault(ip_address(text))


@pytest.mark.parametrize("text", ["n1", "N1", "a-1.example.com", "xn--bcher-kva.example", "1.example", "a" * 63])
def test_dns_names(text: str) -> None:
    assert name_fault(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="an empty name"),
        pytest.param("a..b", id="an empty label"),
        pytest.param(".a", id="an empty first label"),
        pytest.param("a.", id="a trailing dot"),
        pytest.param("a\0.example.com", id="NUL"),
        pytest.param("a b", id="a space"),
        pytest.param("a_b", id="an underscore"),
        pytest.param("-a", id="a hyphen at the begin"),
        pytest.param("a-.b", id="a hyphen at the end"),
        pytest.param("*.a", id="a wildcard"),
        pytest.param("bücher.example", id="letters outside ASCII"),
        pytest.param("kubernetes\u2024default", id="a sign that looks like a dot"),
        pytest.param("\u212aubernetes", id="a letter that is k in lower case"),
        pytest.param("a" * 64, id="a long label"),
        pytest.param(".".join(["a" * 49] * 6), id="a long name"),
        pytest.param("192.0.2.10", id="an IPv4 address"),
        pytest.param("127.1", id="a short IPv4 address"),
        pytest.param("0x7f000001", id="an IPv4 address in hexadecimal"),
        pytest.param("3221225994", id="an IPv4 address as a number"),
        pytest.param("a.0x", id="a last label that URLs read as a number"),
        pytest.param("::1", id="an IPv6 address"),
        pytest.param("[::1]", id="an IPv6 address in brackets"),
    ],
)
def test_what_is_not_a_dns_name(text: str) -> None:
    assert name_fault(text)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_and_its_mapped_form_are_one(address: IPv4Address) -> None:
    mapped = IPv6Address(b"\0" * 10 + b"\xff\xff" + address.packed)
    assert canonical_address(mapped) == canonical_address(address) == canonical(str(mapped)) == address


EMBEDDINGS = (
    lambda v4: b"\0" * 12 + v4,
    lambda v4: b"\0" * 10 + b"\xff\xff" + v4,
    lambda v4: b"\0" * 8 + b"\xff\xff\0\0" + v4,
    lambda v4: bytes.fromhex("0064ff9b") + b"\0" * 8 + v4,
    lambda v4: bytes.fromhex("2002") + v4 + b"\0" * 10,
    lambda v4: bytes.fromhex("20010000") + v4 + b"\0" * 8,
    lambda v4: bytes.fromhex("fe80000000000000") + bytes.fromhex("00005efe") + v4,
)


@given(st.ip_addresses(v=4), st.sampled_from(EMBEDDINGS))
def test_no_embedded_ipv4_address_passes_as_another_one(address: IPv4Address, embed: object) -> None:
    form = canonical_address(IPv6Address(embed(address.packed)))  # type: ignore[operator]  # the table has functions of each kind
    assert form == address or form == ip_address("::1") or address_fault(form)


@given(st.text(alphabet="abZ0-._*\0x1K\u212a ", max_size=12))
def test_a_dns_name_is_the_same_after_every_conversion(text: str) -> None:
    if not name_fault(text):
        assert text.isascii()
        assert canonical(text) == text.lower()
        with pytest.raises(ValueError, match="does not appear to be"):
            ip_address(text)


def test_a_request_has_each_address_once_and_in_one_form() -> None:
    mapped, plain = ip_address("::ffff:192.0.2.10"), ip_address("192.0.2.10")
    request = parse_request(build_request(generate_key(), "n1", ips=(mapped, plain)))
    assert request.alternative_names.ips == (plain,)


def test_the_names_of_a_certificate_are_read_in_one_form() -> None:
    listed = x509.SubjectAlternativeName([x509.IPAddress(ip_address("::ffff:192.0.2.10"))])
    certificate = ThrowawayCA().custom("n1", extensions=[(listed, False)]).certificate
    assert alternative_names(certificate.extensions).ips == (ip_address("192.0.2.10"),)
