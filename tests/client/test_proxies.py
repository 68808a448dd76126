"""Connections by proxies, over real sockets: which one is asked, in which words, and what a failure says."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooring.client.cluster import ClusterClient
from mooring.client.http.requests import fetch
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.discovery.fetch import cluster_info_request, connection_error
from mooring.trust.httpexchange import CERTIFICATE, PROXY, HttpFailure, HttpRequest, HttpResponse, Trust
from mooring.trust.kubeconfig import Cluster, ExecPlugin, KubeconfigUser
from tests.support import peer
from tests.support.connectproxy import ConnectProxy, connect_proxy
from tests.support.ports import free_port
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA()
VARIABLES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "K3S_AGENT_HTTP_PROXY_ALLOWED")
REFUSAL = b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectProxy]:
    """A proxy of the environment that leads to a server with the names of the tests."""
    pair = CA.server("api.test", "192.0.2.1", "fd00::2", "fe80::1")
    with peer.http_peer(pair=pair) as server, connect_proxy(server.port) as running:
        monkeypatch.setenv("HTTPS_PROXY", running.url.replace("//", "//user:s%40cret@"))
        yield running


def got(url: str, trust: Trust | None = None) -> HttpResponse | HttpFailure:
    request = HttpRequest(trust or Trust(CA.certificate_pem), url=url, timeout=5)
    return asyncio.run(fetch(request, SystemClock()))


def failed(url: str, trust: Trust | None = None) -> HttpFailure:
    answer = got(url, trust)
    assert isinstance(answer, HttpFailure), answer
    return answer


@pytest.mark.parametrize(
    ("url", "target"),
    [
        pytest.param("https://192.0.2.1:6443/a", "192.0.2.1:6443", id="an address"),
        pytest.param("https://api.test", "api.test:443", id="a name, which the proxy resolves"),
        pytest.param("https://api.test.:6443", "api.test.:6443", id="a name with a final dot"),
        pytest.param("https://[fd00::2]:6443", "[fd00::2]:6443", id="IPv6 in brackets (RFC 9112 3.2.3)"),
        pytest.param("https://[fe80::1%25eth0]:6443", "[fe80::1]:6443", id="the zone stays on this machine"),
    ],
)
def test_the_tunnel_that_is_asked_for(url: str, target: str, proxy: ConnectProxy) -> None:
    assert isinstance(got(url), HttpResponse)
    (head,) = proxy.heads
    assert head.startswith(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n")
    assert "Proxy-Authorization: Basic dXNlcjpzQGNyZXQ=\r\n" in head


def test_discovery_and_the_client_of_a_kubeconfig_ask_the_same_proxy(
    proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        cluster = Cluster("c", "https://192.0.2.1:6443", CA.certificate_pem)
        async with ClusterClient(cluster, KubeconfigUser("u", token=Secret("t")), SystemClock()) as client:
            await client.get_path("/version")

    asyncio.run(ask())
    assert isinstance(got("https://192.0.2.1:6443"), HttpResponse)
    assert proxy.targets == ["192.0.2.1:6443"] * 2


def test_the_proxy_of_a_kubeconfig_comes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "*")
    with peer.http_peer(pair=CA.server("api.test")) as server, connect_proxy(server.port) as running:
        assert isinstance(got("https://api.test", Trust(CA.certificate_pem, proxy_url=running.url)), HttpResponse)
    assert running.targets == ["api.test:443"]


def test_servers_of_k3s_are_asked_directly_unless_that_is_allowed(
    proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_k3s = Trust(CA.certificate_pem, is_k3s=True)
    assert failed("https://nowhere.invalid", of_k3s).message.startswith("the name cannot be resolved")
    assert proxy.heads == []
    monkeypatch.setenv("K3S_AGENT_HTTP_PROXY_ALLOWED", "true")
    assert isinstance(got("https://api.test", of_k3s), HttpResponse)
    assert proxy.targets == ["api.test:443"]


@pytest.mark.parametrize("status", ["403 Forbidden", "407 Proxy Authentication Required", "502 Bad Gateway"])
def test_the_refusal_of_a_proxy_is_not_one_of_the_server(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect_proxy(refusal=REFUSAL % status.encode()) as running:
        monkeypatch.setenv("https_proxy", running.url.replace("//", "//user:secret@"))
        failure = failed("https://api.test:6443")
    assert failure == HttpFailure(PROXY, f"the proxy {running.url} (from https_proxy) refuses: {status}", unsent=True)
    said = str(connection_error("asking https://api.test:6443", failure))
    assert said == (
        f"asking https://api.test:6443: {failure.message}; check the proxy, and the setting that names it: NO_PROXY excepts "
        "servers from a variable alone"
    )


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("403 blocked \x1b[31mby\tpolicy", " refuses: 403 blocked [31mby policy"),
        (f"407 {'x' * 5000}", f" refuses: 407 {'x' * 196}"),
        ("407 not p@ssword", " refuses"),
        (f"407 not Basic {b64encode(b'jane:p@ssword').decode()}", " refuses"),
    ],
)
def test_the_refusal_of_a_proxy_is_one_line_without_the_credential(said: str, text: str) -> None:
    with connect_proxy(refusal=REFUSAL % said.encode()) as running:
        trust = Trust(CA.certificate_pem, proxy_url=running.url.replace("//", "//jane:p%40ssword@"))
        assert failed("https://api.test:6443", trust).message == f"the proxy {running.url} (from proxy-url){text}"


def test_a_plugin_of_a_discovery_document_is_told_the_server_and_its_proxy(tmp_path: Path) -> None:
    """client-go's `ConvertExecCluster`: `server` and `proxy-url` as the kubeconfig has them."""
    told = tmp_path / "told"
    script = f"printenv KUBERNETES_EXEC_INFO > {told}; exit 1"
    plugin = ExecPlugin(
        "sh",
        "client.authentication.k8s.io/v1",
        ("-c", script),
        provide_cluster_info=True,
        interactive_mode="Never",
    )
    trust = Trust(CA.certificate_pem, proxy_url="http://proxy.test:3128")
    request = cluster_info_request("https://api.test/prefix", trust, KubeconfigUser("u", exec=plugin))
    with pytest.raises(ConfigError, match="exec plugin"):
        asyncio.run(fetch(request, SystemClock()))
    cluster = json.loads(told.read_text())["spec"]["cluster"]
    assert (cluster["server"], cluster["proxy-url"]) == ("https://api.test/prefix", "http://proxy.test:3128")


def test_a_proxy_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("HTTPS_PROXY", f"user:secret@{url}")
    failure = failed("https://192.0.2.1:6443")
    assert (failure.kind, failure.message) == (
        PROXY, f"the proxy http://{url} (from HTTPS_PROXY) does not connect: connection refused"
    )  # fmt: skip


def test_a_server_that_fails_behind_a_proxy_is_shown_with_it(proxy: ConnectProxy) -> None:
    failure = failed("https://other.test:6443")
    assert (failure.kind, failure.message) == (
        CERTIFICATE,
        "hostname mismatch, certificate is not valid for 'other.test', by the proxy "
        f"{proxy.url} (from HTTPS_PROXY)",
    )  # fmt: skip


def test_a_proxy_that_cannot_be_used_ends_the_command_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "ftp://user:secret@proxy")

    async def ask() -> None:
        cluster = Cluster("c", "https://192.0.2.1:6443", CA.certificate_pem)
        async with ClusterClient(cluster, KubeconfigUser("u"), SystemClock()) as client:
            await client.get_path("/version")

    for call in (lambda: asyncio.run(ask()), lambda: got("https://192.0.2.1:6443")):
        with pytest.raises(ConfigError, match=r"^HTTPS_PROXY: it is not an http, https or socks5 URL$"):
            call()


@pytest.mark.parametrize("url", ["ftp://user:secret@proxy", "proxy:3128", "http://[::1", "http://user:s/ecret@proxy"])
def test_a_proxy_of_a_way_that_cannot_be_used_fails_that_way_alone(url: str) -> None:
    """cluster-info may name it, and another address may be reached."""
    failure = failed("https://192.0.2.1:6443", Trust(CA.certificate_pem, proxy_url=url))
    assert (failure.kind, failure.unsent) == (PROXY, True)
    assert failure.message.startswith("proxy-url: it is not a")
    assert "ecret" not in failure.message


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_address_whose_proxy_cannot_be_used_is_left_for_the_next(method: str) -> None:
    async def ask(url: str) -> None:
        bad = Cluster("c", "https://192.0.2.1:6443", CA.certificate_pem, proxy_url="ftp://proxy")
        good = Cluster("d", url, CA.certificate_pem)
        async with ClusterClient(bad, KubeconfigUser("u"), SystemClock(), others=(good,)) as client:
            await (client.get_path("/version") if method == "GET" else client.post_path("/version", {}))
            assert [one.name for one in client.clusters] == ["d", "c"]

    with peer.http_peer(pair=CA.server("127.0.0.1")) as server:
        asyncio.run(ask(server.url))


def test_a_proxy_url_that_cannot_be_used_names_its_cluster() -> None:
    async def ask() -> None:
        cluster = Cluster("c", "https://192.0.2.1:6443", CA.certificate_pem, proxy_url="proxy:3128")
        async with ClusterClient(cluster, KubeconfigUser("u"), SystemClock()) as client:
            await client.get_path("/version")

    with pytest.raises(ConfigError, match=r'^the proxy-url of cluster "c": it is not an http, https or socks5 URL$'):
        asyncio.run(ask())
