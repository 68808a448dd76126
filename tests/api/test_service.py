"""Services: defaults, kept and released values, print columns (Kubernetes documentation "Service")."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.core.service import init_ip_families
from mooring.api.kinds import BY_PLURAL
from tests.support.changes import LATER, created, updated

SERVICE = BY_PLURAL["services"]
Obj = dict[str, Any]
PORTS = [{"port": 80}]


def made(**spec: Any) -> Obj:
    """Return the spec of a new Service with these fields."""
    obj, errors = created(SERVICE, {"spec": {"ports": [dict(PORTS[0])], **spec}})
    assert errors == []
    found: Obj = obj["spec"]
    return found


def given(obj: Obj, *names: str) -> Obj:
    """Return the named fields that are present."""
    return {name: obj[name] for name in names if name in obj}


def test_defaults_of_a_service() -> None:
    obj, errors = created(
        SERVICE, {"spec": {"ports": [dict(PORTS[0])], "selector": {"app": "web"}}, "status": {"conditions": [{}]}}
    )
    assert errors == []
    assert obj["status"] == {"loadBalancer": {}}
    assert obj["spec"] == {
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        "selector": {"app": "web"},
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "internalTrafficPolicy": "Cluster",
    }
    assert SERVICE.selectable_fields(obj) == {"spec.clusterIP": "", "spec.type": "ClusterIP"}


def test_a_service_without_a_spec_is_refused() -> None:
    assert created(SERVICE, {})[1] == ["spec.ports: Required value"]


POLICIES = ("internalTrafficPolicy", "externalTrafficPolicy", "allocateLoadBalancerNodePorts")


@pytest.mark.parametrize(
    ("spec", "policies"),
    [
        pytest.param({"type": "NodePort"}, ["Cluster", "Cluster"], id="NodePort"),
        pytest.param({"type": "LoadBalancer"}, ["Cluster", "Cluster", True], id="LoadBalancer"),
        pytest.param({"externalIPs": ["192.0.2.1"]}, ["Cluster", "Cluster"], id="ClusterIP with further addresses"),
        pytest.param({"type": "ExternalName", "externalName": "a.example"}, [], id="ExternalName"),
        pytest.param(
            {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False, "externalTrafficPolicy": "Local"},
            ["Cluster", "Local", False],
            id="given values stay",
        ),
    ],
)
def test_policies_by_type(spec: Obj, policies: list[Any]) -> None:
    assert list(given(made(**spec), *POLICIES).values()) == policies


@pytest.mark.parametrize(
    ("spec", "families"),
    [
        pytest.param({"clusterIP": "10.96.0.9"}, ["SingleStack", ["IPv4"], ["10.96.0.9"]], id="an address asked for"),
        pytest.param({"type": "ExternalName", "externalName": "a.example"}, [], id="a name has no address"),
        pytest.param(
            {"clusterIP": "None", "selector": {"a": "b"}}, ["SingleStack", ["IPv4"], ["None"]], id="headless, selecting"
        ),
        pytest.param(
            {"clusterIP": "None"}, ["RequireDualStack", ["IPv4", "IPv6"], ["None"]], id="headless, not selecting"
        ),
        pytest.param(
            {"clusterIP": "None", "ipFamilies": ["IPv6"]},
            ["RequireDualStack", ["IPv6", "IPv4"], ["None"]],
            id="the family given comes first",
        ),
        pytest.param(
            {"clusterIP": "None", "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]},
            ["SingleStack", ["IPv6"], ["None"]],
            id="one family, if that is wanted",
        ),
        pytest.param(
            {"ipFamilyPolicy": "PreferDualStack"}, ["PreferDualStack", ["IPv4"]], id="a preference that cannot be met"
        ),
    ],
)
def test_families_and_addresses(spec: Obj, families: list[Any]) -> None:
    obj = made(**spec)
    init_ip_families(obj, "IPv4")
    assert list(given(obj, "ipFamilyPolicy", "ipFamilies", "clusterIPs").values()) == families


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        pytest.param({"sessionAffinity": "ClientIP"}, {"clientIP": {"timeoutSeconds": 10800}}, id="three hours"),
        pytest.param(
            {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}},
            {"clientIP": {"timeoutSeconds": 1}},
            id="unless given",
        ),
        pytest.param({"sessionAffinityConfig": {"clientIP": {}}}, None, id="nothing to configure without affinity"),
    ],
)
def test_session_affinity_defaults(spec: Obj, config: Obj | None) -> None:
    assert made(**spec).get("sessionAffinityConfig") == config


def test_a_named_target_port_stays() -> None:
    assert made(ports=[{"port": 80, "targetPort": "web"}])["ports"][0]["targetPort"] == "web"


ADDRESS = {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]}
NODE_PORT = {"type": "NodePort", **ADDRESS, "ports": [{"port": 80, "nodePort": 30001}]}
LOAD_BALANCER = {**NODE_PORT, "type": "LoadBalancer"}
LOCAL = {
    **LOAD_BALANCER,
    "externalTrafficPolicy": "Local",
    "healthCheckNodePort": 30002,
    "loadBalancerClass": "a.example/b",
}
NAME = {"type": "ExternalName", "externalName": "a.example"}


def stored(**spec: Any) -> Obj:
    obj = created(SERVICE, {"spec": {"ports": [dict(PORTS[0])], **spec}})[0]
    init_ip_families(obj["spec"], "IPv4")
    return obj


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        pytest.param(ADDRESS, {}, ADDRESS, id="neither given: the address stays"),
        pytest.param(ADDRESS, {"clusterIP": "10.96.0.9"}, ADDRESS, id="only clusterIP given: clusterIPs stays"),
        pytest.param(ADDRESS, ADDRESS, ADDRESS, id="both given"),
        pytest.param(ADDRESS, {"type": "NodePort"}, ADDRESS, id="another type that has an address"),
        pytest.param(ADDRESS, {"type": "ExternalName", **ADDRESS}, {}, id="a mere name gives it back"),
        pytest.param(NAME, {"clusterIP": "10.96.0.9"}, ADDRESS, id="a name that gets an address"),
        pytest.param(NAME, {}, {}, id="a name that will get one"),
    ],
)
def test_services_that_keep_their_cluster_ip(before: Obj, after: Obj, kept: Obj) -> None:
    spec: Obj = {"ports": [dict(PORTS[0])], "externalName": "a.example", **after}
    new, errors = updated(SERVICE, {"spec": spec}, stored(**before))
    assert errors == []
    assert given(new["spec"], "clusterIP", "clusterIPs") == kept
    init_ip_families(new["spec"], "IPv4")
    assert ("ipFamilies" in new["spec"]) is (after.get("type") != "ExternalName")


@pytest.mark.parametrize(
    ("after", "now"),
    [
        pytest.param({"clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.9"]}, ["10.96.0.8"], id="another one"),
        pytest.param({"clusterIP": "10.96.0.8"}, ["10.96.0.8"], id="another one, in one spelling"),
        pytest.param({"clusterIP": "", "clusterIPs": ["10.96.0.9"]}, [], id="none any more"),
        pytest.param({"clusterIPs": ["10.96.0.8"]}, ["10.96.0.8"], id="another list"),
    ],
)
def test_the_cluster_ip_is_immutable(after: Obj, now: list[str]) -> None:
    new, errors = updated(SERVICE, {"spec": {"ports": [dict(PORTS[0])], **after}}, stored(**ADDRESS))
    printed = "[" + ", ".join(f'"{address}"' for address in now) + "]"
    assert f"spec.clusterIPs[0]: Invalid value: {printed}: may not change once set" in errors
    assert new["spec"]["clusterIPs"] == now


def test_the_first_ip_family_is_immutable() -> None:
    _, errors = updated(SERVICE, {"spec": {"ports": [dict(PORTS[0])], "ipFamilies": ["IPv6"]}}, stored(**ADDRESS))
    assert 'spec.ipFamilies[0]: Invalid value: ["IPv6"]: may not change once set' in errors


def test_a_stored_service_without_families_may_be_updated() -> None:
    old = stored(**ADDRESS)
    del old["spec"]["ipFamilies"], old["spec"]["ipFamilyPolicy"]
    new, errors = updated(SERVICE, {"spec": {"ports": [dict(PORTS[0])]}}, old)
    assert (new["spec"].get("ipFamilies"), errors) == (None, []), "admission fills them in"


@pytest.mark.parametrize(
    ("before", "after", "ports"),
    [
        pytest.param(NODE_PORT, {"type": "NodePort"}, [30001], id="no port given: it stays"),
        pytest.param(NODE_PORT, {"type": "LoadBalancer"}, [30001], id="also for a load balancer"),
        pytest.param(NODE_PORT, {"type": "NodePort", "ports": [{"port": 81}]}, [None], id="another port gets another"),
        pytest.param(
            NODE_PORT,
            {"type": "NodePort", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30001}]},
            [None, 30001],
            id="one that another port asks for is its",
        ),
        pytest.param(
            NODE_PORT,
            {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30009}]},
            [30009],
            id="one asked for counts",
        ),
        pytest.param(
            NODE_PORT, {"ports": [{"port": 80, "nodePort": 30001}]}, [None], id="a type without gives it back"
        ),
        pytest.param({}, {"type": "NodePort"}, [None], id="there was none"),
        pytest.param({**NODE_PORT, "ports": [{"port": 80}]}, {"type": "NodePort"}, [None], id="nor was one given"),
    ],
)
def test_services_that_keep_their_node_ports(before: Obj, after: Obj, ports: list[int | None]) -> None:
    new, errors = updated(SERVICE, {"spec": {"ports": [dict(PORTS[0])], **after}}, stored(**before))
    assert errors == []
    assert [port.get("nodePort") for port in new["spec"]["ports"]] == ports


def test_a_node_port_of_a_type_without_node_ports_is_refused() -> None:
    after = {"ports": [{"port": 80, "nodePort": 30009}]}
    assert updated(SERVICE, {"spec": after}, stored(**NODE_PORT))[1] == [
        "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"
    ]


OF_BALANCERS = ("healthCheckNodePort", "externalTrafficPolicy", "allocateLoadBalancerNodePorts", "loadBalancerClass")


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        pytest.param(
            {k: v for k, v in LOCAL.items() if k != "healthCheckNodePort"}, [30002, "Local", True], id="stays"
        ),
        pytest.param(
            {**LOCAL, "externalTrafficPolicy": "Cluster"}, ["Cluster", True], id="health is not asked any more"
        ),
        pytest.param({**LOCAL, "allocateLoadBalancerNodePorts": True, "type": "NodePort"}, ["Local"], id="no balancer"),
        pytest.param({**LOCAL, "allocateLoadBalancerNodePorts": True, "type": "ClusterIP"}, [], id="nothing outside"),
    ],
)
def test_load_balancer_fields_are_released_with_the_type(after: Obj, kept: list[Any]) -> None:
    new, errors = updated(SERVICE, {"spec": after}, stored(**LOCAL))
    assert errors == []
    found = given(new["spec"], *OF_BALANCERS)
    assert found.pop("loadBalancerClass", None) == ("a.example/b" if after["type"] == "LoadBalancer" else None)
    assert list(found.values()) == kept


def test_the_load_balancer_class_is_immutable() -> None:
    assert updated(SERVICE, {"spec": {**LOCAL, "loadBalancerClass": "a.example/c"}}, stored(**LOCAL))[1] == [
        'spec.loadBalancerClass: Invalid value: "a.example/c": may not change once set'
    ]


def test_fields_that_the_resource_and_its_status_change() -> None:
    old = stored(**LOAD_BALANCER)
    asked = {
        "spec": {**LOAD_BALANCER, "selector": {"a": "b"}},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    }
    new, _ = updated(SERVICE, asked, old)
    assert (new["spec"]["selector"], new["status"]) == ({"a": "b"}, {"loadBalancer": {}})
    new, errors = updated(SERVICE, asked, old, "status")
    assert (new["spec"], errors) == (old["spec"], [])
    assert new["status"]["loadBalancer"]["ingress"] == [{"ip": "192.0.2.1", "ipMode": "VIP"}]
    named = {"spec": LOAD_BALANCER, "status": {"loadBalancer": {"ingress": [{"hostname": "a.example"}]}}}
    assert updated(SERVICE, named, old, "status")[0]["status"] == named["status"]


@pytest.mark.parametrize(
    ("spec", "status", "printed"),
    [
        pytest.param({**ADDRESS, "selector": {"b": "2", "a": "1"}}, {}, "10.96.0.9 <none> 80/TCP a=1,b=2", id="plain"),
        pytest.param(
            {"externalIPs": ["192.0.2.1", "192.0.2.2"]}, {}, "<none> 192.0.2.1,192.0.2.2 80/TCP <none>", id="more"
        ),
        pytest.param(NODE_PORT, {}, "10.96.0.9 <none> 80:30001/TCP <none>", id="NodePort"),
        pytest.param(
            LOAD_BALANCER, {}, "10.96.0.9 <pending> 80:30001/TCP <none>", id="a balancer that is not there yet"
        ),
        pytest.param(
            {**LOAD_BALANCER, "externalIPs": ["192.0.2.9"]},
            {"ingress": [{"ip": "192.0.2.2"}, {"hostname": "a.example"}, {"ip": "192.0.2.1"}, {}]},
            "10.96.0.9 192.0.2.1,192.0.2.2,a.example,192.0.2.9 80:30001/TCP <none>",
            id="one that is",
        ),
        pytest.param({**NAME, "ports": []}, {}, "<none> a.example <none> <none>", id="a name"),
        pytest.param({"type": "X"}, {}, "<none> <unknown> 80/TCP <none>", id="what nobody knows"),
    ],
)
def test_print_columns(spec: Obj, status: Obj, printed: str) -> None:
    obj = stored(**spec)
    obj["status"] = {"loadBalancer": status}
    cells = [str(column.cell(obj, LATER)) for column in SERVICE.resource.columns]
    assert cells[:2] == ["x", obj["spec"]["type"]]
    assert " ".join([*cells[2:5], cells[6]]) == printed
    assert cells[5] == "55m"
