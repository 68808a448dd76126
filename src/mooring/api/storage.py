"""CSINode: strategy, validation. A kubelet keeps one about itself, and does not become Ready without it.

Rules kept here (k8s.io/api storage/v1, generated.proto; Kubernetes API reference, CSINode):
* A driver has a unique DNS name of at most 63 characters, and a node id of at most 256 bytes.
* Topology keys are unique qualified names; a volume count is not negative.
* A driver that stays keeps its node id and its topology keys; its volume count may change.
* PUT needs a resourceVersion.
"""

from __future__ import annotations

from datetime import datetime

from mooring.api.kind import Kind, is_untracked
from mooring.api.objectmeta import NAME
from mooring.apimachinery.names import dns1123_subdomain_errors, qualified_name_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, duplicate, invalid, required

MAX_DRIVER_NAME = 63
"""Characters of a driver name; the limit of the Container Storage Interface."""
MAX_NODE_ID = 256
"""Bytes of a node id; kube-apiserver's limit."""


def _drivers(obj: Obj) -> list[Obj]:
    drivers: list[Obj] = (obj.get("spec") or {}).get("drivers") or []
    return drivers


def _validate(obj: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, driver in enumerate(_drivers(obj)):
        path = f"spec.drivers[{index}]"
        errors += _driver_errors(driver, path)
        name = driver.get("name", "")
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        names.add(name)
    return errors


def _driver_errors(driver: Obj, path: str) -> list[FieldError]:
    name, node_id = driver.get("name", ""), driver.get("nodeID", "")
    errors: list[FieldError] = []
    if not name:
        errors.append(required(f"{path}.name"))
    elif len(name) > MAX_DRIVER_NAME:
        errors.append(invalid(f"{path}.name", name, f"must have at most {MAX_DRIVER_NAME} characters"))
    else:
        errors += [invalid(f"{path}.name", name, detail) for detail in dns1123_subdomain_errors(name.lower())]
    if not node_id:
        errors.append(required(f"{path}.nodeID"))
    elif len(node_id.encode()) > MAX_NODE_ID:
        errors.append(invalid(f"{path}.nodeID", node_id, f"must be {MAX_NODE_ID} characters or less"))
    count = (driver.get("allocatable") or {}).get("count", 0)
    if count < 0:
        errors.append(invalid(f"{path}.allocatable.count", count, "must be greater than or equal to 0"))
    keys: set[str] = set()
    for key in driver.get("topologyKeys") or ():
        if key in keys:
            errors.append(duplicate(f"{path}.topologyKeys", key))
        keys.add(key)
        if not key:
            errors.append(required(path))
        errors += [invalid(path, key, detail) for detail in qualified_name_errors(key)]
    return errors


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    before = {driver.get("name"): driver for driver in _drivers(old)}
    return [
        invalid(f"spec.drivers[{index}].{field}", driver.get(field), "field is immutable")
        for index, driver in enumerate(_drivers(new))
        for field in ("nodeID", "topologyKeys")
        if (stored := before.get(driver.get("name"))) is not None
        and (driver.get(field) or None) != (stored.get(field) or None)
    ]


def _count(obj: Obj, now: datetime) -> int:
    return len(_drivers(obj))


KIND = Kind(
    resource=Resource(
        group="storage.k8s.io",
        version="v1",
        kind="CSINode",
        plural="csinodes",
        namespaced=False,
        schema=message("io.k8s.api.storage.v1.CSINode"),
        columns=(
            NAME,
            Column("Drivers", _count, type="integer", description="How many storage drivers run on the node."),
            AGE,
        ),
        returns_deleted=True,
    ),
    storage="/registry/csinodes",
    tracks_creator=is_untracked,
    name_errors=dns1123_subdomain_errors,
    validate=_validate,
    validate_update=_validate_update,
    allow_unconditional_update=False,
)
