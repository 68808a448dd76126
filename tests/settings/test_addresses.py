"""Endpoints as flags and files write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.errors import ConfigError
from mooring.settings.addresses import Endpoint, parse_bind_address, parse_endpoint, parse_host
from mooring.settings.declaration import https_url


@pytest.mark.parametrize(
    ("text", "endpoint", "shown"),
    [
        ("node", Endpoint("node", 6443), "node:6443"),
        ("Node.Example", Endpoint("node.example", 6443), "node.example:6443"),
        ("node:443", Endpoint("node", 443), "node:443"),
        ("192.0.2.1", Endpoint("192.0.2.1", 6443), "192.0.2.1:6443"),
        ("192.0.2.1:1", Endpoint("192.0.2.1", 1), "192.0.2.1:1"),
        ("::1", Endpoint("::1", 6443), "[::1]:6443"),
        ("[::1]", Endpoint("::1", 6443), "[::1]:6443"),
        ("[2001:DB8::1]:65535", Endpoint("2001:db8::1", 65535), "[2001:db8::1]:65535"),
    ],
)
def test_an_endpoint_is_read(text: str, endpoint: Endpoint, shown: str) -> None:
    assert parse_endpoint(text, "flag") == endpoint
    assert str(endpoint) == shown
    assert endpoint.url == f"https://{shown}"
    assert parse_endpoint(shown, "flag") == endpoint


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[::1", "write an IPv6 address as"),
        ("[::1]x", "write an IPv6 address as"),
        ("node:", "number from 1 to 65535"),
        ("[::1]:", "number from 1 to 65535"),
        ("node:0", "number from 1 to 65535"),
        ("node:65536", "number from 1 to 65535"),
        ("node:abc", "number from 1 to 65535"),
        ("node:٣", "number from 1 to 65535"),
        ("https://node", "leave out https://$"),
        ("https://node:6443", "leave out https://$"),
        ("tcp://[::1]:6443/x", "leave out tcp:// and what follows the port"),
        ("", "neither a DNS name nor an IP address"),
        ("a..b", "neither a DNS name nor an IP address"),
        ("-a", "neither a DNS name nor an IP address"),
        ("a-.b", "neither a DNS name nor an IP address"),
        ("a b", "neither a DNS name nor an IP address"),
        ("a" * 64, "neither a DNS name nor an IP address"),
        (".".join(["a" * 60] * 5), "neither a DNS name nor an IP address"),
        ("fe80::1%eth0", "routable address"),
        ("root:secret@node:6443", "without a user and a password$"),
    ],
)
def test_what_is_no_endpoint_is_refused_by_the_name_of_its_flag(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        parse_endpoint(text, "some-flag")
    assert str(caught.value).startswith("some-flag: ")


@given(st.text(max_size=40))
def test_junk_is_an_endpoint_that_reads_back_or_a_config_error(text: str) -> None:
    try:
        endpoint = parse_endpoint(text, "flag")
    except ConfigError:
        return
    assert parse_endpoint(str(endpoint), "flag") == endpoint
    assert parse_host(endpoint.host, "flag") == endpoint.host


@pytest.mark.parametrize("check", [https_url, parse_endpoint, parse_host, parse_bind_address])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("u:SECRET@192.0.2.1", id="a user and a password"),
        pytest.param("https://u:SECRET@192.0.2.1", id="the same in a URL"),
        pytest.param("https://u:12/SECRET@192.0.2.1:6443", id="a password with a slash"),
        pytest.param("https://u:12?SECRET@192.0.2.1", id="a password with a question mark"),
        pytest.param("https://192.0.2.1/?token=SECRET", id="a query"),
        pytest.param("https://192.0.2.1/#SECRET", id="a fragment"),
        pytest.param("https://[u:SECRET@h", id="not a URL"),
        pytest.param("[::1?SECRET", id="half an address"),
    ],
)
def test_an_error_repeats_no_part_that_may_be_a_secret(check: Callable[[str, str], object], text: str) -> None:
    with pytest.raises(ConfigError, match=r"^key: ") as refused:
        check(text, "key")
    assert "SECRET" not in str(refused.value)
