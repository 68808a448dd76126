"""The kubelet with its certificate: its Node, Lease, Events, Pods and the objects that Pods use.

Source: docs/protocol/kubelet-certificates.md, docs/protocol/node-authorization.md.

Requests are those of the kubelet's typed client: protobuf bodies, protobuf accepted; patches are JSON.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.clock import SystemClock, rfc3339
from tests.kubeadm.peers import Peer
from tests.support.typedclient import STRATEGIC, WATCH_LIST, Client, RefusedError, poll

LEASES = "kube-node-lease"
CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")


def now() -> str:
    return rfc3339(SystemClock().now())


def condition(kind: str, status: str, **more: str) -> Obj:
    at = now()
    return {
        "type": kind,
        "status": status,
        "lastHeartbeatTime": at,
        "lastTransitionTime": at,
        "reason": f"Kubelet{kind}",
        "message": "as the kubelet says",
        **more,
    }


def initial_node(name: str) -> Obj:
    """Return the Node that the kubelet registers in one POST, with its whole status."""
    resources = {
        "cpu": "2",
        "ephemeral-storage": "61255492Ki",
        "hugepages-2Mi": "0",
        "memory": "4018120Ki",
        "pods": "110",
    }
    return {
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
            },
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {"taints": [{"key": "example.com/starting", "value": "x", "effect": "NoSchedule"}]},
        "status": {
            "capacity": resources,
            "allocatable": {**resources, "memory": "3915720Ki"},
            "conditions": [condition(kind, "False") for kind in CONDITIONS],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": "0f0f",
                "systemUUID": "4c4c",
                "bootID": "7a7a",
                "kernelVersion": "6.12.0",
                "osImage": "Test",
                "containerRuntimeVersion": "containerd://2.1.0",
                "kubeletVersion": "v1.36.2",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "images": [{"names": ["registry.example/pause:3.10"], "sizeBytes": 736000}],
            "runtimeHandlers": [{"name": "", "features": {"recursiveReadOnlyMounts": True, "userNamespaces": True}}],
            "features": {"supplementalGroupsPolicy": True},
        },
    }


@pytest.fixture
def registered(kubelet: Peer, node: str) -> Obj:
    return kubelet.create("nodes", "", initial_node(node))


@pytest.fixture
def space(admin: Client) -> Iterator[str]:
    name = str(
        admin.create("namespaces", "", {"metadata": {"name": f"kubelet-{secrets.token_hex(4)}"}})["metadata"]["name"]
    )
    admin.await_object("serviceaccounts", name, "default")
    yield name
    admin.delete("namespaces", "", name)


class TestNode:
    def test_registers_with_everything_it_knows(self, registered: Obj, node: str) -> None:
        wanted = initial_node(node)
        assert registered["metadata"]["labels"] == wanted["metadata"]["labels"]
        assert registered["spec"]["taints"] == wanted["spec"]["taints"]
        status = registered["status"]
        for part in ("capacity", "allocatable", "addresses", "nodeInfo", "images", "runtimeHandlers", "features"):
            assert status[part] == wanted["status"][part], part
        assert [one["type"] for one in status["conditions"]] == list(CONDITIONS)

    def test_finds_itself_registered_after_a_restart(self, kubelet: Peer, registered: Obj, node: str) -> None:
        with pytest.raises(RefusedError) as refused:
            kubelet.create("nodes", "", initial_node(node))
        assert (refused.value.code, refused.value.status["reason"]) == (409, "AlreadyExists")
        assert kubelet.get("nodes", "", node)["metadata"]["uid"] == registered["metadata"]["uid"]

    def test_reports_conditions_by_strategic_merge(self, kubelet: Peer, registered: Obj, node: str) -> None:
        patch = {
            "status": {
                "$setElementOrder/conditions": [{"type": kind} for kind in CONDITIONS],
                "conditions": [
                    {"type": "MemoryPressure", "lastHeartbeatTime": now()},
                    condition("Ready", "True", reason="KubeletReady"),
                ],
                "images": [{"names": ["registry.example/a:1"], "sizeBytes": 1}, {"names": ["registry.example/b:1"]}],
                "nodeInfo": {"kubeletVersion": "v1.36.3"},
            }
        }
        status = kubelet.patch_status("nodes", node, patch)["status"]
        assert [(one["type"], one["status"]) for one in status["conditions"]] == [
            (kind, "True" if kind == "Ready" else "False") for kind in CONDITIONS
        ]
        assert status["conditions"][0]["reason"] == "KubeletMemoryPressure"
        assert [image["names"] for image in status["images"]] == [["registry.example/a:1"], ["registry.example/b:1"]]
        assert (status["nodeInfo"]["kubeletVersion"], status["nodeInfo"]["machineID"]) == ("v1.36.3", "0f0f")

    def test_replaces_its_addresses_as_a_whole(self, kubelet: Peer, registered: Obj, node: str) -> None:
        """Replace addresses by `$patch: replace`: their merge key is the type, and two may have one type."""
        addresses = [
            {"type": "InternalIP", "address": "192.0.2.8"},
            {"type": "InternalIP", "address": "2001:db8::8"},
            {"type": "Hostname", "address": node},
        ]
        patch = {"status": {"addresses": [*addresses, {"$patch": "replace"}]}}
        assert kubelet.patch_status("nodes", node, patch)["status"]["addresses"] == addresses

    def test_status_and_labels_change_in_one_patch(self, kubelet: Peer, registered: Obj, node: str) -> None:
        patch = {"metadata": {"annotations": {"example.com/seen": "yes"}}, "status": {"phase": "Running"}}
        assert kubelet.patch_status("nodes", node, patch)["metadata"]["annotations"]["example.com/seen"] == "yes"

    def test_follows_itself_by_name(self, kubelet: Peer, registered: Obj, node: str) -> None:
        selector = f"metadata.name={node}"
        assert [one["metadata"]["name"] for one in kubelet.list("nodes", fieldSelector=selector)["items"]] == [node]
        with kubelet.watch("nodes", **WATCH_LIST, fieldSelector=selector) as watching:
            assert [one.brief for one in watching.initial()] == [f"ADDED {node}"]
            kubelet.patch_status("nodes", node, {"status": {"phase": "Running"}})
            assert watching.next().brief == f"MODIFIED {node}"

    def test_follows_services_which_every_node_may_read(self, kubelet: Peer) -> None:
        with kubelet.watch("services", **WATCH_LIST) as watching:
            assert isinstance(watching.initial(), list)


class TestLease:
    def lease(self, node: Obj) -> Obj:
        name = node["metadata"]["name"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        at = SystemClock().now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": at}
        return {"metadata": {"name": name, "namespace": LEASES, "ownerReferences": [owner]}, "spec": spec}

    def test_is_made_when_it_is_not_there_and_renewed_with_its_version(
        self, kubelet: Peer, registered: Obj, node: str
    ) -> None:
        with pytest.raises(RefusedError) as refused:
            kubelet.get("leases", LEASES, node)
        assert refused.value.code == 404
        wanted = self.lease(registered)
        made = kubelet.create("leases", LEASES, wanted)
        assert made["spec"] == wanted["spec"]
        assert made["metadata"]["ownerReferences"] == wanted["metadata"]["ownerReferences"]
        made["spec"]["renewTime"] = self.lease(registered)["spec"]["renewTime"]
        renewed = kubelet.update("leases", LEASES, made)
        assert int(renewed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])

        with pytest.raises(RefusedError) as conflict:
            kubelet.update("leases", LEASES, made)
        assert (conflict.value.code, conflict.value.status["reason"]) == (409, "Conflict")

    def test_of_another_node_is_not_touched(self, kubelet: Peer, registered: Obj) -> None:
        other = self.lease(registered)
        other["metadata"]["name"] = "another"
        with pytest.raises(RefusedError) as refused:
            kubelet.create("leases", LEASES, other)
        assert refused.value.code == 403


class TestCsiNode:
    """CSINode of a kubelet: it is NotReady until it has created one, and exits after two minutes without."""

    def csi_node(self, node: Obj) -> Obj:
        name = node["metadata"]["name"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        annotations = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/gce-pd"}
        return {"metadata": {"name": name, "annotations": annotations, "ownerReferences": [owner]}, "spec": {}}

    def test_is_made_empty_and_gets_its_drivers(self, kubelet: Peer, registered: Obj, node: str) -> None:
        with pytest.raises(RefusedError) as refused:
            kubelet.get("csinodes", "", node)
        assert (refused.value.code, refused.value.status["details"]["name"]) == (404, node)
        made = kubelet.create("csinodes", "", self.csi_node(registered))
        driver = {"name": "disk.example", "nodeID": node, "topologyKeys": ["topology.example/zone"]}
        updated = kubelet.update("csinodes", "", {**made, "spec": {"drivers": [driver]}})
        assert updated["spec"]["drivers"] == [driver]

    def test_goes_with_its_node(self, kubelet: Peer, admin: Client, registered: Obj, node: str) -> None:
        kubelet.create("csinodes", "", self.csi_node(registered))
        admin.delete("nodes", "", node)
        path = f"/apis/storage.k8s.io/v1/csinodes/{node}"
        poll(lambda: admin.refusal("GET", path) == 404, "the CSINode is collected")

    def test_of_another_node_is_not_touched(self, kubelet: Peer, registered: Obj) -> None:
        other = self.csi_node(registered)
        other["metadata"]["name"] = "another"
        with pytest.raises(RefusedError) as refused:
            kubelet.create("csinodes", "", other)
        assert refused.value.code == 403
        assert "same name as the requesting node" in refused.value.status["message"]


def test_events_are_posted_and_counted_up_by_patch(kubelet: Peer, registered: Obj, node: str) -> None:
    """Follow the recorder: POST to `default` for a Node, then a strategic merge PATCH of the count; POST again after a loss."""
    event = {
        "metadata": {"name": f"{node}.18a1b2c3d4e5f607", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node},
        "reason": "Starting",
        "message": "Starting kubelet.",
        "source": {"component": "kubelet", "host": node},
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
        "type": "Normal",
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    }
    made = kubelet.create("events", "default", event)
    assert made["involvedObject"] == event["involvedObject"]
    name = made["metadata"]["name"]
    patched = kubelet.patch("events", "default", name, {"count": 2, "lastTimestamp": now()})
    assert (patched["count"], patched["reason"]) == (2, "Starting")
    with pytest.raises(RefusedError) as refused:
        kubelet.patch("events", "default", f"{name}x", {"count": 3})
    assert (refused.value.code, refused.value.status["reason"]) == (404, "NotFound")


def test_knows_itself(kubelet: Peer, node: str) -> None:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    user = kubelet.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)["status"]["userInfo"]
    assert user["username"] == f"system:node:{node}"
    assert user["groups"] == ["system:nodes", "system:authenticated"]


class TestPods:
    @pytest.fixture
    def pod(self, admin: Client, registered: Obj, space: str, node: str) -> Obj:
        """Create a Pod on the node that uses a Secret and a ConfigMap."""
        admin.create("secrets", space, {"metadata": {"name": "used"}, "data": {"k": "dg=="}})
        admin.create("secrets", space, {"metadata": {"name": "unused"}, "data": {"k": "dg=="}})
        admin.create("configmaps", space, {"metadata": {"name": "used"}, "data": {"k": "v"}})
        spec = {
            "nodeName": node,
            "containers": [
                {
                    "name": "c",
                    "image": "x",
                    "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "used", "key": "k"}}}],
                }
            ],
            "volumes": [{"name": "v", "configMap": {"name": "used"}}],
        }
        return admin.create("pods", space, {"metadata": {"name": "p"}, "spec": spec})

    def test_are_followed_by_the_name_of_the_node(self, kubelet: Peer, admin: Client, pod: Obj, node: str) -> None:
        selector = f"spec.nodeName={node}"
        with kubelet.watch("pods", **WATCH_LIST, fieldSelector=selector) as watching:
            assert [one.brief for one in watching.initial()] == ["ADDED p"]
            kubelet.patch(
                "pods", pod["metadata"]["namespace"], "p", {"status": {"phase": "Running"}}, STRATEGIC, "status"
            )
            assert watching.next().object["status"]["phase"] == "Running"

    def test_open_the_secrets_and_config_maps_they_use(self, kubelet: Peer, pod: Obj, space: str) -> None:
        """Read as the kubelet's managers do: get, and a WatchList of the one object by its name."""
        for plural, name in (("secrets", "used"), ("configmaps", "used"), ("configmaps", "kube-root-ca.crt")):
            assert kubelet.get(plural, space, name)["metadata"]["name"] == name
            with kubelet.watch(plural, space, **WATCH_LIST, fieldSelector=f"metadata.name={name}") as watching:
                assert [one.name for one in watching.initial()] == [name]

    @pytest.mark.parametrize(
        "ask",
        [
            pytest.param(lambda peer, space: peer.get("secrets", space, "unused"), id="a Secret they do not use"),
            pytest.param(lambda peer, space: peer.get("secrets", space, "absent"), id="a Secret that is not there"),
            pytest.param(lambda peer, space: peer.get("secrets", "kube-system", "used"), id="its namesake elsewhere"),
            pytest.param(lambda peer, space: peer.list("secrets", space), id="all Secrets"),
            pytest.param(lambda peer, space: peer.list("pods", space), id="all Pods"),
        ],
    )
    def test_open_nothing_else(self, kubelet: Peer, pod: Obj, space: str, ask: Callable[[Client, str], Any]) -> None:
        with pytest.raises(RefusedError) as refused:
            ask(kubelet, space)
        assert (refused.value.code, refused.value.status["reason"]) == (403, "Forbidden")

    def test_close_them_again_when_they_are_gone(self, kubelet: Peer, admin: Client, pod: Obj, space: str) -> None:
        assert kubelet.get("secrets", space, "used")
        kubelet.delete("pods", space, "p", gracePeriodSeconds=0)
        with pytest.raises(RefusedError) as refused:
            kubelet.get("secrets", space, "used")
        assert refused.value.code == 403
        assert "no relationship found between node" in refused.value.status["message"]

    def token_request(self, pod: Obj, **more: str) -> Obj:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"], **more}
        return {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": 3607, "boundObjectRef": bound},
        }

    def test_get_tokens_from_their_node(self, kubelet: Peer, admin: Client, pod: Obj, space: str, node: str) -> None:
        path = f"/api/v1/namespaces/{space}/serviceaccounts/default/token"
        made = kubelet.call("POST", path, self.token_request(pod))
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": made["status"]["token"]},
        }
        status = kubelet.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
        assert status["authenticated"] is True
        assert status["user"]["username"] == f"system:serviceaccount:{space}:default"
        assert status["user"]["extra"]["authentication.kubernetes.io/node-name"] == [node]

    def test_get_no_token_for_a_pod_of_another_life(self, kubelet: Peer, pod: Obj, space: str) -> None:
        path = f"/api/v1/namespaces/{space}/serviceaccounts/default/token"
        assert kubelet.refusal("POST", path, self.token_request(pod, uid="another")) in (403, 409)
        unbound = self.token_request(pod)
        del unbound["spec"]["boundObjectRef"]
        assert kubelet.refusal("POST", path, unbound) == 403

    def test_their_account_may_be_read(self, kubelet: Peer, pod: Obj, space: str) -> None:
        assert kubelet.get("serviceaccounts", space, "default")["metadata"]["name"] == "default"

    def test_static_ones_are_mirrored(self, kubelet: Peer, registered: Obj, node: str) -> None:
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": node,
            "uid": registered["metadata"]["uid"],
            "controller": True,
        }
        mirror = {
            "metadata": {
                "name": f"etcd-{node}",
                "annotations": {"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.source": "file"},
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x"}]},
        }
        made = kubelet.create("pods", "kube-system", mirror)
        assert made["metadata"]["annotations"]["kubernetes.io/config.mirror"] == "hash"
        kubelet.delete("pods", "kube-system", f"etcd-{node}", gracePeriodSeconds=0)
