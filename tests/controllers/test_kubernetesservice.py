"""kubernetes-service-controller: default/kubernetes, its Endpoints and its EndpointSlice.

Source: docs/protocol/namespaces.md#the-service-defaultkubernetes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Delete, Update
from mooring.controllers.kubernetesservice import KubernetesService
from tests.support.plans import enqueued, plan, thing, views, with_metadata

KEY = ("default", "kubernetes")
DEFAULT = thing("default", status={"phase": "Active"})
FIRST = "10.96.0.1"
CONTROLLER = KubernetesService(lambda: ("192.0.2.1", "192.0.2.2"), 6443, FIRST)
HERE = {"name": "kubernetes", "namespace": "default"}
OUTER = {"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}
INNER = {"name": "https", "port": 6443, "protocol": "TCP"}
KINDS = ("services", "endpoints", "endpointslices")


def created(addresses: Sequence[str] = CONTROLLER.addresses()) -> dict[str, Obj]:
    """Return the objects created in an empty cluster, by plural."""
    actions = plan(KubernetesService(lambda: addresses, 6443, FIRST), KEY, views(namespaces=[DEFAULT]))
    assert all(isinstance(action, Create) for action in actions)
    return {action.plural: action.obj for action in actions if isinstance(action, Create)}


def stored() -> dict[str, Obj]:
    """Return the created objects as stored, with the fields that the server adds."""
    found = copy.deepcopy(created())
    found["services"]["spec"] |= {"ipFamilies": ["IPv4"], "internalTrafficPolicy": "Cluster"}
    return {name: with_metadata(obj, uid=f"uid-of-{name}", resourceVersion="7") for name, obj in found.items()}


def planned(objects: dict[str, Obj], controller: KubernetesService = CONTROLLER) -> list[Action]:
    lists = {plural: [obj] for plural, obj in objects.items()}
    return plan(controller, KEY, views(namespaces=[DEFAULT], **lists))


def test_objects_created_in_a_new_cluster() -> None:
    labels = {"component": "apiserver", "provider": "kubernetes"}
    assert created() == {
        "services": {
            "kind": "Service",
            "apiVersion": "v1",
            "metadata": {**HERE, "labels": labels},
            "spec": {
                "type": "ClusterIP",
                "clusterIP": "10.96.0.1",
                "clusterIPs": ["10.96.0.1"],
                "ports": [OUTER],
                "sessionAffinity": "None",
            },
        },
        "endpoints": {
            "kind": "Endpoints",
            "apiVersion": "v1",
            "metadata": {**HERE, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}], "ports": [INNER]}],
        },
        "endpointslices": {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {**HERE, "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "ports": [INNER],
            "endpoints": [{"addresses": [ip], "conditions": {"ready": True}} for ip in ("192.0.2.1", "192.0.2.2")],
        },
    }


def test_without_an_address_the_service_has_no_endpoints() -> None:
    found = created(())
    assert "subsets" not in found["endpoints"]
    assert found["endpointslices"]["endpoints"] == []
    assert found["services"]["spec"]["clusterIP"] == "10.96.0.1"


def test_correct_objects_are_not_updated() -> None:
    assert planned(stored()) == []
    empty = KubernetesService(lambda: (), 6443, FIRST)
    found = {name: with_metadata(obj, uid="u", resourceVersion="7") for name, obj in created(()).items()}
    assert planned(found, empty) == []
    found["endpointslices"].pop("endpoints")
    assert planned(found, empty) == []


@pytest.mark.parametrize("namespace", [[], [thing("default", status={"phase": "Terminating"})]])
def test_no_action_without_an_active_namespace(namespace: list[Obj]) -> None:
    assert plan(CONTROLLER, KEY, views(namespaces=namespace)) == []


@pytest.mark.parametrize("plural", KINDS)
def test_a_deleted_object_is_created_again(plural: str) -> None:
    found = stored()
    del found[plural]
    assert planned(found) == [Create(plural, created()[plural])]


@pytest.mark.parametrize(
    ("plural", "wrong"),
    [
        pytest.param("services", {"ports": [{**OUTER, "port": 444}]}, id="ports"),
        pytest.param("services", {"selector": {"app": "mine"}}, id="a selector"),
        pytest.param("services", {"type": "NodePort"}, id="the type"),
    ],
)
def test_a_changed_service_is_corrected(plural: str, wrong: dict[str, Any]) -> None:
    right = stored()[plural]
    found = {**right, "spec": {**right["spec"], **wrong}}
    assert planned({**stored(), plural: found}) == [Update(plural, right)]


@pytest.mark.parametrize(
    ("plural", "wrong"),
    [
        pytest.param("endpoints", {"subsets": []}, id="endpoints without addresses"),
        pytest.param("endpointslices", {"ports": []}, id="a slice without ports"),
    ],
)
def test_changed_endpoints_are_corrected(plural: str, wrong: dict[str, Any]) -> None:
    right = stored()[plural]
    assert planned({**stored(), plural: {**right, **wrong}}) == [Update(plural, right)]


@pytest.mark.parametrize("plural", ["endpoints", "endpointslices"])
def test_additional_labels_stay(plural: str) -> None:
    right = stored()[plural]
    found = with_metadata(right, labels={"mine": "too"})
    both = with_metadata(right, labels={"mine": "too", **right["metadata"]["labels"]})
    assert planned({**stored(), plural: found}) == [Update(plural, both)]
    assert planned({**stored(), plural: both}) == []


def test_a_service_at_another_address_is_replaced() -> None:
    found = stored()
    found["services"]["spec"]["clusterIP"] = "10.96.0.9"
    assert planned(found) == [Delete("services", *KEY, "uid-of-services", "7")]


def test_a_slice_of_another_type_is_replaced() -> None:
    found = stored()
    found["endpointslices"]["addressType"] = "IPv6"
    assert planned(found) == [Delete("endpointslices", *KEY, "uid-of-endpointslices", "7")]


def test_keys_of_an_event() -> None:
    other = {name: [thing("other", "default"), thing("kubernetes", "other")] for name in KINDS}
    assert enqueued(CONTROLLER, views(namespaces=[thing("other")], **other)) == []
    own = {name: [obj] for name, obj in stored().items()}
    assert enqueued(CONTROLLER, views(namespaces=[DEFAULT], **own)) == [KEY] * 4


def test_a_range_of_ipv6_has_slices_of_ipv6() -> None:
    actions = plan(
        KubernetesService(lambda: ("2001:db8::1", "192.0.2.1"), 6443, "fd00::1"), KEY, views(namespaces=[DEFAULT])
    )
    found = {action.plural: action.obj for action in actions if isinstance(action, Create)}
    assert found["services"]["spec"]["clusterIPs"] == ["fd00::1"]
    assert found["endpoints"]["subsets"][0]["addresses"] == [{"ip": "2001:db8::1"}]
    assert found["endpointslices"]["addressType"] == "IPv6"
