"""Node: defaults, validation, changes, print columns.

Source: docs/protocol/tables.md, docs/protocol/selectors.md, docs/protocol/patches.md#strategic-merge.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.core.addresses import NOT_A_RANGE
from mooring.api.kinds import BY_PLURAL
from tests.support.changes import NOW, created, updated
from tests.support.compared import Compared, many

NODE = BY_PLURAL["nodes"]

Obj = dict[str, Any]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        pytest.param(
            {"spec": {"podCIDR": "10.0.0.0/24"}},
            {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]},
            id="one makes a list",
        ),
        pytest.param(
            {"spec": {"podCIDRs": ["10.0.0.0/24"]}},
            {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]},
            id="a list makes one",
        ),
        pytest.param(
            {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.0.0.0/24"]}},
            {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
            id="one wins when they differ",
        ),
        pytest.param(
            {"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"]}},
            {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"]},
            id="equal ones stay",
        ),
        pytest.param({"spec": {"unschedulable": True}}, {"unschedulable": True}, id="none stays none"),
    ],
)
def test_pod_cidr_and_pod_cidrs_agree(given: Obj, made: Obj) -> None:
    obj, errors = created(NODE, given)
    assert (obj["spec"], errors) == (made, [])


@pytest.mark.parametrize(
    ("status", "allocatable"),
    [
        pytest.param({"capacity": {"cpu": "4"}}, {"cpu": "4"}, id="allocatable is capacity when not given"),
        pytest.param({"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3"}}, {"cpu": "3"}, id="and kept when given"),
        pytest.param({"phase": "x"}, None, id="without capacity there is none"),
    ],
)
def test_a_node_is_created_with_its_status(status: Obj, allocatable: Obj | None) -> None:
    obj, errors = created(NODE, {"status": status})
    assert (obj["status"].get("allocatable"), errors) == (allocatable, [])


TAINT = {"key": "a.example/k", "value": "v", "effect": "NoSchedule"}
QUALIFIED = "name part must be non-empty"


@pytest.mark.parametrize(
    ("given", "errors"),
    [
        pytest.param(
            {"spec": {"taints": [TAINT, TAINT | {"effect": "NoExecute"}]}}, [], id="a key may have two effects"
        ),
        pytest.param(
            {"spec": {"taints": [TAINT, TAINT | {"value": "w"}]}},
            [
                'metadata.taints[1]: Duplicate value: {"key":"a.example/k","value":"w","effect":"NoSchedule"}: '
                "taints must be unique by key and effect pair"
            ],
            id="but none twice",
        ),
        pytest.param(
            {"spec": {"taints": [{"key": "k"}, {"key": "l", "effect": "Nothing"}]}},
            [
                "metadata.taints[0].effect: Required value",
                'metadata.taints[1].effect: Unsupported value: "Nothing": supported values: "NoExecute", "NoSchedule", '
                '"PreferNoSchedule"',
            ],
            id="an effect is known",
        ),
        pytest.param(
            {"spec": {"taints": [{"key": "k", "value": "a b", "effect": "NoExecute"}]}},
            [
                'metadata.taints[0].value: Invalid value: "a b": a valid label must be an empty string or consist of '
                "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
                "'MyValue',  or 'my_value',  or '12345', regex used for validation is "
                "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ],
            id="a value is a label's",
        ),
        pytest.param(
            {"spec": {"taints": [{"key": "/k", "effect": "NoExecute"}]}},
            ['metadata.taints[0].key: Invalid value: "/k": prefix part must be non-empty'],
            id="a key is a label's",
        ),
        pytest.param(
            {"status": {"capacity": {"cpu": "4", "a.example/gpu": "0"}}}, [], id="amounts have qualified names"
        ),
        pytest.param(
            {"status": {"capacity": {"/x": "1"}, "allocatable": {"cpu": "-1"}}},
            [
                'status.capacity./x: Invalid value: "/x": prefix part must be non-empty',
                'status.allocatable.cpu: Invalid value: "-1": must be greater than or equal to 0',
            ],
            id="and are not negative",
        ),
        pytest.param(
            {"spec": {"podCIDRs": ["10.0.0.0", "x/24"]}},
            [
                f'spec.podCIDRs[0]: Invalid value: "10.0.0.0": {NOT_A_RANGE}',
                f'spec.podCIDRs[1]: Invalid value: "x/24": {NOT_A_RANGE}',
            ],
            id="ranges are ranges",
        ),
        pytest.param(
            {"spec": {"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}},
            [
                'spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one CIDR for each '
                "IP family"
            ],
            id="one for each family",
        ),
        pytest.param(
            {"spec": {"podCIDRs": ["10.0.0.0/24", "10.0.0.0/24"]}},
            [
                'spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.0.0/24"]: may specify no more than one CIDR for each '
                "IP family",
                'spec.podCIDRs[1]: Duplicate value: "10.0.0.0/24"',
            ],
            id="and none twice",
        ),
    ],
)
def test_node_validation(given: Obj, errors: list[str]) -> None:
    assert created(NODE, given)[1] == errors


CIDR = 'spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid'


@pytest.mark.parametrize(
    ("old", "new", "errors"),
    [
        pytest.param({}, {"podCIDR": "10.0.0.0/24", "providerID": "p"}, [], id="ranges and provider are set once"),
        pytest.param({"podCIDR": "10.0.0.0/24"}, {"podCIDR": "10.0.0.0/24"}, [], id="equal ranges are no change"),
        pytest.param({"podCIDR": "10.0.0.0/24"}, {"podCIDR": "10.0.1.0/24"}, [CIDR], id="ranges do not change"),
        pytest.param({"podCIDR": "10.0.0.0/24"}, {}, [CIDR], id="nor go away"),
        pytest.param(
            {"providerID": "p"},
            {"providerID": "q"},
            ['spec.providerID: Forbidden: node updates may not change providerID except from "" to valid'],
            id="the provider does not change",
        ),
        pytest.param(
            {}, {"externalID": "e"}, ["spec.externalID: Forbidden: may not be updated"], id="nor the legacy id"
        ),
        pytest.param({}, {"unschedulable": True, "taints": [TAINT]}, [], id="cordon and taints do"),
    ],
)
def test_changes_of_a_spec(old: Obj, new: Obj, errors: list[str]) -> None:
    stored = created(NODE, {"spec": old})[0]
    assert updated(NODE, {"spec": new}, stored)[1] == errors


def test_fields_that_the_resource_and_its_status_change() -> None:
    old = {"spec": {"unschedulable": True}, "status": {"phase": "old"}}
    new = {"spec": {"unschedulable": False}, "status": {"phase": "new"}}
    stored = created(NODE, old)[0]
    main, main_errors = updated(NODE, new, stored)
    status, status_errors = updated(NODE, new, stored, "status")
    assert (main["spec"], main["status"], main_errors) == (new["spec"], old["status"], [])
    assert (status["spec"], status["status"], status_errors) == (old["spec"], new["status"], [])


def test_addresses_are_unique() -> None:
    address = {"type": "InternalIP", "address": "10.0.0.1"}
    stored = created(NODE, {})[0]
    errors = updated(NODE, {"status": {"addresses": [address, address]}}, stored, "status")[1]
    assert errors == ['status.addresses[1]: Duplicate value: {"type":"InternalIP","address":"10.0.0.1"}']


@pytest.mark.parametrize(
    ("obj", "printed"),
    [
        pytest.param(
            {},
            "Unknown <none> 0s  <none> <none> <unknown> <unknown> <unknown>",
            id="a node without a status",
        ),
        pytest.param(
            {
                "metadata": {
                    "name": "x",
                    "labels": {
                        "node-role.kubernetes.io/worker": "",
                        "node-role.kubernetes.io/": "",
                        "kubernetes.io/role": "edge",
                        "kubernetes.io/hostname": "x",
                    },
                },
                "status": {
                    "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
                    "addresses": [
                        {"type": "Hostname", "address": "x"},
                        {"type": "InternalIP", "address": "10.0.0.1"},
                        {"type": "InternalIP", "address": "10.0.0.2"},
                        {"type": "ExternalIP", "address": "192.0.2.1"},
                    ],
                    "nodeInfo": {
                        "kubeletVersion": "v1.36.2",
                        "osImage": "Debian",
                        "kernelVersion": "6.12",
                        "architecture": "arm64",
                        "containerRuntimeVersion": "containerd://2",
                    },
                },
            },
            "Ready edge,worker 0s v1.36.2 10.0.0.1 192.0.2.1 Debian 6.12 (arm64) containerd://2",
            id="a ready node",
        ),
        pytest.param(
            {"status": {"nodeInfo": {"architecture": "amd64"}}},
            "Unknown <none> 0s  <none> <none> <unknown> <unknown> (amd64) <unknown>",
            id="a node without a kernel",
        ),
        pytest.param(
            {"spec": {"unschedulable": True}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
            "NotReady,SchedulingDisabled <none> 0s  <none> <none> <unknown> <unknown> <unknown>",
            id="a cordoned node that fell silent",
        ),
    ],
)
def test_print_columns(obj: Obj, printed: str) -> None:
    node = created(NODE, obj)[0]
    assert " ".join(str(column.cell(node, NOW)) for column in NODE.resource.columns[1:]) == printed


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param({"unschedulable": True}, "true", id="a cordoned node"),
        pytest.param({}, "false", id="any other"),
    ],
)
def test_nodes_are_selected_by_schedulability(spec: Obj, value: str) -> None:
    assert NODE.selectable_fields({"spec": spec}) == {"spec.unschedulable": value}


def test_the_work_is_linear_in_the_addresses() -> None:
    # A node may report as many as fit into a body, and other requests wait.
    addresses = [{"type": "InternalIP", "address": text} for text in many(1000)]
    assert NODE.validate_update({"status": {"addresses": addresses}}, {}) == []
    assert Compared.times < 10_000
