"""Endpoints and EndpointSlices (Kubernetes API reference, core/v1 Endpoints, discovery.k8s.io/v1 EndpointSlice)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.core.addresses import parse_address, port_name_errors
from mooring.api.kinds import BY_PLURAL
from tests.support.changes import LATER, created, updated

ENDPOINTS = BY_PLURAL["endpoints"]
SLICE = BY_PLURAL["endpointslices"]
Obj = dict[str, Any]

NOT_AN_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
PORT: Obj = {"port": 80}


def subset(*ips: str, ports: list[Obj] | None = None, **more: Any) -> Obj:
    found: Obj = {"addresses": [{"ip": ip} for ip in ips], **more}
    return found if ports is None else {**found, "ports": ports}


@pytest.mark.parametrize(
    ("subsets", "errors"),
    [
        pytest.param([], [], id="none at all"),
        pytest.param([subset("10.0.0.1", ports=[PORT])], [], id="one place"),
        pytest.param([{"notReadyAddresses": [{"ip": "2001:db8::1"}]}], [], id="one that is not ready"),
        pytest.param(
            [{"ports": [PORT]}],
            ["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
            id="a subset has addresses",
        ),
        pytest.param(
            [subset("a", "")],
            [
                f'subsets[0].addresses[0].ip: Invalid value: "a": {NOT_AN_ADDRESS}',
                'subsets[0].addresses[0].ip: Invalid value: "a": must be a valid IP address',
                f'subsets[0].addresses[1].ip: Invalid value: "": {NOT_AN_ADDRESS}',
                'subsets[0].addresses[1].ip: Invalid value: "": must be a valid IP address',
            ],
            id="addresses are addresses",
        ),
        pytest.param(
            [subset("10.0.0.01")],
            ['subsets[0].addresses[0].ip: Invalid value: "10.0.0.01": must not have leading 0s'],
            id="in decimal numbers without leading zeros",
        ),
        pytest.param(
            [subset("010.0.0.300")],
            [
                f'subsets[0].addresses[0].ip: Invalid value: "010.0.0.300": {NOT_AN_ADDRESS}',
                'subsets[0].addresses[0].ip: Invalid value: "010.0.0.300": must be a valid IP address',
            ],
            id="zeros or not",
        ),
        pytest.param(
            [{"notReadyAddresses": [{"ip": "fe80::1%eth0"}]}],
            [
                f'subsets[0].notReadyAddresses[0].ip: Invalid value: "fe80::1%eth0": {NOT_AN_ADDRESS}',
                'subsets[0].notReadyAddresses[0].ip: Invalid value: "fe80::1%eth0": must be a valid IP address',
            ],
            id="without a zone",
        ),
        pytest.param(
            [{"addresses": [{"ip": "10.0.0.1", "hostname": "web-0", "nodeName": "n1.example"}]}], [], id="host and node"
        ),
        pytest.param(
            [subset("10.0.0.1", ports=[{"port": 0}, {"name": "a", "port": 70000, "protocol": "ICMP"}])],
            [
                "subsets[0].ports[0].name: Required value",
                "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                'subsets[0].ports[1].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"',
                "subsets[0].ports[1].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ],
            id="several ports have names, and all are numbers of a known protocol",
        ),
        pytest.param(
            [subset("10.0.0.1", ports=[{}])],
            ["subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"],
            id="a port has a number",
        ),
        pytest.param(
            [subset("10.0.0.1", ports=[{"name": "a", "port": 1}, {"name": "a", "port": 2}])],
            [],
            id="a name twice, which Kubernetes lets pass",
        ),
    ],
)
def test_subsets(subsets: list[Obj], errors: list[str]) -> None:
    obj, found = created(ENDPOINTS, {"subsets": subsets})
    assert found == errors
    assert updated(ENDPOINTS, obj, obj)[1] == errors


@pytest.mark.parametrize(
    ("ip", "detail"),
    [
        pytest.param("0.0.0.0", "may not be unspecified (0.0.0.0)", id="unspecified"),
        pytest.param("::", "may not be unspecified (::)", id="unspecified IPv6"),
        pytest.param("127.0.0.1", "may not be in the loopback range (127.0.0.0/8, ::1/128)", id="loopback"),
        pytest.param("::1", "may not be in the loopback range (127.0.0.0/8, ::1/128)", id="loopback IPv6"),
        pytest.param("169.254.0.1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)", id="link-local"),
        pytest.param("fe80::1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)", id="link-local IPv6"),
        pytest.param(
            "224.0.0.1", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)", id="multicast"
        ),
        pytest.param(
            "ff02::1", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)", id="multicast IPv6"
        ),
        pytest.param("224.0.1.1", "", id="multicast beyond the link"),
        pytest.param("ff05::1", "", id="multicast IPv6 beyond the link"),
    ],
)
def test_machine_local_addresses_are_refused(ip: str, detail: str) -> None:
    wanted = [f'subsets[0].addresses[0].ip: Invalid value: "{ip}": {detail}'] if detail else []
    assert created(ENDPOINTS, {"subsets": [subset(ip)]})[1] == wanted


def test_names_of_hosts_and_nodes_are_checked() -> None:
    address = {"ip": "10.0.0.1", "hostname": "A", "nodeName": ""}
    errors = created(ENDPOINTS, {"subsets": [{"addresses": [address]}]})[1]
    assert [error.partition(" a lower")[0] for error in errors] == [
        'subsets[0].addresses[0].hostname: Invalid value: "A":',
        'subsets[0].addresses[0].nodeName: Invalid value: "":',
    ]


def test_the_default_protocol_is_tcp() -> None:
    ports = [{"name": "a", "port": 1}, {"name": "b", "port": 2, "protocol": "UDP"}]
    obj, _ = created(ENDPOINTS, {"subsets": [subset("10.0.0.1", ports=ports)]})
    assert [port["protocol"] for port in obj["subsets"][0]["ports"]] == ["TCP", "UDP"]


@pytest.mark.parametrize(
    ("subsets", "printed"),
    [
        pytest.param([], "<none>", id="nothing"),
        pytest.param([{"notReadyAddresses": [{"ip": "10.0.0.1"}]}], "", id="nothing that is ready"),
        pytest.param([subset("10.0.0.1", "10.0.0.2")], "10.0.0.1,10.0.0.2", id="addresses without ports"),
        pytest.param([subset("10.0.0.1", "::1", ports=[PORT])], "10.0.0.1:80,[::1]:80", id="addresses with a port"),
        pytest.param(
            [subset("10.0.0.1", "10.0.0.2", ports=[{"port": 1}, {"port": 2}]), subset("10.0.0.3")],
            "10.0.0.1:1,10.0.0.2:1,10.0.0.1:2 + 2 more...",
            id="three, and how many more",
        ),
    ],
)
def test_print_columns_of_endpoints(subsets: list[Obj], printed: str) -> None:
    obj, _ = created(ENDPOINTS, {"subsets": subsets})
    assert [column.cell(obj, LATER) for column in ENDPOINTS.resource.columns] == ["x", printed, "55m"]


def endpoint(*addresses: str, **more: Any) -> Obj:
    return {"addresses": list(addresses), **more}


@pytest.mark.parametrize(
    ("given", "errors"),
    [
        pytest.param({"addressType": "IPv4", "endpoints": [endpoint("10.0.0.1")], "ports": [PORT]}, [], id="IPv4"),
        pytest.param({"addressType": "IPv6", "endpoints": [endpoint("2001:db8::1")]}, [], id="IPv6"),
        pytest.param({"addressType": "FQDN", "endpoints": [endpoint("a.example", "b.example.")]}, [], id="names"),
        pytest.param({"endpoints": [endpoint("x")]}, ["addressType: Required value"], id="a type is needed"),
        pytest.param(
            {"addressType": "IPX", "endpoints": [endpoint("x")]},
            ['addressType: Unsupported value: "IPX": supported values: "FQDN", "IPv4", "IPv6"'],
            id="one of the three",
        ),
        pytest.param(
            {"addressType": "IPv4", "endpoints": [endpoint("2001:db8::1", "a", "127.0.0.1")]},
            [
                'endpoints[0].addresses: Invalid value: "2001:db8::1": must be an IPv4 address',
                'endpoints[0].addresses[1]: Invalid value: "a": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)',
                'endpoints[0].addresses[2]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)',
            ],
            id="and addresses of it",
        ),
        pytest.param(
            {"addressType": "IPv4", "endpoints": [endpoint("x")]},
            [f'endpoints[0].addresses[0]: Invalid value: "x": {NOT_AN_ADDRESS}'],
            id="and nothing else",
        ),
        pytest.param(
            {"addressType": "FQDN", "endpoints": [endpoint("localhost")]},
            [
                'endpoints[0].addresses[0]: Invalid value: "localhost": '
                "should be a domain with at least two segments separated by dots"
            ],
            id="a name is a full one",
        ),
        pytest.param(
            {"addressType": "IPv4", "endpoints": [{}]},
            ["endpoints[0].addresses: Required value: must contain at least 1 address"],
            id="an endpoint has an address",
        ),
        pytest.param(
            {"addressType": "IPv4", "endpoints": [endpoint(*["10.0.0.1"] * 101)]},
            ["endpoints[0].addresses: Too many: 101: must have at most 100 items"],
            id="but not too many",
        ),
        pytest.param(
            {"addressType": "IPv4", "endpoints": [{}] * 1001, "ports": [{}] * 101},
            [
                "endpoints: Too many: 1001: must have at most 1000 items",
                "ports: Too many: 101: must have at most 100 items",
            ],
            id="a slice is of bearable size",
        ),
        pytest.param(
            {"addressType": "IPv4", "ports": [{"name": "a"}, {}, {"port": 0}]},
            [
                'ports[2].name: Duplicate value: ""',
                "ports[2].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            ],
            id="no name of a port twice, not even none",
        ),
        pytest.param(
            {"addressType": "IPv4", "ports": [{"protocol": ""}]}, ["ports[0].protocol: Required value"], id="a protocol"
        ),
        pytest.param({"addressType": "IPv4", "ports": [{"appProtocol": "kubernetes.io/h2c"}]}, [], id="what is spoken"),
        pytest.param(
            {
                "addressType": "IPv4",
                "endpoints": [
                    endpoint(
                        "10.0.0.1",
                        hostname="web-0",
                        nodeName="n1",
                        zone="Z1",
                        deprecatedTopology={"a": "b"},
                        hints={"forZones": [{"name": "z1"}], "forNodes": [{"name": "n1"}]},
                    )
                ],
            },
            [],
            id="all that an endpoint may say",
        ),
        pytest.param(
            {
                "addressType": "IPv4",
                "endpoints": [endpoint("10.0.0.1", hints={"forZones": [{}, {}], "forNodes": [{"name": "n"}] * 2})],
            },
            [
                'endpoints[0].hints.forZones[1].name: Duplicate value: ""',
                'endpoints[0].hints.forNodes[1].name: Duplicate value: "n"',
            ],
            id="no hint twice",
        ),
        pytest.param(
            {"addressType": "IPv4", "endpoints": [endpoint("10.0.0.1", hints={"forZones": [{"name": "z"}] * 9})]},
            ["endpoints[0].hints.forZones: Too many: 9: must have at most 8 items"],
            id="a bounded number of hints",
        ),
    ],
)
def test_slices(given: Obj, errors: list[str]) -> None:
    obj, found = created(SLICE, given)
    assert found == errors
    assert updated(SLICE, obj, obj)[1] == errors


def test_names_in_an_endpoint_are_checked() -> None:
    wrong = endpoint(
        "10.0.0.1",
        hostname="A",
        nodeName="-",
        zone="-",
        deprecatedTopology={"-": "x"},
        hints={"forZones": [{"name": "-"}]},
    )
    errors = created(
        SLICE, {"addressType": "IPv4", "endpoints": [wrong], "ports": [{"name": "A", "appProtocol": "-"}]}
    )[1]
    assert [error.partition(": ")[0] for error in errors] == [
        "endpoints[0].hostname",
        "endpoints[0].nodeName",
        "endpoints[0].deprecatedTopology",
        "endpoints[0].hints.forZones[0].name",
        "ports[0].name",
        "ports[0].appProtocol",
    ]


def test_the_type_of_a_slice_stays_and_its_generation_counts_changes() -> None:
    old, _ = created(SLICE, {"addressType": "IPv4", "endpoints": [endpoint("10.0.0.1")]})
    assert old["metadata"]["generation"] == 1
    same, _ = updated(SLICE, {**old, "metadata": {"labels": {"a": "b"}}}, old)
    assert same["metadata"]["generation"] == 1
    new, errors = updated(SLICE, {"addressType": "IPv4", "endpoints": [endpoint("10.0.0.2")]}, old)
    assert (new["metadata"]["generation"], errors) == (2, [])
    assert updated(SLICE, {"addressType": "IPv6"}, old)[1] == ['addressType: Invalid value: "IPv6": field is immutable']


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        pytest.param({}, ["<unset>", "<unset>"], id="nothing"),
        pytest.param({"ports": [{"name": "web"}, {}]}, ["web,*", "<unset>"], id="every port, by name or not"),
        pytest.param(
            {
                "ports": [{"name": str(port), "port": port} for port in range(1, 6)],
                "endpoints": [endpoint("10.0.0.1", "10.0.0.2"), endpoint("10.0.0.3"), endpoint("10.0.0.4")],
            },
            ["1,2,3 + 2 more...", "10.0.0.1,10.0.0.2,10.0.0.3 + 1 more..."],
            id="three of each, and how many more",
        ),
    ],
)
def test_print_columns_of_slices(given: Obj, printed: list[str]) -> None:
    obj, _ = created(SLICE, {"addressType": "IPv4", **given})
    assert [column.cell(obj, LATER) for column in SLICE.resource.columns] == ["x", "IPv4", *printed, "55m"]


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        pytest.param("http", [], id="a word"),
        pytest.param("1a", [], id="a digit first"),
        pytest.param("a" * 16, ["must be no more than 15 characters"], id="too long"),
        pytest.param(
            "Http", ["must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"], id="upper case"
        ),
        pytest.param("80", ["must contain at least one letter (a-z)"], id="a number"),
        pytest.param("a--b", ["must not contain consecutive hyphens"], id="two hyphens"),
    ],
)
def test_names_of_container_ports(name: str, errors: list[str]) -> None:
    assert port_name_errors(name) == errors


@given(st.ip_addresses())
def test_every_valid_address_is_accepted(address: Any) -> None:
    assert parse_address(str(address)) == address
