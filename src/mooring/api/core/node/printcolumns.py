"""Print columns of Node: readiness, roles, version; with `-o wide` addresses and software (docs/protocol/tables.md).

Rules kept here: the status is Ready, NotReady, or Unknown without a Ready condition. Roles are read from labels, sorted. A missing
value prints `<none>` (roles, addresses) or `<unknown>` (software). The architecture follows the kernel, as in Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from mooring.api.meta.printcolumns import NAME, NONE, UNKNOWN
from mooring.apimachinery.resource import Column
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.table import AGE

_ROLE_PREFIX = "node-role.kubernetes.io/"
_ROLE = "kubernetes.io/role"


def _status(obj: Obj, now: datetime) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or []
    ready = {condition.get("type"): condition.get("status") for condition in conditions}.get("Ready")
    text = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return f"{text},SchedulingDisabled" if (obj.get("spec") or {}).get("unschedulable") else text


def _roles(obj: Obj, now: datetime) -> str:
    roles = set()
    for key, value in (obj["metadata"].get("labels") or {}).items():
        if key.startswith(_ROLE_PREFIX):
            roles.add(key[len(_ROLE_PREFIX) :])
        elif key == _ROLE:
            roles.add(value)
    return ",".join(sorted(roles - {""})) or NONE


def _address(kind: str) -> Callable[[Obj, datetime], str]:
    def cell(obj: Obj, now: datetime) -> str:
        for address in (obj.get("status") or {}).get("addresses") or []:
            if address.get("type") == kind:
                text: str = address.get("address", "")
                return text
        return NONE

    return cell


def _software(name: str, missing: str) -> Callable[[Obj, datetime], str]:
    def cell(obj: Obj, now: datetime) -> str:
        text: str = ((obj.get("status") or {}).get("nodeInfo") or {}).get(name) or missing
        return text

    return cell


def _kernel(obj: Obj, now: datetime) -> str:
    architecture = ((obj.get("status") or {}).get("nodeInfo") or {}).get("architecture")
    version = _software("kernelVersion", UNKNOWN)(obj, now)
    return f"{version} ({architecture})" if architecture else version


COLUMNS = (
    NAME,
    Column("Status", _status, description="Whether the node is ready, and whether it takes new Pods."),
    Column("Roles", _roles, description="Roles named by the node's labels."),
    AGE,
    Column("Version", _software("kubeletVersion", ""), description="Version of the node's agent."),
    Column("Internal-IP", _address("InternalIP"), description="First address inside the cluster.", priority=1),
    Column("External-IP", _address("ExternalIP"), description="First address outside the cluster.", priority=1),
    Column("OS-Image", _software("osImage", UNKNOWN), description="The operating system.", priority=1),
    Column("Kernel-Version", _kernel, description="The kernel and the architecture.", priority=1),
    Column(
        "Container-Runtime",
        _software("containerRuntimeVersion", UNKNOWN),
        description="The container runtime and its version.",
        priority=1,
    ),
)
