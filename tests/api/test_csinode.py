"""CSINode: the storage drivers of a node (k8s.io/api storage/v1)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.api.storage import KIND
from mooring.apimachinery.schema import Obj


def driver(**more: Any) -> Obj:
    return {"name": "disk.example", "nodeID": "n1", **more}


def node(*drivers: Obj) -> Obj:
    return {"metadata": {"name": "n1"}, "spec": {"drivers": list(drivers)}}


def error_paths(obj: Obj) -> list[str]:
    return [str(error) for error in KIND.validate(obj)]


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param({"metadata": {"name": "n1"}, "spec": {}}, id="no driver yet, as kubelets begin"),
        pytest.param(node(driver()), id="one driver"),
        pytest.param(node(driver(topologyKeys=["topology.example/zone"], allocatable={"count": 0})), id="all fields"),
        pytest.param(node(driver(), driver(name="Other.Example")), id="a name in capitals"),
    ],
)
def test_a_valid_csi_node(obj: Obj) -> None:
    assert error_paths(obj) == []


@pytest.mark.parametrize(
    ("obj", "paths"),
    [
        pytest.param(node({}), ["name", "nodeID"], id="neither name nor id"),
        pytest.param(node(driver(name="a" * 64)), ["name"], id="a long name"),
        pytest.param(node(driver(name="a_b")), ["name"], id="a name that is no DNS name"),
        pytest.param(node(driver(nodeID="é" * 129)), ["nodeID"], id="a long id"),
        pytest.param(node(driver(nodeID="é" * 128)), [], id="a long id that is not too long"),
        pytest.param(node(driver(allocatable={"count": -1})), ["allocatable.count"], id="fewer than no volumes"),
        pytest.param(node(driver(topologyKeys=["a", "a"])), ["topologyKeys"], id="a key twice"),
        pytest.param(node(driver(topologyKeys=["-"])), [""], id="a key that is no qualified name"),
        pytest.param(node(driver(topologyKeys=[""])), ["", "", ""], id="an empty key"),
    ],
)
def test_an_invalid_csi_node(obj: Obj, paths: list[str]) -> None:
    assert [error.field for error in KIND.validate(obj)] == [f"spec.drivers[0].{path}".rstrip(".") for path in paths]


def test_a_driver_is_named_once() -> None:
    assert [error.field for error in KIND.validate(node(driver(), driver()))] == ["spec.drivers[1].name"]


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        pytest.param(node(), node(driver()), [], id="a driver comes"),
        pytest.param(node(driver()), node(), [], id="a driver goes"),
        pytest.param(node(driver()), node(driver(allocatable={"count": 3})), [], id="its count of volumes changes"),
        pytest.param(node(driver()), node(driver(topologyKeys=[])), [], id="no keys: absent and empty"),
        pytest.param(node(driver()), node(driver(nodeID="n2")), ["nodeID"], id="its id changes"),
        pytest.param(node(driver()), node(driver(topologyKeys=["a"])), ["topologyKeys"], id="its keys change"),
    ],
)
def test_changes_of_a_driver(before: Obj, after: Obj, paths: list[str]) -> None:
    errors = KIND.validate_update(after, before)
    assert [error.field for error in errors] == [f"spec.drivers[0].{path}".rstrip(".") for path in paths]


def test_the_number_of_drivers_is_printed() -> None:
    (column,) = (column for column in KIND.resource.columns if column.name == "Drivers")
    assert column.cell(node(driver(), driver(name="b")), datetime(2026, 1, 1, tzinfo=UTC)) == 2
