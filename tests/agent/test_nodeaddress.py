"""Address of the Node: the one from which the machine reaches its server."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from mooring.agent.node import address_towards
from mooring.client.sourceaddress import source_address
from mooring.trust.kubeconfig import Cluster

ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737)."""


@pytest.fixture
def towards_elsewhere() -> str:
    """Address from which this machine would reach ELSEWHERE. Connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 443))
        except OSError:
            pytest.skip("this machine has no default route")
        address: str = probe.getsockname()[0]
        return address


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_that_towards_the_server() -> None:
    assert address_towards(Cluster("", "https://127.0.0.1:6443")) == "127.0.0.1"
    assert address_towards(Cluster("", "https://server.invalid:6443")) == ""


def test_it_is_no_temporary_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source: RFC 8981; IPV6_ADDR_PREFERENCES and IPV6_PREFER_SRC_PUBLIC of linux/in6.h (RFC 5014)."""
    options: list[tuple[int, int, int]] = []

    class Recorded(socket.socket):
        def setsockopt(self, *given: Any) -> None:
            options.append(given)
            super().setsockopt(*given)

        def connect(self, address: Any) -> None:
            assert options, "the option counts when the address is chosen"

    monkeypatch.setattr(socket, "socket", Recorded)
    source_address("::1", 443)
    assert options == [(socket.IPPROTO_IPV6, 72, 2)]


def test_behind_a_proxy_that_alone_knows_the_server_it_is_that_towards_the_proxy(
    towards_elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an address the machine had no serving certificate."""
    proxy = f"http://user:secret@{ELSEWHERE}:3128"
    assert address_towards(Cluster("", "https://server.invalid:6443", proxy_url=proxy)) == towards_elsewhere
    assert address_towards(Cluster("", "https://127.0.0.1:6443", proxy_url=proxy)) == "127.0.0.1"
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert address_towards(Cluster("", "https://server.invalid:6443")) == towards_elsewhere
    assert address_towards(Cluster("", "https://server.invalid:6443", is_k3s=True)) == ""
    monkeypatch.setenv("K3S_AGENT_HTTP_PROXY_ALLOWED", "true")
    assert address_towards(Cluster("", "https://server.invalid:6443", is_k3s=True)) == towards_elsewhere


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:3128", "http://[::1]:3128", "http://proxy.invalid", "ftp://proxy"])
def test_a_proxy_of_this_machine_or_one_that_cannot_be_used_tells_nothing(proxy: str) -> None:
    assert address_towards(Cluster("", "https://server.invalid:6443", proxy_url=proxy)) == ""
