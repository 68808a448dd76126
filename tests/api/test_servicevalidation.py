"""Validation of Services (Kubernetes API reference, core/v1 Service; wording as kube-apiserver's)."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from tests.support.changes import created

SERVICE = BY_PLURAL["services"]
Obj = dict[str, Any]

RANGE = "must be between 1 and 65535, inclusive"
PORT: Obj = {"port": 80}
BALANCER = {"type": "LoadBalancer"}
NAME = {"type": "ExternalName", "externalName": "a.example"}
HEADLESS: Obj = {"clusterIP": "None"}
ONLY_BALANCER = "may only be used when `type` is 'LoadBalancer'"
DUAL = "this cluster is not configured for dual-stack services"


def ports(*given: Obj) -> Obj:
    return {"ports": list(given)}


RULES: list[tuple[str, Obj, list[str]]] = [
    (
        "a type that is known",
        {"type": "X"},
        [
            'spec.type: Unsupported value: "X": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"'
        ],
    ),
    ("a headless service needs no ports", {**HEADLESS, **ports()}, []),
    ("nor does a name", {**NAME, **ports()}, []),
    ("all others do", {**BALANCER, **ports()}, ["spec.ports: Required value"]),
    ("a name says which", {"type": "ExternalName"}, ["spec.externalName: Required value"]),
    ("and may end in a dot", {**NAME, "externalName": "a.example."}, []),
    (
        "a name has no address",
        {**NAME, "clusterIP": "10.96.0.9"},
        ["spec.clusterIPs: Forbidden: may not be set for ExternalName services"],
    ),
    (
        "and no families",
        {**NAME, "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"},
        [
            "spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services",
            "spec.ipFamilies: Forbidden: may not be set for ExternalName services",
        ],
    ),
    (
        "a balancer has an address",
        {**BALANCER, **HEADLESS, "selector": {"a": "b"}},
        ["spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for LoadBalancer services"],
    ),
    (
        "several ports need names",
        ports({"port": 80}, {"port": 81, "name": "b"}),
        ["spec.ports[0].name: Required value"],
    ),
    (
        "no name twice",
        ports({"port": 80, "name": "b"}, {"port": 81, "name": "b"}),
        ['spec.ports[1].name: Duplicate value: "b"'],
    ),
    (
        "no port twice",
        ports({"port": 80, "name": "a"}, {"port": 80, "name": "b"}),
        [
            "spec.ports[1]: Duplicate value: "
            '{"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}'
        ],
    ),
    ("but once for each protocol", ports({"port": 80, "name": "a"}, {"port": 80, "name": "b", "protocol": "UDP"}), []),
    (
        "ports are numbers of a known protocol",
        ports({"port": 0, "targetPort": 1}, {"port": 70000, "name": "b", "protocol": "ICMP"}),
        [
            "spec.ports[0].name: Required value",
            f"spec.ports[0].port: Invalid value: 0: {RANGE}",
            f"spec.ports[1].port: Invalid value: 70000: {RANGE}",
            'spec.ports[1].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"',
            f"spec.ports[1].targetPort: Invalid value: 70000: {RANGE}",
        ],
    ),
    (
        "a target port is named as container ports are",
        ports({"port": 80, "targetPort": "80"}),
        ['spec.ports[0].targetPort: Invalid value: "80": must contain at least one letter (a-z)'],
    ),
    ("an application protocol", ports({"port": 80, "appProtocol": "kubernetes.io/h2c"}), []),
    (
        "node ports are for services that have them",
        ports({"port": 80, "nodePort": 30001}),
        ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
    ),
    (
        "and are not given twice",
        {
            "type": "NodePort",
            **ports({"port": 80, "name": "a", "nodePort": 30001}, {"port": 81, "name": "b", "nodePort": 30001}),
        },
        ["spec.ports[1].nodePort: Duplicate value: 30001"],
    ),
    (
        "affinity that is known",
        {"sessionAffinity": "Cookie"},
        ['spec.sessionAffinity: Unsupported value: "Cookie": supported values: "ClientIP", "None"'],
    ),
    (
        "for at most a day",
        {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}},
        [
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: "
            "must be greater than 0 and less than 86400"
        ],
    ),
    (
        "further addresses are addresses",
        {"externalIPs": ["a", "127.0.0.1"]},
        [
            'spec.externalIPs[0]: Invalid value: "a": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)',
            'spec.externalIPs[1]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)',
        ],
    ),
    (
        "traffic from outside is for services that have some",
        {"externalTrafficPolicy": "Local"},
        ['spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services'],
    ),
    (
        "and has a policy that is known",
        {**BALANCER, "externalTrafficPolicy": "X"},
        ['spec.externalTrafficPolicy: Unsupported value: "X": supported values: "Cluster", "Local"'],
    ),
    (
        "nobody asks for health but a balancer that stays local",
        {**BALANCER, "healthCheckNodePort": 30001},
        [
            "spec.healthCheckNodePort: Invalid value: 30001: "
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        ],
    ),
    (
        "traffic from inside has a policy that is known",
        {"internalTrafficPolicy": "X", "trafficDistribution": "Y"},
        [
            'spec.internalTrafficPolicy: Unsupported value: "X": supported values: "Cluster", "Local"',
            'spec.trafficDistribution: Unsupported value: "Y": supported values: "PreferClose", "PreferSameNode", '
            '"PreferSameZone"',
        ],
    ),
    ("preferences that are known", {"internalTrafficPolicy": "Local", "trafficDistribution": "PreferSameZone"}, []),
    (
        "what is a balancer's is no other service's",
        {
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "loadBalancerClass": "a.example/b",
            "allocateLoadBalancerNodePorts": True,
        },
        [
            f"spec.LoadBalancerSourceRanges: Forbidden: {ONLY_BALANCER}",
            f"spec.loadBalancerClass: Forbidden: {ONLY_BALANCER}",
            f"spec.allocateLoadBalancerNodePorts: Forbidden: {ONLY_BALANCER}",
        ],
    ),
    (
        "sources of a balancer are networks",
        {**BALANCER, "loadBalancerSourceRanges": ["192.0.2.0/24", " 2001:db8::/64", "192.0.2.1", "a/b"]},
        [
            f'spec.LoadBalancerSourceRanges[{index}]: Invalid value: "{text}": '
            "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            for index, text in ((2, "192.0.2.1"), (3, "a/b"))
        ],
    ),
    ("a class of balancers", {**BALANCER, "loadBalancerClass": "a.example/b"}, []),
    (
        "both spellings of the address agree",
        {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.8"]},
        ['spec.clusterIPs: Invalid value: ["10.96.0.8"]: first value must match `clusterIP`'],
    ),
    (
        "the list alone",
        {"clusterIPs": ["None"]},
        ['spec.clusterIPs: Invalid value: ["None"]: must be empty when `clusterIP` is not specified'],
    ),
    (
        "an address is one",
        {"clusterIP": "x"},
        ['spec.clusterIPs[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'],
    ),
    (
        "none means none",
        {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "None"]},
        ["spec.clusterIPs[1]: Invalid value: \"None\": 'None' must be the first and only value"],
    ),
    (
        "one address only",
        {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "2001:db8::1"]},
        [f'spec.clusterIPs: Invalid value: ["10.96.0.9","2001:db8::1"]: {DUAL}'],
    ),
    (
        "never three",
        {"clusterIP": "a", "clusterIPs": ["a", "b", "c"]},
        ['spec.clusterIPs: Invalid value: ["a","b","c"]: may only hold up to 2 values'],
    ),
    (
        "families that are known, once",
        {"ipFamilies": ["IPv4", "IPv4", "IPX"], "ipFamilyPolicy": "X"},
        [
            'spec.ipFamilies[2]: Unsupported value: "IPX": supported values: "IPv4", "IPv6"',
            'spec.ipFamilies[1]: Duplicate value: "IPv4"',
            'spec.ipFamilyPolicy: Unsupported value: "X": supported values: "PreferDualStack", "RequireDualStack", '
            '"SingleStack"',
        ],
    ),
    (
        "and that this cluster has",
        {"ipFamilies": ["IPv6"], "ipFamilyPolicy": "RequireDualStack"},
        [f'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": {DUAL}'],
    ),
]


@pytest.mark.parametrize(("spec", "errors"), [pytest.param(spec, errors, id=rule) for rule, spec, errors in RULES])
def test_errors_of_a_spec(spec: Obj, errors: list[str]) -> None:
    assert created(SERVICE, {"spec": {"ports": [dict(PORT)], **spec}})[1] == errors


def test_names_and_labels_are_checked() -> None:
    spec = {"ports": [{"port": 80, "name": "A", "appProtocol": "-"}], "selector": {"-": "x"}}
    errors = created(SERVICE, {"metadata": {"name": "1a-"}, "spec": spec})[1]
    named = created(SERVICE, {"spec": {"type": "ExternalName", "externalName": "-"}})[1]
    classed = created(SERVICE, {"spec": {"ports": [dict(PORT)], **BALANCER, "loadBalancerClass": "-"}})[1]
    assert [error.partition(": ")[0] for error in (*errors, *named, *classed)] == [
        "metadata.name",
        "spec.ports[0].name",
        "spec.ports[0].appProtocol",
        "spec.selector",
        "spec.externalName",
        "spec.loadBalancerClass",
    ]


@pytest.mark.parametrize(
    ("kind", "way", "names"),
    [
        pytest.param("ClusterIP", {"ip": "1.2.3.4", "ipMode": "VIP"}, ["ingress"], id="no load balancer"),
        pytest.param("LoadBalancer", {"ip": "1.2.3.4", "ipMode": "Proxy"}, [], id="an address"),
        pytest.param("LoadBalancer", {"hostname": "a.b"}, [], id="a name"),
        pytest.param("LoadBalancer", {"ip": "x", "ipMode": "VIP"}, ["ingress[0].ip"], id="no address"),
        pytest.param("LoadBalancer", {"ip": "1.2.3.4"}, ["ingress[0].ipMode"], id="an address without a mode"),
        pytest.param("LoadBalancer", {"hostname": "a", "ipMode": "VIP"}, ["ingress[0].ipMode"], id="a mode alone"),
        pytest.param("LoadBalancer", {"ip": "1.2.3.4", "ipMode": "X"}, ["ingress[0].ipMode"], id="an unknown mode"),
        pytest.param("LoadBalancer", {"hostname": "1.2.3.4"}, ["ingress[0].hostname"], id="an address for a name"),
        pytest.param("LoadBalancer", {"hostname": "-"}, ["ingress[0].hostname"], id="no name"),
    ],
)
def test_errors_of_load_balancer_ingress(kind: str, way: Obj, names: list[str]) -> None:
    policy = (SERVICE.subresources or {})["status"]
    new: Obj = {"spec": {"type": kind}, "status": {"loadBalancer": {"ingress": [way]}}}
    assert [error.field for error in policy.validate_update(new, new)] == [
        f"status.loadBalancer.{name}" for name in names
    ]
