"""Test source networks: IPv4 addresses and IPv6 /64s, counted alike by every limit."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mooring.server.transport import http2
from mooring.server.transport.listener import Listener
from mooring.server.transport.tlsconnection import UNKNOWN_NETWORK, TlsConnection, TlsProtocol, address_of, network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        pytest.param("192.0.2.7", "192.0.2.7", id="an IPv4 address is a source"),
        pytest.param("::ffff:192.0.2.7", "192.0.2.7", id="IPv4 written as IPv6 is IPv4"),
        pytest.param("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64", id="an IPv6 /64 is a source"),
        pytest.param("fe80::1%eth0", "fe80::/64", id="a zone id is dropped"),
        pytest.param("", UNKNOWN_NETWORK, id="no address shares one bucket"),
        pytest.param("/run/mooring.sock", UNKNOWN_NETWORK, id="a path shares it"),
    ],
)
def test_networks(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    ("source", "address"),
    [
        pytest.param("192.0.2.7", "192.0.2.7", id="IPv4"),
        pytest.param("::ffff:192.0.2.7", "192.0.2.7", id="IPv4 written as IPv6"),
        pytest.param("fe80::0001%eth0", "fe80::1", id="without zone, in normal form"),
        pytest.param("/run/mooring.sock", "", id="no address"),
    ],
)
def test_addresses(source: str, address: str) -> None:
    assert address_of(source) == address


def test_every_limit_of_a_source_counts_an_ipv6_site_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections and HTTP/2 streams of one /64 share their half of the places; a neighbour's /64 has its own."""
    monkeypatch.setattr(http2, "MAX_TOTAL_STREAMS", 4)
    listening = Listener(cast(Any, None), cast(Any, None), max_connections=4)
    streams = http2.Http2Server(cast(Any, None))
    addresses = ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1")
    connections: list[bool] = []
    for address in addresses:
        protocol = TlsProtocol.__new__(TlsProtocol)
        protocol.connection = TlsConnection(address)
        connections.append(listening.admit(protocol))
    assert connections == [True, True, False, True]
    assert [streams.admit(TlsConnection(address).network) for address in addresses] == [True, True, False, True]
