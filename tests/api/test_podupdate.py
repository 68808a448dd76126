"""Changes of Pods and of their status (Kubernetes API reference, core/v1 Pod).

Source: docs/protocol/node-authorization.md#noderestriction.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from tests.support.changes import created, updated

POD = BY_PLURAL["pods"]

Obj = dict[str, Any]

C = {"name": "c", "image": "i:1"}

FORBIDDEN = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
TOLERATION = {"key": "k", "operator": "Exists", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("old", "new", "errors"),
    [
        pytest.param(
            {}, {"containers": [C | {"image": "i:2", "imagePullPolicy": "IfNotPresent"}]}, [], id="an image changes"
        ),
        pytest.param({}, {"containers": [C | {"command": ["x"]}]}, [FORBIDDEN], id="a command does not"),
        pytest.param(
            {},
            {"containers": [C, C | {"name": "d"}]},
            ["spec.containers: Forbidden: pod updates may not add or remove containers"],
            id="containers are not added",
        ),
        pytest.param(
            {},
            {"initContainers": [C | {"name": "d"}]},
            ["spec.initContainers: Forbidden: pod updates may not add or remove containers"],
            id="nor init containers",
        ),
        pytest.param({}, {"nodeName": "n"}, [FORBIDDEN], id="a node is not chosen by an update"),
        pytest.param({}, {"activeDeadlineSeconds": 5}, [], id="a deadline is set"),
        pytest.param({"activeDeadlineSeconds": 5}, {"activeDeadlineSeconds": 4}, [], id="and lowered"),
        pytest.param(
            {"activeDeadlineSeconds": 5},
            {"activeDeadlineSeconds": 6},
            ["spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"],
            id="not raised",
        ),
        pytest.param(
            {"activeDeadlineSeconds": 5},
            {},
            ["spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value"],
            id="nor taken away",
        ),
        pytest.param(
            {"tolerations": [TOLERATION]},
            {"tolerations": [TOLERATION | {"tolerationSeconds": 3}, TOLERATION | {"key": "l"}]},
            [],
            id="tolerations are added and timed",
        ),
        pytest.param(
            {"tolerations": [TOLERATION]},
            {},
            ["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"],
            id="not taken away",
        ),
        pytest.param({"schedulingGates": [{"name": "g"}]}, {}, [], id="gates are removed"),
        pytest.param(
            {},
            {"schedulingGates": [{"name": "g"}]},
            ["spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'"],
            id="not added",
        ),
        pytest.param(
            {"schedulingGates": [{"name": "g"}, {"name": "h"}]},
            {"schedulingGates": [{"name": "h"}]},
            [],
            id="one by one",
        ),
        pytest.param(
            {"terminationGracePeriodSeconds": -1},
            {"terminationGracePeriodSeconds": 1},
            [],
            id="a negative time to stop becomes 1",
        ),
        pytest.param(
            {"terminationGracePeriodSeconds": -1},
            {"terminationGracePeriodSeconds": 2},
            [FORBIDDEN],
            id="and nothing else",
        ),
        pytest.param(
            {"terminationGracePeriodSeconds": 5},
            {"terminationGracePeriodSeconds": 1},
            [FORBIDDEN],
            id="and others do not change",
        ),
    ],
)
def test_changes_of_a_spec(old: Obj, new: Obj, errors: list[str]) -> None:
    stored, made_errors = created(POD, {"spec": {"containers": [C], **old}})
    assert made_errors == []
    made, found = updated(POD, {"spec": {"containers": [C], **new}}, stored)
    assert [text[: len(FORBIDDEN)] if text.startswith(FORBIDDEN) else text for text in found] == errors
    assert made["status"] == stored["status"]
    assert made["metadata"]["generation"] == 1 + (made["spec"] != stored["spec"])


MIRROR = "kubernetes.io/config.mirror"
KEY = f"metadata.annotations[{MIRROR}]: Forbidden: "


@pytest.mark.parametrize(
    ("old", "new", "errors"),
    [
        pytest.param({MIRROR: "h"}, {MIRROR: "h"}, [], id="a mirror stays"),
        pytest.param({}, {MIRROR: "h"}, [KEY + "may not add mirror pod annotation"], id="nothing becomes one"),
        pytest.param(
            {MIRROR: "h"}, {}, [KEY + "may not remove or update mirror pod annotation"], id="or ceases to be one"
        ),
        pytest.param(
            {MIRROR: "h"}, {MIRROR: "g"}, [KEY + "may not remove or update mirror pod annotation"], id="or another one"
        ),
    ],
)
def test_the_mirror_annotation_is_immutable(old: Obj, new: Obj, errors: list[str]) -> None:
    spec = {"containers": [C], "nodeName": "n"}
    stored = created(POD, {"metadata": {"name": "p", "annotations": old}, "spec": spec})[0]
    assert updated(POD, {"metadata": {"annotations": new}, "spec": spec}, stored)[1] == errors


def test_status_changes_status_only() -> None:
    stored = created(POD, {"spec": {"containers": [C], "nodeName": "n"}})[0]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}
    made, errors = updated(
        POD,
        {
            "metadata": {"ownerReferences": [owner]},
            "spec": {"nodeName": "m"},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        },
        stored,
        "status",
    )
    assert errors == []
    assert made["spec"] == stored["spec"]
    assert "ownerReferences" not in made["metadata"]
    assert made["status"] == {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "qosClass": "BestEffort",
    }


@pytest.mark.parametrize(
    ("status", "errors"),
    [
        pytest.param(
            {"qosClass": "Guaranteed"},
            ['status.qosClass: Invalid value: "Guaranteed": field is immutable'],
            id="the class stays",
        ),
        pytest.param({"nominatedNodeName": "n1"}, [], id="a node may be nominated"),
    ],
)
def test_status_validation(status: Obj, errors: list[str]) -> None:
    stored = created(POD, {"spec": {"containers": [C]}})[0]
    assert updated(POD, {"status": status}, stored, "status")[1] == errors


def test_a_nominated_node_has_a_node_s_name() -> None:
    stored = created(POD, {"spec": {"containers": [C]}})[0]
    errors = updated(POD, {"status": {"nominatedNodeName": "N"}}, stored, "status")[1]
    assert [text.partition(": ")[0] for text in errors] == ["status.nominatedNodeName"]


def test_a_stored_pod_without_a_class_gets_none() -> None:
    stored = created(POD, {"spec": {"containers": [C]}})[0]
    del stored["status"]
    made, errors = updated(POD, {"status": {"phase": "Running"}}, stored, "status")
    assert (made["status"], errors) == ({"phase": "Running"}, [])
