"""Allocation of cluster IPs and node ports (Kubernetes documentation "Service ClusterIP allocation")."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.core.service import DEFAULT_RANGE, NODE_PORT_RANGE, api_address, free_address, free_port

SMALL = IPv4Network("192.0.2.0/29")
MIDDLE = IPv4Network("192.0.2.0/26")


def test_the_api_server_has_the_first_address() -> None:
    assert api_address(DEFAULT_RANGE) == "10.96.0.1"
    assert api_address(IPv6Network("fd00:10::/108")) == "fd00:10::1"


@given(st.binary(max_size=20))
def test_dynamic_allocation_starts_above_the_reserved_band(seed: bytes) -> None:
    address, port = free_address((), seed), free_port((), seed)
    assert address is not None
    assert port is not None
    assert IPv4Address(address) in DEFAULT_RANGE
    offset = int(IPv4Address(address)) - int(DEFAULT_RANGE.network_address)
    assert 256 <= offset < DEFAULT_RANGE.num_addresses - 1
    assert NODE_PORT_RANGE.start + 86 <= port < NODE_PORT_RANGE.stop


@pytest.mark.parametrize("cidr", [SMALL, MIDDLE], ids=["smaller than the band", "larger than the band"])
@pytest.mark.parametrize("seed", [b"a", b"b"])
def test_every_address_is_allocated_once(cidr: IPv4Network, seed: bytes) -> None:
    used: set[str] = set()
    order = []
    while (address := free_address(used, seed, cidr)) is not None:
        used.add(address)
        order.append(int(IPv4Address(address)) - int(cidr.network_address))
    assert sorted(order) == list(range(2, cidr.num_addresses - 1))
    below = [offset for offset in order if offset < 16]
    assert order[len(order) - len(below) :] == below, "the band comes last"


def test_the_largest_range_of_ipv6_has_addresses_too() -> None:
    cidr = IPv6Network("fd00::/64")
    address = free_address((), b"a", cidr)
    assert address is not None
    assert 256 <= int(IPv6Address(address)) - int(cidr.network_address) < cidr.num_addresses - 1


def test_every_port_is_allocated_once() -> None:
    used: set[int] = set()
    while (port := free_port(used, b"", range(7, 40))) is not None:
        used.add(port)
    assert used == set(range(7, 40))


def test_another_seed_starts_elsewhere() -> None:
    assert len({free_address((), bytes([seed])) for seed in range(20)}) == 20
