"""Test which changes of Pods NodeRestriction allows a node.

Source: docs/protocol/node-authorization.md#noderestriction.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.view import FixedView
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.errors import ApiError, ForbiddenError, InvalidError, NotFoundError
from mooring.identity import NODE_PREFIX, NODES, UserInfo
from mooring.registry.admission.request import AdmissionRequest
from mooring.registry.admission.table import ADMISSION
from tests.support.manualclock import EPOCH
from tests.support.registryroom import ADMIN, Room, in_room

NODE = UserInfo(NODE_PREFIX + "n1", groups=(NODES,))
NODE_VIEW = FixedView([{"metadata": {"name": "n1", "uid": "n1-uid"}}])
CLAIM = {"name": "r", "resourceClaimName": "claim"}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1-uid", "controller": True}


def mirror(**changes: Any) -> Obj:
    """Return a mirror Pod of n1; `changes` replace members of its spec."""
    return {
        "metadata": {
            "name": "p",
            "namespace": "x",
            "annotations": {"kubernetes.io/config.mirror": "h"},
            "ownerReferences": [copy.deepcopy(OWNER)],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}], **changes},
    }


def owned(*owners: Obj) -> Obj:
    obj = mirror()
    obj["metadata"]["ownerReferences"] = list(owners)
    return obj


def nobody(asked: Attributes) -> Decision:
    return Decision(Ruling.NO_OPINION)


def admit(new: Obj | None, old: Obj | None, subresource: str = "", nodes: FixedView = NODE_VIEW) -> None:
    ADMISSION["NodeRestriction"]().admit(
        AdmissionRequest(
            operation="DELETE" if new is None else "CREATE" if old is None else "UPDATE",
            kind=BY_PLURAL["pods"],
            namespace="x",
            name="p",
            new=new,
            old=old,
            change=Change(NODE, EPOCH),
            views={"nodes": nodes},
            authorize=nobody,
            subresource=subresource,
        )
    )


def without_annotation() -> Obj:
    obj = mirror()
    del obj["metadata"]["annotations"]
    return obj


@pytest.mark.parametrize(
    ("new", "why"),
    [
        pytest.param(without_annotation(), "can only create mirror pods", id="a pod of its own making"),
        pytest.param(
            mirror(nodeName="n2"), "can only create pods with spec.nodeName set to itself", id="on another node"
        ),
        pytest.param(mirror(nodeName=""), "can only create pods with spec.nodeName set to itself", id="on no node"),
        pytest.param(owned(), "an owner reference set to itself", id="owned by nobody"),
        pytest.param(owned(OWNER, OWNER | {"controller": False}), "a single owner reference", id="owned by two"),
        pytest.param(owned(OWNER | {"name": "n2"}), "an owner reference set to itself", id="owned by another node"),
        pytest.param(owned(OWNER | {"kind": "Pod"}), "an owner reference set to itself", id="owned by a pod"),
        pytest.param(owned(OWNER | {"controller": False}), "a controller owner reference", id="not controlled by it"),
        pytest.param(
            owned(OWNER | {"blockOwnerDeletion": True}), "must not set blockOwnerDeletion", id="blocking its deletion"
        ),
        pytest.param(owned(OWNER | {"uid": "old"}), "node n1 UID mismatch", id="owned by an earlier Node"),
        pytest.param(mirror(serviceAccountName="a"), "reference serviceaccounts", id="with a service account"),
        pytest.param(mirror(imagePullSecrets=[{"name": "s"}]), "reference secrets", id="with a secret for images"),
    ],
)
def test_a_node_may_not_create(new: Obj, why: str) -> None:
    with pytest.raises(ForbiddenError) as caught:
        admit(new, None)
    assert why in caught.value.message


VOLUMES: list[tuple[str, Obj, str]] = [
    ("a Secret", {"secret": {"secretName": "s"}}, "secrets"),
    ("a driver's Secret", {"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}, "secrets"),
    ("a Secret among others", {"projected": {"sources": [{"downwardAPI": {}}, {"secret": {"name": "s"}}]}}, "secrets"),
    ("a ConfigMap", {"configMap": {"name": "c"}}, "configmaps"),
    ("trust anchors", {"projected": {"sources": [{"clusterTrustBundle": {"path": "p"}}]}}, "clustertrustbundles"),
    ("a claim", {"persistentVolumeClaim": {"claimName": "c"}}, "persistentvolumeclaims"),
    ("a share", {"azureFile": {"secretName": "s"}}, "secrets"),
    ("a driver", {"csi": {"driver": "d"}}, r"csidrivers \(via CSI volumes\)"),
    ("a cluster", {"glusterfs": {"endpoints": "e", "path": "p"}}, r"endpoints \(via glusterFS volumes\)"),
    (
        "a token",
        {"projected": {"sources": [{"serviceAccountToken": {"path": "p"}}]}},
        r"serviceaccounts \(via projected volumes\)",
    ),
    ("a certificate", {"projected": {"sources": [{"podCertificate": {}}]}}, "podcertificates"),
    ("what logs in with a Secret", {"rbd": {"secretRef": {}}}, "secrets"),
    ("a claim of its own", {"ephemeral": {"volumeClaimTemplate": {}}}, "persistentvolumeclaims"),
]


@pytest.mark.parametrize(("volume", "resource"), [row[1:] for row in VOLUMES], ids=[row[0] for row in VOLUMES])
def test_a_mirror_mounts_nothing_from_the_api(volume: Obj, resource: str) -> None:
    with pytest.raises(ForbiddenError, match=f"can not create pods that reference {resource}"):
        admit(mirror(volumes=[{"name": "v", **volume}]), None)


def test_a_mirror_has_no_devices() -> None:
    with pytest.raises(ForbiddenError, match="can not create pods that reference resourceclaims"):
        admit(mirror(resourceClaims=[{"name": "r", "resourceClaimTemplateName": "t"}]), None)


@pytest.mark.parametrize("group", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("parts", "resource"),
    [
        pytest.param({"envFrom": [{"secretRef": {"name": "s"}}]}, "secrets", id="a whole Secret"),
        pytest.param({"envFrom": [{"configMapRef": {"name": "c"}}]}, "configmaps", id="a whole ConfigMap"),
        pytest.param({"env": [{"name": "A"}, {"valueFrom": {"secretKeyRef": {}}}]}, "secrets", id="a key of a Secret"),
        pytest.param({"env": [{"valueFrom": {"configMapKeyRef": {}}}]}, "configmaps", id="a key of a ConfigMap"),
    ],
)
def test_a_mirror_takes_no_variables_from_the_api(group: str, parts: Obj, resource: str) -> None:
    with pytest.raises(ForbiddenError, match=f"can not create pods that reference {resource}"):
        admit(mirror(**{group: [{"name": "c", **parts}]}), None)


def test_a_node_creates_mirrors_that_read_nothing() -> None:
    admit(mirror(), None)
    facts = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    admit(
        mirror(
            volumes=[{"name": "v", "hostPath": {"path": "/etc"}}],
            containers=[{"name": "c", "image": "i", "env": [facts, {"name": "B", "value": "b"}]}],
        ),
        None,
    )


def test_a_mirror_needs_its_node() -> None:
    with pytest.raises(NotFoundError):
        admit(mirror(), None, nodes=FixedView([]))


@pytest.mark.parametrize(
    ("act", "why"),
    [
        pytest.param(
            lambda old: admit(None, old), "can only delete pods with spec.nodeName set to itself", id="delete"
        ),
        pytest.param(lambda old: admit(old, old, "status"), "can only update pod status for pods with", id="report on"),
    ],
)
def test_a_node_sees_to_its_own_pods_only(act: Callable[[Obj], None], why: str) -> None:
    act(mirror())
    for old in (mirror(nodeName="n2"), {"metadata": {"name": "p"}}):
        with pytest.raises(ForbiddenError) as caught:
            act(old)
        assert why in caught.value.message


def test_a_node_updates_the_status_of_a_pod_only() -> None:
    with pytest.raises(ForbiddenError, match='node "n1" can only create and delete mirror pods'):
        admit(mirror(), mirror())
    labelled = mirror()
    labelled["metadata"]["labels"] = {"a": "b"}
    with pytest.raises(ForbiddenError, match="cannot update labels through pod status"):
        admit(labelled, mirror(), "status")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        pytest.param({}, "resource claim statues", id="taken away"),
        pytest.param(
            {"resourceClaimStatuses": [{"name": "r", "resourceClaimName": "other"}]},
            "resource claim statues",
            id="changed",
        ),
        pytest.param({"resourceClaimStatuses": [CLAIM, {"name": "s"}]}, "resource claim statues", id="added"),
        pytest.param(
            {"resourceClaimStatuses": [CLAIM], "extendedResourceClaimStatus": {"resourceClaimName": "other"}},
            "extended resource claim status",
            id="made for an extended resource",
        ),
    ],
)
def test_a_node_writes_no_resource_claims_into_a_status(status: Obj, why: str) -> None:
    old = {**mirror(), "status": {"resourceClaimStatuses": [CLAIM]}}
    admit({**mirror(), "status": {"resourceClaimStatuses": [CLAIM], "phase": "Running"}}, old, "status")
    with pytest.raises(ForbiddenError, match=f'node "n1" cannot update {why}'):
        admit({**mirror(), "status": status}, old, "status")


@in_room
async def test_pods_through_the_registry(room: Room) -> None:
    node = await room.create("nodes", {"metadata": {"name": "n1"}}, user=ADMIN)
    await room.create("namespaces", {"metadata": {"name": "x"}}, user=ADMIN)
    own = owned(OWNER | {"uid": node.obj["metadata"]["uid"]})
    made = await room.create("pods", own, namespace="x", user=NODE)
    assert made.obj["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    with pytest.raises(ApiError):
        await room.create("pods", mirror(nodeName="n2"), namespace="x", user=NODE)
    for value in ("other", None):
        patch = {"metadata": {"annotations": {"kubernetes.io/config.mirror": value}}}
        with pytest.raises(InvalidError, match="may not remove or update mirror pod annotation"):
            await room.patch("pods", "p", patch, "x", subresource="status", user=NODE)
