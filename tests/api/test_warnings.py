"""Warnings about accepted objects; the texts are those of kube-apiserver 1.36."""

from __future__ import annotations

import copy

import pytest

from mooring.api.core.addresses import address_warnings, range_warnings
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.schema import Obj
from tests.support.changes import created

MAPPED = "::ffff:1.2.3.4"
SLOPPY = 'IPv6 address "1::0" should be in RFC 5952 canonical format ("1::")'


@pytest.mark.parametrize(
    ("plural", "obj", "warnings"),
    [
        pytest.param("pods", {"spec": {"terminationGracePeriodSeconds": -1}}, [], id="a Pod"),
        pytest.param("services", {"spec": {"externalIPs": ["1::0"]}}, [], id="a Service"),
        pytest.param(
            "nodes",
            {"spec": {"configSource": {}, "externalID": "x", "podCIDRs": ["1::0/64"]}},
            [
                "spec.configSource: the feature is removed",
                "spec.externalID: this field is deprecated, and is unused by Kubernetes",
                'spec.podCIDRs[0]: IPv6 CIDR value "1::0/64" should be in RFC 5952 canonical format ("1::/64")',
            ],
            id="a Node",
        ),
        pytest.param(
            "nodes",
            {"spec": {"podCIDRs": ["1.2.3.4/8"]}},
            [
                'spec.podCIDRs[0]: CIDR value "1.2.3.4/8" is ambiguous in this context (should be "1.0.0.0/8" or "1.2.3.4/32"?)',
            ],
            id="a Node with bits of a host",
        ),
        pytest.param("nodes", {"spec": {"podCIDRs": ["10.0.0.0/8"]}}, [], id="a Node that nothing is wrong with"),
        pytest.param(
            "endpoints",
            {"subsets": [{"addresses": [{"ip": "1::0"}], "notReadyAddresses": [{"ip": "1.1.1.1"}, {"ip": MAPPED}]}]},
            [
                f"subsets[0].addresses[0].ip: {SLOPPY}",
                f'subsets[0].notReadyAddresses[1].ip: non-standard IP address "{MAPPED}" is invalid: use "1.2.3.4"',
            ],
            id="Endpoints",
        ),
        pytest.param(
            "endpoints",
            {
                "metadata": {"labels": {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}},
                "subsets": [{"addresses": [{"ip": "1::0"}]}],
            },
            [],
            id="Endpoints of the controller",
        ),
        pytest.param(
            "endpointslices",
            {"addressType": "FQDN", "endpoints": [{"addresses": ["a.b"]}]},
            ["spec.addressType: FQDN endpoints are deprecated"],
            id="a slice of names",
        ),
        pytest.param(
            "endpointslices",
            {"addressType": "IPv6", "endpoints": [{"addresses": ["1::0"]}]},
            [f"endpoints[0].addresses[0]: {SLOPPY}"],
            id="a slice of addresses",
        ),
        pytest.param(
            "endpointslices",
            {
                "metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
                "endpoints": [{"addresses": ["1::0"]}],
            },
            [],
            id="a slice of the controller",
        ),
    ],
)
def test_warnings_of_kinds(plural: str, obj: Obj, warnings: list[str]) -> None:
    kind = BY_PLURAL[plural]
    made, _ = created(kind, copy.deepcopy(obj))
    complete(made, kind.resource.schema)
    assert kind.warnings(made, None) == warnings


def test_a_new_annotation_of_a_service_account() -> None:
    kind = BY_PLURAL["serviceaccounts"]
    marked: Obj = {"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}}
    bare: Obj = {"metadata": {}}
    warnings = [
        "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to "
        "isolate access to mounted secrets"
    ]
    assert [kind.warnings(marked, None), kind.warnings(marked, bare)] == [warnings, warnings]
    assert [kind.warnings(marked, marked), kind.warnings(bare, None)] == [[], []]


def test_invalid_addresses_and_cidrs_cause_no_warning() -> None:
    assert address_warnings("x", "a.b") == address_warnings("x", "") == address_warnings("x", "::1") == []
    assert range_warnings("x", "a") == range_warnings("x", "10.0.0.0/8") == range_warnings("x", "::/0") == []
