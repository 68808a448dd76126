"""Graph of the Node authorizer: edges from objects to the nodes whose Pods refer to them.

Source: docs/protocol/node-authorization.md#graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.view import FixedView
from mooring.apimachinery.schema import Obj
from mooring.authz.node import NodeGraph


def pod(name: str = "p", node: str = "n1", namespace: str = "ns", **spec: Any) -> Obj:
    bound = {"nodeName": node} if node else {}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {**bound, **spec}}


def volume(**source: Any) -> list[Obj]:
    return [{"name": "v", **source}]


def projected(**source: Any) -> list[Obj]:
    return volume(projected={"sources": [{"downwardAPI": {}}, source]})


@pytest.mark.parametrize(
    ("spec", "resource"),
    [
        pytest.param({"serviceAccountName": "x"}, "serviceaccounts", id="the account it runs as"),
        pytest.param({"imagePullSecrets": [{"name": "x"}]}, "secrets", id="a Secret that pulls images"),
        pytest.param({"volumes": volume(secret={"secretName": "x"})}, "secrets", id="a volume of a Secret"),
        pytest.param({"volumes": projected(secret={"name": "x"})}, "secrets", id="a projected Secret"),
        pytest.param(
            {"volumes": volume(csi={"driver": "d", "nodePublishSecretRef": {"name": "x"}})},
            "secrets",
            id="the Secret of a CSI volume",
        ),
        pytest.param(
            {"volumes": volume(azureFile={"secretName": "x", "shareName": "s"})}, "secrets", id="the Secret of a share"
        ),
        *(
            pytest.param(
                {"volumes": volume(**{source: {"secretRef": {"name": "x"}}})}, "secrets", id=f"that of {source}"
            )
            for source in ("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
        ),
        *(
            pytest.param({containers: [part]}, resource, id=f"{what} in {containers}")
            for containers in ("initContainers", "containers", "ephemeralContainers")
            for what, part, resource in [
                ("all variables of a Secret", {"envFrom": [{"secretRef": {"name": "x"}}]}, "secrets"),
                ("a variable of a Secret", {"env": [{"valueFrom": {"secretKeyRef": {"name": "x"}}}]}, "secrets"),
                ("all variables of a ConfigMap", {"envFrom": [{"configMapRef": {"name": "x"}}]}, "configmaps"),
                (
                    "a variable of a ConfigMap",
                    {"env": [{"name": "E", "value": "x"}, {"valueFrom": {"configMapKeyRef": {"name": "x"}}}]},
                    "configmaps",
                ),
            ]
        ),
        pytest.param({"volumes": volume(configMap={"name": "x"})}, "configmaps", id="a volume of a ConfigMap"),
        pytest.param({"volumes": projected(configMap={"name": "x"})}, "configmaps", id="a projected ConfigMap"),
        pytest.param(
            {"volumes": volume(persistentVolumeClaim={"claimName": "x"})}, "persistentvolumeclaims", id="a claim"
        ),
        pytest.param({"resourceClaims": [{"name": "r", "resourceClaimName": "x"}]}, "resourceclaims", id="a resource"),
    ],
)
def test_a_node_may_access_objects_that_its_pod_names(spec: Obj, resource: str) -> None:
    graph, pods = NodeGraph(), FixedView([pod(**spec)])
    assert graph.related("n1", (resource, "ns", "x"), pods)
    assert not graph.related("n2", (resource, "ns", "x"), pods)
    assert not graph.related("n1", (resource, "elsewhere", "x"), pods)
    assert len(graph) == 2  # that, and the Pod itself


@pytest.mark.parametrize(
    ("obj", "target"),
    [
        pytest.param(pod(), ("pods", "ns", "p"), id="the Pod itself"),
        pytest.param(
            pod(volumes=volume(ephemeral={})), ("persistentvolumeclaims", "ns", "p-v"), id="the claim of a volume"
        ),
        pytest.param(
            {**pod(), "status": {"resourceClaimStatuses": [{"name": "r", "resourceClaimName": "x"}]}},
            ("resourceclaims", "ns", "x"),
            id="a resource claim made for it",
        ),
        pytest.param(
            {**pod(), "status": {"extendedResourceClaimStatus": {"resourceClaimName": "x"}}},
            ("resourceclaims", "ns", "x"),
            id="the claim for its extended resources",
        ),
    ],
)
def test_a_node_reaches(obj: Obj, target: tuple[str, str, str]) -> None:
    assert NodeGraph().related("n1", target, FixedView([obj]))


SECRET = ("secrets", "ns", "x")


def with_secret(name: str = "p", node: str = "n1") -> Obj:
    return pod(name, node, imagePullSecrets=[{"name": "x"}])


def test_a_pod_without_a_node_adds_no_edges() -> None:
    graph, pods = NodeGraph(), FixedView([with_secret(node="")])
    assert not graph.related("", SECRET, pods)
    assert len(graph) == 0


def test_a_mirror_pod_gives_its_node_access_to_itself_only() -> None:
    mirror = with_secret()
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    graph, pods = NodeGraph(), FixedView([mirror])
    assert graph.related("n1", ("pods", "ns", "p"), pods)
    assert not graph.related("n1", SECRET, pods)


class Changing(FixedView):
    """A view that remembers what changed since its `floor`."""

    def __init__(self) -> None:
        super().__init__()
        self.floor = 0
        self.listed = 0
        self._past: list[tuple[int, tuple[str, str]]] = []

    def list(self, namespace: str = "") -> Iterable[Obj]:
        self.listed += 1
        return super().list(namespace)

    def changed(self, since: int) -> Iterable[tuple[str, str]] | None:
        return None if since < self.floor else [place for revision, place in self._past if revision > since]

    def put(self, obj: Obj) -> None:
        self._revision += 1
        place = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        self._objects[place] = obj
        self._past.append((self._revision, place))

    def drop(self, name: str) -> None:
        self._revision += 1
        self._objects.pop(("ns", name), None)
        self._past.append((self._revision, ("ns", name)))


def test_edges_are_updated_incrementally() -> None:
    graph, pods = NodeGraph(), Changing()
    assert not graph.related("n1", SECRET, pods)
    pods.put(with_secret("a"))
    pods.put(with_secret("b"))
    assert graph.related("n1", SECRET, pods)
    pods.drop("a")
    assert graph.related("n1", SECRET, pods), "another Pod still uses it"
    pods.put(with_secret("b", "n2"))
    assert graph.related("n2", SECRET, pods)
    assert not graph.related("n1", SECRET, pods)
    pods.drop("b")
    assert not graph.related("n2", SECRET, pods)
    assert len(graph) == 0
    assert pods.listed == 1


def test_a_view_without_history_is_read_entirely() -> None:
    graph, pods = NodeGraph(), Changing()
    pods.put(with_secret("a"))
    assert graph.related("n1", SECRET, pods)
    pods.drop("a")
    pods.put(with_secret("b", "n2"))
    pods.floor = pods.revision
    assert not graph.related("n1", SECRET, pods)
    assert graph.related("n2", SECRET, pods)


def test_another_view_rebuilds_the_graph() -> None:
    graph = NodeGraph()
    assert graph.related("n1", SECRET, FixedView([with_secret()]))
    assert not graph.related("n1", SECRET, FixedView())


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", "n1", "n2", None]), st.sampled_from("xyz"), st.booleans()),
    max_size=12,
)


@given(STEPS)
def test_the_graph_depends_only_on_the_current_pods(
    steps: list[tuple[str, str | None, str, bool]],
) -> None:
    graph, pods = NodeGraph(), Changing()
    for name, node, secret, ask in steps:
        if node is None:
            pods.drop(name)
        else:
            pods.put(pod(name, node, imagePullSecrets=[{"name": secret}, {"name": "x"}]))
        if ask:
            graph.related("n1", SECRET, pods)
    fresh = NodeGraph()
    for node in ("n1", "n2"):
        for target in [*(("secrets", "ns", name) for name in "xyz"), *(("pods", "ns", name) for name in "abc")]:
            assert graph.related(node, target, pods) == fresh.related(node, target, FixedView(pods.list()))
    assert len(graph) == len(fresh)
