"""Proxies of the environment, as a table of sentences of Go's `golang.org/x/net/http/httpproxy`.

The table was compared with that package (Go 1.26): 20 000 made-up triples of URL, proxy and NO_PROXY had the same result, but
for proxies that cannot be used, which Go ignores or takes for another host.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

import pytest

from mooring.trust.httpproxy import Proxy, ProxySettingError, environment_proxy, k3s_proxy, named_proxy

PROXY = "http://proxy.test:3128"
SERVER = "https://192.0.2.1:6443/api"


def found(url: str, **environ: str) -> str:
    """Return the URL of the proxy and the variable that names it; "" without a proxy."""
    proxy = environment_proxy(url, environ)
    return "" if proxy is None else f"{proxy.url} {proxy.source}"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, "", id="no variable means no proxy"),
        pytest.param({"HTTPS_PROXY": PROXY}, f"{PROXY} HTTPS_PROXY", id="HTTPS_PROXY counts for https"),
        pytest.param({"https_proxy": PROXY}, f"{PROXY} https_proxy", id="lower case counts, too"),
        pytest.param(
            {"https_proxy": "http://b", "HTTPS_PROXY": PROXY}, f"{PROXY} HTTPS_PROXY", id="upper case wins over lower"
        ),
        pytest.param(
            {"HTTPS_PROXY": "", "https_proxy": PROXY}, f"{PROXY} https_proxy", id="an empty one does not count"
        ),
        pytest.param(
            {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, "", id="HTTP_PROXY and ALL_PROXY do not count for https"
        ),
        pytest.param({"HTTPS_PROXY": "192.0.2.9:3128"}, "http://192.0.2.9:3128 HTTPS_PROXY", id="host:port means http"),
        pytest.param({"HTTPS_PROXY": "localhost:3128"}, "http://localhost:3128 HTTPS_PROXY", id="name:port means http"),
        pytest.param({"HTTPS_PROXY": "proxy"}, "http://proxy HTTPS_PROXY", id="a bare name means http"),
        pytest.param(
            {"HTTPS_PROXY": "[fd00::9]:1"}, "http://[fd00::9]:1 HTTPS_PROXY", id="IPv6 in brackets means http"
        ),
        pytest.param({"HTTPS_PROXY": "u:p@proxy:1"}, "http://u:p@proxy:1 HTTPS_PROXY", id="a user may stand before it"),
        pytest.param({"HTTPS_PROXY": "HTTP://proxy:1"}, "HTTP://proxy:1 HTTPS_PROXY", id="a scheme in capitals"),
        pytest.param({"HTTPS_PROXY": "https://proxy"}, "https://proxy HTTPS_PROXY", id="a proxy that speaks TLS"),
        pytest.param({"HTTPS_PROXY": "socks5://proxy"}, "socks5://proxy HTTPS_PROXY", id="a socks5 proxy"),
        pytest.param({"HTTPS_PROXY": PROXY, "REQUEST_METHOD": "GET"}, f"{PROXY} HTTPS_PROXY", id="CGI, https"),
    ],
)
def test_the_proxy_of_an_https_url(environ: Mapping[str, str], expected: str) -> None:
    assert found(SERVER, **environ) == expected


def test_http_proxy_counts_for_http_unless_a_cgi_program_could_have_been_given_it() -> None:
    assert found("http://192.0.2.1/", HTTP_PROXY=PROXY) == f"{PROXY} HTTP_PROXY"
    assert found("http://192.0.2.1/", HTTP_PROXY=PROXY, NO_PROXY="192.0.2.1:80", REQUEST_METHOD="GET") == ""
    with pytest.raises(ProxySettingError, match=r"^HTTP_PROXY is not used beside REQUEST_METHOD"):
        found("http://192.0.2.1/", HTTP_PROXY=PROXY, REQUEST_METHOD="GET")


@pytest.mark.parametrize(
    ("host", "no_proxy", "is_proxied"),
    [
        pytest.param("192.0.2.1", "", True, id="without NO_PROXY everything is proxied"),
        pytest.param("localhost:6443", "", False, id="localhost never is"),
        pytest.param("127.8.8.8:6443", "", False, id="a loopback address never is"),
        pytest.param("[::1]:6443", "", False, id="that of IPv6 neither"),
        pytest.param("[::ffff:127.0.0.1]:6443", "", False, id="nor in its IPv4-mapped form"),
        pytest.param("localhost.", "", True, id="localhost with a final dot is another name"),
        pytest.param("192.0.2.1", "*", False, id="* excepts everything"),
        pytest.param("192.0.2.1", "localhost, * ,example.com", False, id="* anywhere in the list, with blanks"),
        pytest.param("192.0.2.77", "192.0.2.0/24", False, id="a range"),
        pytest.param("192.0.2.77", "192.0.2.1/24", False, id="a range written with a host in it"),
        pytest.param("192.0.3.1", "192.0.2.0/24", True, id="an address outside a range"),
        pytest.param("192.0.2.77", "192.0.2.0/024", False, id="a prefix with a zero before it"),
        pytest.param("192.0.2.77", "192.0.2.0/255.255.255.0", True, id="a netmask is no prefix"),
        pytest.param("192.0.2.77", "192.0.2.0/33,192.0.2.0/,fe80::1%eth0/64", True, id="ranges that are none"),
        pytest.param("[fd00::2]:6443", "fd00::/8", False, id="a range of IPv6"),
        pytest.param("10.1.2.3", "::ffff:10.0.0.0/104", False, id="a mapped range excepts IPv4"),
        pytest.param("10.1.2.3", "::/0", True, id="every IPv6 address excepts no IPv4"),
        pytest.param("api.test", "0.0.0.0/0,::/0", True, id="a range excepts no name: none is resolved"),
        pytest.param("192.0.2.1", "192.0.2.1", False, id="an address"),
        pytest.param("192.0.2.1", "192.0.2.", True, id="a part of an address is none"),
        pytest.param("192.0.2.1:6443", "192.0.2.1:6443", False, id="an address with the port of the URL"),
        pytest.param("192.0.2.1", "192.0.2.1:443", False, id="443 is the port of a URL without one"),
        pytest.param("192.0.2.1", "192.0.2.1:6443", True, id="an address with another port"),
        pytest.param("[fd00::2]:6443", "fd00::2", False, id="an IPv6 address without brackets"),
        pytest.param("[fd00::2]:6443", "FD00:0:0::2", False, id="in another spelling"),
        pytest.param("[fd00::2]:6443", "[fd00::2]:6443", False, id="in brackets, with the port"),
        pytest.param("[fd00::2]:6443", "[fd00::2]:443", True, id="in brackets, with another port"),
        pytest.param("[fd00::2]:6443", "[fd00::2]", True, id="in brackets without a port it is a name to Go"),
        pytest.param("[::ffff:192.0.2.1]", "192.0.2.1", False, id="an IPv4-mapped address is that of IPv4"),
        pytest.param("[fe80::1%25eth0]:6443", "fe80::/10", False, id="the zone of an address does not matter"),
        pytest.param("example.com", "example.com", False, id="a domain excepts its name"),
        pytest.param("a.b.example.com", "example.com", False, id="and the names below it"),
        pytest.param("notexample.com", "example.com", True, id="not a name that ends like it"),
        pytest.param("Example.COM", "eXample.com", False, id="in any case"),
        pytest.param("a.example.com", ".example.com", False, id=".domain excepts the names below it"),
        pytest.param("example.com", ".example.com", True, id=".domain does not except its own name"),
        pytest.param("a.example.com", "*.example.com", False, id="*.domain excepts the names below it"),
        pytest.param("example.com", "*.example.com", True, id="*.domain does not except its own name"),
        pytest.param("a.example.com:6443", "example.com:6443", False, id="a domain with the port of the URL"),
        pytest.param("a.example.com:6443", ".example.com:443", True, id="a domain with another port"),
        pytest.param("example.com.", "example.com", True, id="a final dot is a part of the name"),
        pytest.param("api.test", " other.test ,, api.test ", False, id="blanks and empty entries"),
        pytest.param("api.test", ":443,[]:443,[,a:b:c", True, id="entries without a host"),
        pytest.param("192.0.2.1", "2.1,.1,1", True, id="a domain never matches an address"),
        pytest.param("bücher.example", "BÜCHER.example", False, id="a name outside ASCII"),
        pytest.param("xn--bcher-kva.example", "bücher.example", False, id="is that of IDNA"),
        pytest.param("api.test", "bü" + "c" * 70, True, id="a name that IDNA does not have"),
    ],
)
def test_no_proxy(host: str, no_proxy: str, is_proxied: bool) -> None:
    url = f"https://{host}/version"
    assert found(url, HTTPS_PROXY=PROXY, NO_PROXY=no_proxy) == (f"{PROXY} HTTPS_PROXY" if is_proxied else "")
    assert found(url, HTTPS_PROXY=PROXY, no_proxy=no_proxy) == (f"{PROXY} HTTPS_PROXY" if is_proxied else "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ftp://user:secret@proxy", "it is not an http, https or socks5 URL"),
        ("socks5h://user:secret@proxy", "it is not an http, https or socks5 URL"),
        ("http://", "it is not an http, https or socks5 URL"),
        ("//secret", "it is not an http, https or socks5 URL"),
        ("http://user:secret@", "it has no host, or the port 0"),
        ("http://user:secret@proxy:0", "it has no host, or the port 0"),
        ("http://user:secret@proxy:x", "it is not a URL; in a user name and a password, special characters are written as %40"),
        ("http://user:sec#ret@proxy:1", "it is not a URL; in a user name and a password, special characters are written as %40"),
        ("http://[::1", "it is not a URL; in a user name and a password, special characters are written as %40"),
        ("http://user:12/secret@proxy:1", "it is not a URL; in a user name and a password, special characters are written as %40"),
        ("http://user:12?secret@proxy:1", "it is not a URL; in a user name and a password, special characters are written as %40"),
        ("http://user:12#secret@proxy:1", "it is not a URL; in a user name and a password, special characters are written as %40"),
        ("user:12/secret@proxy:1", "it is not a URL; in a user name and a password, special characters are written as %40"),
        ("http://user:sec%ret@proxy:1", "it is not a URL; in a user name and a password, special characters are written as %40"),
        (" http://user:secret@proxy", "it has a blank or a control character"),
        ("http://user:secret@proxy\n", "it has a blank or a control character"),
    ],
)  # fmt: skip
def test_a_proxy_that_cannot_be_used_is_an_error_that_names_its_variable_and_not_its_value(
    text: str, reason: str
) -> None:
    with pytest.raises(ProxySettingError) as error:
        environment_proxy(SERVER, {"https_proxy": text})
    assert str(error.value) == f"https_proxy: {reason}"
    assert environment_proxy(SERVER, {"https_proxy": text, "NO_PROXY": "192.0.2.0/24"}) is None


def test_a_proxy_is_shown_without_its_password() -> None:
    proxy = named_proxy("http://user:secret@proxy.test:3128/path", "proxy-url")
    assert str(proxy) == "the proxy http://proxy.test:3128 (from proxy-url)"
    assert "secret" not in repr(proxy)


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("user:s%40cret@", "407 not s@cret"),
        ("user:s%40cret@", "407 not s%40cret"),
        ("user:s%40cret@", "407 not dXNlcjpzQGNyZXQ="),
        (":s%40cret@", "407 not OnNAY3JldA=="),
        ("t0%2Fken@", "407 not t0/ken"),
        ("t0%2Fken@", "407 not t0%2Fken"),
        ("t0%2Fken@", "407 not dDAva2VuOg=="),
    ],
)
def test_a_refusal_that_repeats_a_credential_is_not_quoted_in_any_form(user: str, said: str) -> None:
    proxy = named_proxy(f"http://{user}proxy.test:3128", "HTTPS_PROXY")
    assert proxy.refusal(said) == "the proxy http://proxy.test:3128 (from HTTPS_PROXY) refuses"
    assert proxy.refusal("407 not you").endswith(") refuses: 407 not you")
    assert named_proxy("http://@proxy.test", "p").refusal(said).endswith(f") refuses: {said}")


def test_a_kubeconfig_names_a_proxy_by_a_whole_url() -> None:
    with pytest.raises(ProxySettingError, match=r"^proxy-url: it is not an http, https or socks5 URL$"):
        named_proxy("proxy:3128", "proxy-url")


@pytest.mark.parametrize("allowed", ["1", "t", "T", "TRUE", "true", "True"])
def test_a_server_of_k3s_is_reached_without_proxy_unless_the_variable_of_k3s_allows_it(allowed: str) -> None:
    proxied = {"HTTPS_PROXY": PROXY}
    for value in ("", "0", "false", "yes", "tRUE"):
        assert k3s_proxy(SERVER, {**proxied, "K3S_AGENT_HTTP_PROXY_ALLOWED": value}) is None
    assert k3s_proxy(SERVER, {**proxied, "K3S_AGENT_HTTP_PROXY_ALLOWED": allowed}) == Proxy(PROXY, "HTTPS_PROXY")
    assert k3s_proxy("https://127.0.0.1:6444", {**proxied, "K3S_AGENT_HTTP_PROXY_ALLOWED": allowed}) is None


@pytest.mark.parametrize(
    ("url", "said", "text"),
    [
        ("http://proxy.test", "403 Forbidden", ": 403 Forbidden"),
        ("http://proxy.test", "403 blocked \x1b[31mby\tpolicy", ": 403 blocked [31mby policy"),
        ("http://proxy.test", "407 " + "x" * 5000, ": 407 " + "x" * 196),
        ("http://proxy.test", "", ""),
        ("http://jane@proxy.test", "407 jane", ""),
        ("http://j%40ne:p%3Assword@proxy.test", "407 j@ne", ": 407 j@ne"),
        ("http://j%40ne:p%3Assword@proxy.test", "407 not p:ssword", ""),
        ("http://j%40ne:p%3Assword@proxy.test", f"407 not Basic {b64encode(b'j@ne:p:ssword').decode()}", ""),
    ],
)
def test_the_refusal_of_a_proxy_is_one_line_without_the_credential(url: str, said: str, text: str) -> None:
    assert Proxy(url, "HTTPS_PROXY").refusal(said) == f"the proxy http://proxy.test (from HTTPS_PROXY) refuses{text}"
