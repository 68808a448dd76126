"""https URLs that a configuration, a provider or a token names."""

from __future__ import annotations

import pytest

from mooring.trust.discovery.errors import UnusableClusterInfoError
from mooring.trust.discovery.trustedcluster import check_server
from mooring.trust.httpsurl import https_url_problem, is_https
from mooring.trust.kubeconfig.model import Cluster


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
        pytest.param("https://id.example/a b", "it is not a URL", id="a space"),
        pytest.param("https://id.exämple/", "it is not a URL", id="a letter that is not ASCII"),
        pytest.param("https://id.example/\n", "it is not a URL", id="a line end"),
        pytest.param("https://u@id.example", "it must not contain a user name or a password", id="a user"),
        pytest.param("https://id.example/?", "it must not contain a query", id="an empty query"),
        pytest.param("https://id.example/#a", "it must not contain a fragment", id="a fragment"),
    ],
)
def test_problem_of(text: str, problem: str) -> None:
    assert https_url_problem(text) == problem


def test_a_query_and_a_fragment_can_be_allowed() -> None:
    assert https_url_problem("https://id.example/?a=b", query=True) == ""
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
