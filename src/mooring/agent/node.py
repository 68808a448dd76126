"""The Node object of this machine, as kubelet keeps it.

Rules kept here:
* The node registers itself with its own certificate. Of an existing Node labels and status are patched, nothing else, and only
  if no other program keeps it (`mooring.agent.registration`); a Node that changed since it was looked at is looked at again.
* A ready machine reports Ready with reason KubeletReady. Any other reports NotReady, room for no Pod, and a taint when the Node is
  made: the one that Kubernetes itself takes away once a kubelet reports Ready.
* `lastTransitionTime` changes only when the condition does.
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
from mooring.agent.registration import AGENT, check_keeper, is_fresh, ready_condition
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import STRATEGIC, ClusterClient
from mooring.client.files import read_limited
from mooring.clock import rfc3339
from mooring.errors import AlreadyExistsError, ConfigError, ConflictError, NotFoundError

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
"""Go's names for what `uname -m` prints; others (ppc64le, s390x, riscv64) are the same."""
PODS = 110
"""kubelet's `maxPods`."""
NOT_READY_TAINT = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
LEASES = "kube-node-lease"
_HEALTHY = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", f"{AGENT} is posting ready status"),
)
_WITHOUT_KUBELET = (("Ready", "False", "KubeletMissing", f"{AGENT} keeps this Node; no kubelet runs Pods here"),)
_TRIES = 5
"""Writers of one Node are few and seldom: kubelet, its controllers, an administrator."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is told about this machine."""

    name: str
    address: str
    info: Mapping[str, str]
    capacity: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True
    """False keeps Pods away."""

    @property
    def labels(self) -> dict[str, str]:
        return {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": self.info["operatingSystem"],
            "kubernetes.io/arch": self.info["architecture"],
        }


def this_machine(name: str, server_host: str = "", server_port: int = 443, *, ready: bool = True) -> Machine:
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
    return Machine(name, _own_address(server_host, server_port), info, capacity, ready)


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
        "spec": {} if machine.ready else {"taints": [dict(NOT_READY_TAINT)]},
        "status": node_status(machine, now, None),
    }


def node_status(machine: Machine, now: datetime, previous: Obj | None) -> Obj:
    """The status as of `now`; conditions that did not change keep their transition time."""
    before = {one.get("type"): one for one in ((previous or {}).get("status") or {}).get("conditions") or ()}
    conditions = []
    for kind, status, reason, message in _HEALTHY if machine.ready else _WITHOUT_KUBELET:
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
        room = dict(machine.capacity) | ({} if machine.ready else {"pods": "0"})
        status_object |= {"capacity": room, "allocatable": dict(room)}
    return status_object


async def register(client: ClusterClient, machine: Machine, *, first: bool = True) -> Obj:
    """Create the Node, or bring the existing one up to date: the Node as stored.

    `first`: its Lease counts as the sign of another program, as this one has not renewed it yet. Raises NodeKeptError, ApiError,
    PeerError.
    """
    for left in reversed(range(_TRIES)):
        try:
            return await _register(client, machine, first)
        except (AlreadyExistsError, ConflictError):
            if not left:
                raise
    raise AssertionError("unreachable: the last try returns or raises")


async def _register(client: ClusterClient, machine: Machine, first: bool) -> Obj:
    now = client.clock.now()
    try:
        known = await client.get("nodes", machine.name)
    except NotFoundError:
        return await client.create("nodes", node_object(machine, now))
    check_keeper(known, await _lease(client, machine.name) if first else None, now)
    labels = known["metadata"].get("labels") or {}
    missing = {key: value for key, value in machine.labels.items() if labels.get(key) != value}
    if missing:
        known = await client.patch("nodes", machine.name, _unchanged(known, labels=missing), content_type=STRATEGIC)
    patch = _unchanged(known) | {"status": node_status(machine, now, known)}
    return await client.patch("nodes", machine.name, patch, content_type=STRATEGIC, subresource="status")


def _unchanged(known: Obj, **metadata: object) -> Obj:
    """A patch that is refused with 409 when the Node is no longer `known`."""
    return {"metadata": {"resourceVersion": known["metadata"]["resourceVersion"], **metadata}}


async def _lease(client: ClusterClient, name: str) -> Obj | None:
    try:
        return await client.get("leases", name, LEASES)
    except NotFoundError:
        return None


def is_in_use(node: Obj, now: datetime) -> bool:
    """Whether the Node is Ready, or was reported lately."""
    return ready_condition(node).get("status") == "True" or is_fresh(node, now)
