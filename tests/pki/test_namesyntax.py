"""Texts of URIs and of constraints: the verdicts are those of Go 1.27 on certificates with them."""

from __future__ import annotations

import pytest

from mooring.pki.x509 import extensions

GOOD = (
    "http://a.b/c", "http://[::1]/", "http://[::1]:8/", "spiffe://td/x", "http://a:80/", "http://a:/", "urn:x:y", "//h", "///x",
    "//u@h:1", "http://u@h/", "http://u:p@h:1/", "", "x:%", "mailto:a@b", "http://-/", "http:///x", "a:b", "./a", "./a:b",
    "/a:b", "http://a_b/", "http://*.b/", "*", "?x", "x#%41", "http://h?%zz", "x://a:b:1/", "http://a%25b/", "/%41",
)  # fmt: skip
BAD = (
    "http://[::1", "http://[x]/", "http://x[::1]/", "http://[::1]a/", "http://[192.0.2.1]/", ":", "%zz", "/%4", "http://a b/",
    "http://a.b./", "http://a..b/", "http://.b/", "a:b c\x7f", "http://%41/", "http://a:b/", "x://a:b/", "http://a:1:2/", "1http:x",
    "1a:b", "http://\x7f/", "http://a\\b/", "a\x01b", "http://u%zz@h/", "#%zz", "http://u[@h/", "http://a%20b/", "http://h/%",
    "http://a%c3%bc/",
)  # fmt: skip


@pytest.mark.parametrize(("text", "verdict"), [*((one, True) for one in GOOD), *((one, False) for one in BAD)])
def test_uris(text: str, verdict: bool) -> None:
    assert extensions.is_uri(text) is verdict


def test_a_zone_in_a_uri_is_refused_though_go_reads_it() -> None:
    assert not extensions.is_uri("http://[fe80::1%25eth0]/")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("", True),
        ("a.b", True),
        (".a.b", True),
        ("a", True),
        ("a.b.", False),
        (".", False),
        ("..a", False),
        ("a b", False),
    ],
)
def test_domains_of_constraints(text: str, verdict: bool) -> None:
    assert extensions.is_domain_constraint(text) is verdict
    assert extensions.is_uri_constraint(text) is verdict
    assert extensions.is_email_constraint(text) is verdict


@pytest.mark.parametrize("text", ["192.0.2.1", "2001:db8::1"])
def test_a_constraint_on_uris_is_no_address(text: str) -> None:
    assert not extensions.is_uri_constraint(text)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("a@b", True), ("a.b+c@d.e", True), ("a@", True), ('"a b"@c', True), ('"a\\"b"@c', True), ("a\\@b@c", True),
        ("a@@b", True), ("@b", False), (".a@b", False), ("a.@b", False), ("a..b@c", False), ("a b@c", False), ("a@b.", False),
        ("a@.b", False), ('"a@b', False), ('"a"b@c', False), ("a\\.\\.b@c", False),
    ],
)  # fmt: skip
def test_addresses_of_constraints(text: str, verdict: bool) -> None:
    assert extensions.is_email_constraint(text) is verdict
