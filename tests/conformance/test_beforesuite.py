"""Requests of the e2e binary before any test: BeforeSuite of test/e2e/e2e.go, its eight steps in order.

Source: docs/protocol/e2e-tests.md#before-the-suite.

Rules kept here: flags have upstream's defaults, so that the binary passes without special ones; only the Node must exist before the
run (step 4). The server is one of its own, because the steps look at every Node.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping

import pytest

from mooring.apimachinery.schema import Obj
from mooring.clock import SystemClock, rfc3339
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.typedclient import JSON, PROTOBUF, TYPED, Client, Wire

WORKLOADS = ("replicationcontrollers", "replicasets", "pods", "daemonsets")
CLIENTS = {
    "the clientset of the suite": TYPED,
    "the clients of tests": Wire(f"{PROTOBUF}, */*", PROTOBUF),
    "a clientset that reads protobuf only": Wire(PROTOBUF, PROTOBUF),
}
NON_BLOCKING_TAINTS = ("node-role.kubernetes.io/control-plane",)


@pytest.fixture(scope="module")
def suite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Start a server with one Node, tainted as a control plane."""
    server = start_server(tmp_path_factory.mktemp("suite") / "data")
    try:
        client = Client(server)
        taint = {"key": NON_BLOCKING_TAINTS[0], "effect": "NoSchedule"}
        client.create("nodes", "", {"metadata": {"name": "only"}, "spec": {"taints": [taint]}})
        eventually(
            lambda: client.list("services", "default")["items"]
        )  # a controller makes it, as kube-apiserver's does
        client.close()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=list(CLIENTS.values()), ids=list(CLIENTS))
def suite(request: pytest.FixtureRequest, suite_server: LiveServer) -> Iterator[Client]:
    """Create the client of step 1, from the kubeconfig that `mooring init` wrote."""
    client = Client(suite_server, request.param)
    try:
        beat(client)
        yield client
    finally:
        client.close()


def beat(client: Client) -> None:
    """Report that the Node is Ready, as its kubelet goes on to do."""
    now = rfc3339(SystemClock().now())
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
    client.retry_update("nodes", "", "only", lambda node: node.update(status={"conditions": [ready]}), "status")


def test_step_2_a_clean_start_would_find_every_namespace(suite: Client) -> None:
    names = {item["metadata"]["name"] for item in suite.list("namespaces")["items"]}
    assert names == {"default", "kube-system", "kube-public", "kube-node-lease"}


def conditions(node: Obj) -> Mapping[str, str]:
    return {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", [])}


def schedulable(node: Obj) -> bool:
    """Return True when e2enode.IsNodeSchedulable would, taints included."""
    spec, told = node.get("spec", {}), conditions(node)
    blocking = [taint for taint in spec.get("taints", []) if taint["key"] not in NON_BLOCKING_TAINTS]
    ready = told.get("Ready") == "True" and told.get("NetworkUnavailable", "False") != "True"
    return ready and not spec.get("unschedulable") and not blocking


def test_steps_3_and_4_all_nodes_are_schedulable_and_there_is_one(suite: Client) -> None:
    def nodes() -> list[tuple[str, bool]]:
        listed = suite.list("nodes", resourceVersion="0", fieldSelector="spec.unschedulable=false")
        return [(node["metadata"]["name"], schedulable(node)) for node in listed["items"]]

    eventually(lambda: nodes() == [("only", True)])  # its taint not-ready goes a moment after the heartbeat


def test_a_cordoned_node_is_left_out(suite: Client) -> None:
    """Select as step 3 does: its field selector leaves out Nodes that are not schedulable."""
    patched = suite.patch("nodes", "", "only", {"spec": {"unschedulable": True}})
    assert patched["spec"]["unschedulable"] is True
    query = {"resourceVersion": patched["metadata"]["resourceVersion"], "fieldSelector": "spec.unschedulable=false"}
    assert suite.list("nodes", **query)["items"] == []
    suite.patch("nodes", "", "only", {"spec": {"unschedulable": None}})


@pytest.mark.parametrize("plural", WORKLOADS)
def test_steps_5_and_6_no_workload_runs_in_kube_system(suite: Client, plural: str) -> None:
    listed = suite.list(plural, "kube-system")
    assert listed["items"] == []
    assert int(listed["metadata"]["resourceVersion"]) > 0


def test_step_7_the_version_is_served(suite: Client) -> None:
    """Read the version as JSON, which discovery clients always use."""
    answer = suite.send("GET", "/version", accept=f"{JSON}, */*")
    told = json.loads(answer.body)
    assert answer.code == 200
    assert told["gitVersion"].startswith(f"v{told['major']}.{told['minor'].rstrip('+')}.")


def test_step_8_the_service_default_kubernetes_says_the_ip_family(suite: Client) -> None:
    service = suite.get("services", "default", "kubernetes")
    assert ipaddress.ip_address(service["spec"]["clusterIP"]).version in (4, 6)
