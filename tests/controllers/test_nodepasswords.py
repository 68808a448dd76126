"""The controller of node passwords: the owner of each Secret, and Secrets whose machine never became a Node."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Delete, Requeue, Update
from mooring.controllers.node import ORPHANED_AFTER, NodePasswordController
from tests.support.plans import NOW, enqueued, moment, plan, thing, views, with_metadata

MINUTE = timedelta(minutes=1)
NODE = thing("n1")
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"}
OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}


def secret(age: timedelta = MINUTE, kind: str = "k3s.cattle.io/node-password", **metadata: object) -> Obj:
    created = {"creationTimestamp": moment(-age), **metadata}
    return thing("n1.node-password.k3s", "kube-system", type=kind, immutable=True, data={"hash": ""}, metadata=created)


def planned(found: Obj | None, node: Obj | None = None, identity: Obj | None = None) -> list[object]:
    seen = views(
        secrets=[found] if found else [],
        nodes=[node] if node else [],
        nodeidentities=[thing("n1", spec=identity)] if identity else [],
    )
    return list(plan(NodePasswordController(), ("", "n1"), seen, NOW))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([], [OWNER], id="none yet"),
        pytest.param([OTHER], [OTHER, OWNER], id="another object"),
        pytest.param([{**OWNER, "uid": "old"}], [OWNER], id="a former Node of the name"),
    ],
)
def test_the_node_becomes_the_owner(before: list[Obj], after: list[Obj]) -> None:
    found = secret(ownerReferences=before) if before else secret()
    assert planned(found, NODE) == [Update("secrets", with_metadata(found, ownerReferences=after))]


@pytest.mark.parametrize(
    ("found", "node"),
    [
        pytest.param(None, NODE, id="a Node without a password"),
        pytest.param(secret(ownerReferences=[OWNER]), NODE, id="a Secret with its owner"),
        pytest.param(secret(kind="Opaque"), None, id="a Secret of another type"),
        pytest.param(secret(deletionTimestamp=moment(-MINUTE)), None, id="one that is being deleted"),
        pytest.param(secret(creationTimestamp="yesterday"), None, id="one without a readable age"),
    ],
)
def test_what_is_left_alone(found: Obj | None, node: Obj | None) -> None:
    assert planned(found, node) == []


def test_a_secret_whose_machine_became_no_node_is_deleted_after_ten_minutes() -> None:
    assert planned(secret(ORPHANED_AFTER - MINUTE)) == [Requeue(NOW + MINUTE)]
    old = secret(ORPHANED_AFTER)
    assert planned(old) == [Delete.of("secrets", old)]


JOINED = {"nodePasswordUID": "uid-of-n1.node-password.k3s", "keys": [{"publicKey": "k"}]}


@pytest.mark.parametrize(
    ("identity", "kept"),
    [
        pytest.param(JOINED, True, id="a machine that joined by the password"),
        pytest.param({**JOINED, "keys": []}, False, id="a machine that reserved the name and asked no further"),
        pytest.param({**JOINED, "nodePasswordUID": "another"}, False, id="a name with another password"),
        pytest.param({**JOINED, "nodeUID": "u0"}, False, id="a name whose Node was deleted"),
    ],
)
def test_a_machine_without_a_node_keeps_its_name(identity: Obj, kept: bool) -> None:
    old = secret(100 * ORPHANED_AFTER)
    assert planned(old, identity=identity) == ([] if kept else [Delete.of("secrets", old)])


def test_nodes_and_their_secrets_are_planned() -> None:
    controller = NodePasswordController()
    seen = views(secrets=[secret(), thing("other", "default")], nodes=[NODE, thing("n2")])
    assert set(enqueued(controller, seen)) == {("", "n1")}
    assert controller.keys("secrets", secret(), True, seen) == ()
