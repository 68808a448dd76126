"""Claims of cluster IPs and node ports (networking.k8s.io/v1 IPAddress, KEP-1880)."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.core.service import claims

PLACE = {"name": "s", "namespace": "n"}


def keys(spec: dict[str, Any]) -> list[str]:
    return [claim.key for claim in claims({"metadata": PLACE, "spec": spec})]


def test_an_address_is_claimed_as_kube_apiserver_claims_it() -> None:
    (claim,) = claims({"metadata": PLACE, "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]}})
    assert claim.key == "/registry/ipaddresses/10.96.0.9"
    assert claim.value == {
        "kind": "IPAddress",
        "apiVersion": "networking.k8s.io/v1",
        "metadata": {
            "name": "10.96.0.9",
            "labels": {
                "ipaddress.kubernetes.io/ip-family": "IPv4",
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "n", "name": "s"}},
    }
    assert str(claim.error) == (
        'spec.clusterIPs: Invalid value: ["10.96.0.9"]: failed to allocate IP 10.96.0.9: provided IP is already allocated'
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param({"clusterIP": "None", "clusterIPs": ["None"]}, [], id="no address wanted"),
        pytest.param({"clusterIP": "x"}, [], id="no address"),
        pytest.param({"clusterIP": "10.96.0.9"}, ["/registry/ipaddresses/10.96.0.9"], id="an address asked for"),
        pytest.param({"clusterIPs": ["2001:DB8::0:1"]}, ["/registry/ipaddresses/2001:db8::1"], id="in one spelling"),
        pytest.param(
            {
                "ports": [{"nodePort": 30001}, {"nodePort": 30001}, {}, {"nodePort": 30002}],
                "healthCheckNodePort": 30003,
            },
            [f"/registry/mooring/nodeports/{port}" for port in (30001, 30002, 30003)],
            id="node ports, each once",
        ),
    ],
)
def test_claims_of_a_service(spec: dict[str, Any], expected: list[str]) -> None:
    assert keys(spec) == expected


def test_a_service_without_a_name_has_claims() -> None:
    (claim,) = claims({"spec": {"healthCheckNodePort": 30003}})
    assert claim.value["spec"]["parentRef"] == {"group": "", "resource": "services", "namespace": "", "name": ""}
    assert claims({}) == ()
