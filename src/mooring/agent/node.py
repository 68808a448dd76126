"""The Node object of this machine, as kubelet keeps it.

Rules kept here:
* The node registers itself with its own certificate. An existing Node is taken over: labels and status are patched, nothing else.
* Ready is True with reason KubeletReady; `lastTransitionTime` changes only when the condition does.
* What the machine cannot tell (no /etc/machine-id, say) is an empty text, as the fields are required.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from mooring import __version__
from mooring.client.cluster import STRATEGIC, ClusterClient
from mooring.client.files import read_limited
from mooring.clock import rfc3339
from mooring.errors import AlreadyExistsError, ConfigError
from mooring.wire.schema import Obj

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
"""Go's names for what `uname -m` prints; others (ppc64le, s390x, riscv64) are the same."""
PODS = 110
"""kubelet's `maxPods`."""
_HEALTHY = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "mooring agent is posting ready status"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What is told about this machine."""

    name: str
    address: str
    info: Mapping[str, str]
    capacity: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        return {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": self.info["operatingSystem"],
            "kubernetes.io/arch": self.info["architecture"],
        }


def this_machine(name: str, server_host: str = "", server_port: int = 443) -> Machine:
    """Facts of the machine this runs on; its address is the one it would reach the server from."""
    system = platform.uname()
    info = {
        "machineID": _line("/etc/machine-id"),
        "systemUUID": _line("/sys/class/dmi/id/product_uuid"),
        "bootID": _line("/proc/sys/kernel/random/boot_id"),
        "kernelVersion": system.release,
        "osImage": _os_image(),
        "containerRuntimeVersion": "",
        "kubeletVersion": f"v{__version__}",
        "kubeProxyVersion": "",
        "operatingSystem": system.system.lower(),
        "architecture": ARCHITECTURES.get(system.machine, system.machine),
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": f"{memory}Ki", "pods": str(PODS)}
    return Machine(name, _own_address(server_host, server_port), info, capacity)


def _line(path: str) -> str:
    try:
        return read_limited(Path(path)).decode("utf-8", "replace").strip()
    except ConfigError:
        return ""


def _os_image() -> str:
    for line in _line("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""


def _own_address(host: str, port: int) -> str:
    """The source address towards the server. Connecting a datagram socket sends nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def node_object(machine: Machine, now: datetime) -> Obj:
    """The Node to create."""
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": machine.name, "labels": machine.labels},
        "spec": {},
        "status": node_status(machine, now, None),
    }


def node_status(machine: Machine, now: datetime, previous: Obj | None) -> Obj:
    """The status as of `now`; conditions that did not change keep their transition time."""
    before = {one.get("type"): one for one in ((previous or {}).get("status") or {}).get("conditions") or ()}
    conditions = []
    for kind, status, reason, message in _HEALTHY:
        old = before.get(kind) or {}
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        conditions.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": rfc3339(now),
                "lastTransitionTime": since or rfc3339(now),
            }
        )
    addresses = [{"type": "InternalIP", "address": machine.address}] if machine.address else []
    status_object: Obj = {
        "addresses": [*addresses, {"type": "Hostname", "address": machine.name}],
        "conditions": conditions,
        "nodeInfo": dict(machine.info),
    }
    if machine.capacity:
        status_object |= {"capacity": dict(machine.capacity), "allocatable": dict(machine.capacity)}
    return status_object


async def register(client: ClusterClient, machine: Machine) -> Obj:
    """Create the Node, or bring the existing one up to date: the Node as stored. Raises ApiError, PeerError."""
    now = client.clock.now()
    try:
        return await client.create("nodes", node_object(machine, now))
    except AlreadyExistsError:
        existing = await client.get("nodes", machine.name)
    labels = existing["metadata"].get("labels") or {}
    missing = {key: value for key, value in machine.labels.items() if labels.get(key) != value}
    if missing:
        await client.patch("nodes", machine.name, {"metadata": {"labels": missing}}, content_type=STRATEGIC)
    return await refresh(client, machine, existing)


async def refresh(client: ClusterClient, machine: Machine, known: Obj) -> Obj:
    """Patch the status. `known` is the Node as last seen."""
    status = {"status": node_status(machine, client.clock.now(), known)}
    return await client.patch("nodes", machine.name, status, content_type=STRATEGIC, subresource="status")


def is_ready(node: Obj) -> bool:
    """Whether the Ready condition is True."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
