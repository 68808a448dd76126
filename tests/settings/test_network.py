"""The address to listen on: what it means, and which addresses it covers."""

from __future__ import annotations

import ipaddress

import pytest

from mooring.errors import ConfigError
from mooring.settings.addresses import parse_bind_address, parse_endpoint, unpublishable
from mooring.settings.network import NetworkSettings


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0", "0.0.0.0"),
        ("::", "::"),
        ("", "0.0.0.0"),
        ("0:0:0:0:0:0:0:0", "::"),
        ("::ffff:0.0.0.0", "0.0.0.0"),
        ("::FFFF:192.0.2.1", "192.0.2.1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_an_address_to_listen_on_is_read(text: str, address: str) -> None:
    assert parse_bind_address(text, "bind-address") == address


@pytest.mark.parametrize("text", ["[::]", "*", "0", "localhost", "0.0.0.0:6443", "[::]:6443", " ", "0.0.0.0,::"])
def test_what_is_no_address_is_refused_with_the_one_that_means_all(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bind_address(text, "bind-address")
    assert str(caught.value) == (
        f'bind-address: "{text}" is not an IP address; 0.0.0.0 or :: means every address of both families'
    )


@pytest.mark.parametrize(
    "text", ["224.0.0.1", "255.255.255.255", "ff02::1", "::ffff:224.0.0.1", "::ffff:255.255.255.255"]
)
def test_an_address_of_many_machines_is_not_listened_on(text: str) -> None:
    with pytest.raises(ConfigError, match=r'bind-address: ".*" is not the address of one machine; 0\.0\.0\.0 or :: '):
        parse_bind_address(text, "bind-address")


@pytest.mark.parametrize(
    ("bound", "address", "is_covered", "is_family"),
    [
        ("0.0.0.0", "192.0.2.1", True, True),
        ("0.0.0.0", "2001:db8::1", True, True),
        ("::", "192.0.2.1", True, True),
        ("::", "::1", True, True),
        ("", "::1", True, True),
        ("192.0.2.1", "192.0.2.1", True, True),
        ("::ffff:192.0.2.1", "192.0.2.1", True, True),
        ("192.0.2.1", "192.0.2.2", False, True),
        ("192.0.2.1", "127.0.0.1", False, True),
        ("192.0.2.1", "2001:db8::1", False, False),
        ("2001:db8::1", "2001:DB8:0::1", True, True),
        ("2001:db8::1", "192.0.2.1", False, False),
        ("::1", "::1", True, True),
    ],
)
def test_an_address_is_covered_or_not(bound: str, address: str, is_covered: bool, is_family: bool) -> None:
    settings = NetworkSettings.read({"bind_address": bound})
    literal = ipaddress.ip_address(address)
    assert (settings.listens_at(literal), settings.listens_in_family_of(literal)) == (is_covered, is_family)


@pytest.mark.parametrize(
    ("text", "reached"),
    [("192.0.2.1:7443", True), ("192.0.2.1:6443", False), ("192.0.2.2:7443", False), ("a.example:7443", False)],
)
def test_an_endpoint_reaches_the_server_or_not(text: str, reached: bool) -> None:
    settings = NetworkSettings.read({"bind_address": "192.0.2.1", "secure_port": 7443})
    assert settings.is_reached_by(parse_endpoint(text, "x")) is reached


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        *((host, "means something else") for host in ("0.0.0.0", "::", "::ffff:0.0.0.0", "239.1.2.3", "ff05::2")),
        *((host, "means something else") for host in ("255.255.255.255", "::ffff:255.255.255.255")),
        *((host, "ends in a number") for host in ("0", "127.1", "0x0", "a.0x7f", "api.example.7", "2130706433")),
        *((host, "") for host in ("127.0.0.1", "::1", "192.0.2.255", "0.0.0.1", "a.example", "1.example", "0xg", "a0")),
    ],
)
def test_a_host_that_is_not_the_address_of_one_machine(host: str, reason: str) -> None:
    found = unpublishable(host)
    assert found.startswith(reason)
    assert bool(found) is bool(reason)


@pytest.mark.parametrize(
    ("flags", "publishes"),
    [
        ({}, True),
        ({"bind_address": "::"}, True),
        ({"bind_address": "192.0.2.1"}, False),
        ({"control_plane_endpoint": ["a.example"]}, False),
        ({"advertise_address": "192.0.2.1"}, False),
    ],
    ids=str,
)
def test_the_addresses_of_the_machine_are_published_where_nothing_names_others(
    flags: dict[str, object], publishes: bool
) -> None:
    assert NetworkSettings.read(flags).publishes_detected is publishes
