"""Test NetworkPolicies: defaults, validation and print columns, in kube-apiserver's words."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.api.networking.networkpolicy import KIND
from mooring.apimachinery.schema import Obj

NOW = datetime(2026, 1, 2, tzinfo=UTC)
BLOCK = {"ipBlock": {"cidr": "192.0.2.0/24"}}


def policy(**spec: Any) -> Obj:
    obj: Obj = {"metadata": {"name": "x"}, "spec": deepcopy(spec)}
    KIND.default(obj)
    return obj


def errors(obj: Obj) -> list[str]:
    return [str(error) for error in (*KIND.validate(obj), *KIND.validate_create(obj))]


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({}, ["Ingress"]),
        ({"ingress": [{}]}, ["Ingress"]),
        ({"egress": [{}]}, ["Ingress", "Egress"]),
        ({"egress": [{}], "policyTypes": ["Egress"]}, ["Egress"]),
    ],
    ids=["nothing", "ingress", "egress", "said"],
)
def test_what_a_policy_without_types_denies(spec: Obj, types: list[str]) -> None:
    obj = policy(**spec)
    assert (obj["spec"]["policyTypes"], obj["spec"]["podSelector"], errors(obj)) == (types, {}, [])


def test_a_port_is_of_tcp_and_whoever_is_meant_stays() -> None:
    obj = policy(egress=[{"ports": [{"port": 53}, {"port": "dns", "protocol": "UDP"}], "to": [BLOCK]}])
    assert [port["protocol"] for port in obj["spec"]["egress"][0]["ports"]] == ["TCP", "UDP"]
    assert errors(obj) == []
    empty: Obj = {"metadata": {"name": "x"}}
    KIND.default(empty)
    assert empty["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}


@pytest.mark.parametrize(
    ("port", "error"),
    [
        ({"port": 80, "endPort": 90}, ""),
        ({}, ""),
        ({"port": 0}, "port: Invalid value: 0: must be between 1 and 65535, inclusive"),
        ({"port": 65536}, "port: Invalid value: 65536: must be between 1 and 65535, inclusive"),
        ({"port": "-"}, 'port: Invalid value: "-": must contain at least one letter (a-z)'),
        ({"port": 80, "endPort": 79}, "endPort: Invalid value: 80: must be greater than or equal to `port`"),
        ({"port": 80, "endPort": 70000}, "endPort: Invalid value: 70000: must be between 1 and 65535, inclusive"),
        (
            {"port": "http", "endPort": 90},
            "endPort: Invalid value: 90: may not be specified when `port` is non-numeric",
        ),
        ({"endPort": 90}, "endPort: Invalid value: 90: may not be specified when `port` is not specified"),
        ({"protocol": "ICMP"}, 'protocol: Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP"'),
    ],
    ids=str,
)
def test_ports(port: Obj, error: str) -> None:
    for direction in ("ingress", "egress"):
        found = errors(policy(**{direction: [{"ports": [port]}]}))
        assert found[:1] == ([f"spec.{direction}[0].ports[0].{error}"] if error else [])


@pytest.mark.parametrize(
    ("peer", "error"),
    [
        (BLOCK, ""),
        ({"podSelector": {}, "namespaceSelector": {"matchLabels": {"a": "b"}}}, ""),
        ({"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}}, ""),
        ({}, ": Required value: must specify a peer"),
        ({**BLOCK, "podSelector": {}}, ": Forbidden: may not specify both ipBlock and another peer"),
        ({"podSelector": {"matchLabels": {"a b": ""}}}, '.podSelector.matchLabels: Invalid value: "a b": name part '),
        ({"ipBlock": {}}, ".ipBlock.cidr: Required value"),
        ({"ipBlock": {"cidr": "192.0.2.1"}}, '.ipBlock.cidr: Invalid value: "192.0.2.1": must be a valid CIDR value, '),
        ({"ipBlock": {"cidr": "x/24", "except": ["y"]}}, '.ipBlock.cidr: Invalid value: "x/24": must be a valid CIDR'),
        (
            {"ipBlock": {"cidr": "192.0.2.0/24", "except": [""]}},
            '.ipBlock.except[0]: Invalid value: "": must be a valid CIDR value, ',
        ),
        (
            {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.0/24"]}},
            '.ipBlock.except[0]: Invalid value: "192.0.2.0/24": must be a strict subset of `cidr`',
        ),
        (
            {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["2001:db8::/48"]}},
            '.ipBlock.except[0]: Invalid value: "2001:db8::/48": must be a strict subset of `cidr`',
        ),
    ],
    ids=str,
)
def test_peers(peer: Obj, error: str) -> None:
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        found = errors(policy(**{direction: [{peers: [peer]}]}))
        assert len(found) == bool(error)
        assert not error or found[0].startswith(f"spec.{direction}[0].{peers}[0]{error}"), found


@pytest.mark.parametrize(
    ("types", "error"),
    [
        (["Both"], 'spec.policyTypes[0]: Unsupported value: "Both": supported values: "Ingress", "Egress"'),
        (["Ingress"] * 3, "may not specify more than two policyTypes"),
    ],
    ids=["unknown", "three"],
)
def test_types(types: list[str], error: str) -> None:
    (found,) = errors(policy(policyTypes=types))
    assert error in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("192.0.2.0/24", ""),
        ("2001:db8::/32", ""),
        ("0.0.0.0/0", ""),
        ("192.0.2.1/24", "must not have bits set beyond the prefix length"),
        ("010.0.0.0/8", "must not have leading 0s in IP or prefix length"),
        ("10.0.0.0/08", "must not have leading 0s in IP or prefix length"),
        ("::ffff:192.0.2.0/120", "must not have an IPv4-mapped IPv6 address"),
        ("192.0.2.0/33", "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
        ("192.0.2.0/+8", "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
        ("fe80::%1/64", "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
    ],
)
def test_new_ranges_have_their_normal_form(text: str, reason: str) -> None:
    found = errors(policy(ingress=[{"from": [{"ipBlock": {"cidr": text}}]}]))
    assert found == ([f'spec.ingress[0].from[0].ipBlock.cidr: Invalid value: "{text}": {reason}'] if reason else [])


def test_a_range_that_a_stored_policy_has_may_stay_in_it() -> None:
    old, new = (policy(ingress=[{"from": [{"ipBlock": {"cidr": text}}]}]) for text in ("010.0.0.0/8", "10.0.0.0"))
    assert KIND.validate_update(old, old) == []
    excepting = policy(egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.01.0.0/16"]}}]}])
    assert KIND.validate_update(excepting, excepting) == []
    assert len(KIND.validate_create(excepting)) == 1
    assert [error.field for error in KIND.validate_update(new, old)] == ["spec.ingress[0].from[0].ipBlock.cidr"]


def test_a_range_with_bits_of_a_host_is_warned_of() -> None:
    (warning,) = KIND.warnings(policy(egress=[{"to": [{"ipBlock": {"cidr": "192.0.2.1/24"}}]}]), None)
    assert warning.startswith('spec.egress[0].to[0].ipBlock.cidr: CIDR value "192.0.2.1/24" is ambiguous')


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ({}, "<none>"),
        ({"matchLabels": {"b": "2", "a": "1"}}, "a=1,b=2"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}]}, "a in (x,y)"),
        ({"matchExpressions": [{"key": "a", "operator": "Near"}]}, "<error>"),
    ],
    ids=["all", "labels", "a set", "none that can be read"],
)
def test_the_table_shows_which_pods_are_meant(selector: Obj, text: str) -> None:
    assert KIND.resource.columns[1].cell({"spec": {"podSelector": selector}}, NOW) == text
