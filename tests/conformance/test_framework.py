"""What the e2e binary does before any test: BeforeSuite and BeforeEach of test/e2e (reference/kubernetes.md 8.1, 8.2)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import framework_namespace
from tests.support.typedclient import WATCH_LIST, Client


def test_every_schedulable_node_is_ready_and_there_is_one(client: Client, node: str) -> None:
    listed = client.list("nodes", resourceVersion="0", fieldSelector="spec.unschedulable=false")
    conditions = {
        item["metadata"]["name"]: {one["type"]: one["status"] for one in item["status"]["conditions"]}
        for item in listed["items"]
        if item["metadata"]["name"] == node
    }
    assert conditions == {node: {"Ready": "True"}}
    assert not any(item.get("spec", {}).get("unschedulable") for item in listed["items"])


def test_the_pods_of_kube_system_can_be_listed(client: Client) -> None:
    assert client.list("pods", "kube-system")["kind"] == "PodList"


def test_the_version_is_told(client: Client) -> None:
    assert client.send("GET", "/version", accept="application/json, */*").code == 200


def test_the_service_default_kubernetes_says_the_ip_family(client: Client) -> None:
    service = client.get("services", "default", "kubernetes")
    assert service["spec"]["clusterIP"]


@pytest.mark.parametrize(
    ("plural", "name"), [("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")], ids=lambda text: str(text)
)
def test_what_a_namespace_needs_comes_by_list_and_watch_too(client: Client, plural: str, name: str) -> None:
    """client-go before WatchList, and with it switched off."""
    space = framework_namespace(client, "listwatch")
    only = f"metadata.name={name}"
    listed = client.list(plural, space, fieldSelector=only, resourceVersion="0", limit="500")
    if not listed["items"]:
        with client.watch(
            plural, space, fieldSelector=only, resourceVersion=listed["metadata"]["resourceVersion"]
        ) as on:
            assert on.until(lambda event: event.type == "ADDED").name == name
    with client.watch(plural, space, **{**WATCH_LIST, "fieldSelector": only}) as watching:
        assert [event.name for event in watching.initial()] == [name]
    client.delete("namespaces", "", space)
