"""https URLs that a configuration, a provider or a token names."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from mooring.trust.discovery.errors import UnusableClusterInfoError
from mooring.trust.discovery.trustedcluster import check_server
from mooring.trust.httpsurl import (
    dialled_host,
    https_url_problem,
    is_address,
    is_https,
    is_sent_by_tls,
    tls_name,
    url_of,
)
from mooring.trust.kubeconfig import Cluster


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("https://id.example", "", id="a host"),
        pytest.param("https://id.example:8443/realms/a", "", id="a port and a path"),
        pytest.param("https://[2001:db8::1]/", "", id="an IPv6 address"),
        pytest.param("http://id.example", "the scheme must be https", id="http"),
        pytest.param("id.example", "the scheme must be https", id="no scheme"),
        pytest.param("https://", "it is not a URL", id="no host"),
        pytest.param("https://id.example:0", "it is not a URL", id="port 0"),
        pytest.param("https://id.example:99999", "it is not a URL", id="a port above 65535"),
        pytest.param("https://[2001", "it is not a URL", id="an unclosed bracket"),
        pytest.param("https://id.example/a b", "it contains a blank", id="a space"),
        pytest.param(" https://id.example", "it begins or ends with a blank", id="a space before it"),
        pytest.param("https://id.exämple/", "it is not a URL", id="a letter that is not ASCII"),
        pytest.param("https://id.example/\n", "it begins or ends with a blank", id="a line end"),
        pytest.param("https://u@id.example", "it must not contain a user name or a password", id="a user"),
        pytest.param(
            "https://u:12/word@id.example",
            "it must not contain a user name or a password; in a path, @ is written as %40",
            id="a password with a slash",
        ),
        pytest.param("https://id.example/a%40b", "", id="an encoded @ in a path"),
        pytest.param("https://id.example/?", "it must not contain a query", id="an empty query"),
        pytest.param("https://id.example/#a", "it must not contain a fragment", id="a fragment"),
    ],
)
def test_problem_of(text: str, problem: str) -> None:
    assert https_url_problem(text) == problem


def test_a_query_and_a_fragment_can_be_allowed() -> None:
    assert https_url_problem("https://id.example/?a=b", query=True) == ""
    assert https_url_problem("https://id.example/users/a@b?a=b@c", query=True) == "", "of a provider's document"
    assert https_url_problem("https://id.example/#a?b", fragment=True) == ""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("https://a", True),
        ("HTTPS://a", True),
        ("Https://A:1/x", True),
        ("http://a", False),
        (" https://a", False),
        ("", False),
    ],
)
def test_the_scheme_has_no_case(text: str, *, wanted: bool) -> None:
    """RFC 3986 3.1."""
    assert is_https(text) is wanted
    assert not wanted or not https_url_problem(text)


@pytest.mark.parametrize("scheme", ["https", "HTTPS", "Https"])
def test_a_cluster_info_may_write_the_scheme_in_any_case(scheme: str) -> None:
    check_server("step", Cluster("", f"{scheme}://a.test:6443"))
    with pytest.raises(UnusableClusterInfoError):
        check_server("step", Cluster("", f"{scheme}x://a.test:6443"))


@pytest.mark.parametrize(
    ("url", "dialled", "verified"),
    [
        ("https://api.example:6443/a", "api.example", "api.example"),
        ("https://API.example./a", "api.example.", "api.example"),
        ("https://api.example..", "api.example..", "api.example."),
        ("https://.", ".", "."),
        ("https://192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("https://[2001:DB8::1]:6443", "2001:db8::1", "2001:db8::1"),
        ("https://[fe80::1%25eth0]:6443", "fe80::1%eth0", "fe80::1"),
        ("https://[fe80::1%eth0]", "fe80::1%eth0", "fe80::1"),
        ("https://[::ffff:192.0.2.1]:6443", "::ffff:192.0.2.1", "192.0.2.1"),
        ("https://[::FFFF:c000:201]", "::ffff:c000:201", "192.0.2.1"),
        ("https://[::192.0.2.1]", "::192.0.2.1", "::192.0.2.1"),
        ("https://", "", ""),
    ],
)
def test_the_host_that_is_dialled_and_the_one_that_is_verified(url: str, dialled: str, verified: str) -> None:
    """RFC 6066 3: no final dot in a server name. RFC 4007 6 and RFC 6874: a zone is of one machine.

    Go's `x509.VerifyHostname` compares by `net.IP.Equal`, to which an IPv4-mapped address is the IPv4 address.
    """
    host = dialled_host(urlsplit(url))
    assert (host, tls_name(host)) == (dialled, verified)


def test_a_name_for_tls_may_be_an_address_in_brackets() -> None:
    assert tls_name("[2001:db8::1]") == "2001:db8::1"


def test_the_url_of_an_endpoint_escapes_the_zone() -> None:
    assert url_of("[fe80::1%eth0]:6443") == "https://[fe80::1%25eth0]:6443"
    assert url_of("api.example.:6443") == "https://api.example.:6443"


def test_an_address_is_not_a_name() -> None:
    assert [is_address(host) for host in ("192.0.2.1", "fe80::1%eth0", "api", "")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("name", "sent"),
    [("api.test", True), ("192.0.2.1", True), ("", False), (".api.test", False), ("api\0.test", False)],
)
def test_names_that_tls_sends(name: str, sent: bool) -> None:
    assert is_sent_by_tls(name) is sent
