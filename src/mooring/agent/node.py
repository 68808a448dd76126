"""Node object of this machine: its contents, and its registration as kubelet does it.

Rules kept here:
* The node registers itself with its own certificate. Of an existing Node only labels and status are patched, and only
  when no other program updates it (`mooring.agent.registration`). A Node that changed meanwhile is read again.
* A ready machine reports Ready with reason KubeletReady. Any other reports NotReady and capacity for no Pod, and creates the
  Node with the taint that Kubernetes removes once a kubelet reports Ready.
* `lastTransitionTime` changes only when the condition does.
* Labels and taints that flags give are set when the Node is created, and never changed afterwards.
* Addresses that flags give replace those of the Node, as kubelet replaces them: merged by type, only one of each would stay. A
  second address of an earlier run goes likewise: it would belong to this Node for ever.
* A fact that cannot be read, such as a missing /etc/machine-id, is an empty string, because the fields are required.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from mooring import __version__
from mooring.agent.registration import AGENT, check_keeper, check_registered, is_fresh, ready_condition
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import STRATEGIC, ClusterClient
from mooring.client.files import read_limited
from mooring.client.http.connection import proxies_for
from mooring.client.sourceaddress import source_address
from mooring.clock import rfc3339
from mooring.errors import AlreadyExistsError, ConfigError, ConflictError, NotFoundError
from mooring.trust.httpsurl import dialled_host
from mooring.trust.kubeconfig import Cluster

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
"""Go's names for the output of `uname -m`. Others (ppc64le, s390x, riscv64) are the same."""
HTTPS_PORT = 443
PODS = 110
"""kubelet's `maxPods`."""
HOSTNAME_LABEL, OS_LABEL, ARCHITECTURE_LABEL = "kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"
REPORTED_LABELS = frozenset({HOSTNAME_LABEL, OS_LABEL, ARCHITECTURE_LABEL})
"""Labels that follow the facts of the machine."""
NOT_READY_TAINT = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
LEASES = "kube-node-lease"
_HEALTHY = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", f"{AGENT} is posting ready status"),
)
_WITHOUT_KUBELET = (("Ready", "False", "KubeletMissing", f"{AGENT} keeps this Node; no kubelet runs Pods here"),)
_ATTEMPTS = 5
"""A Node has few writers: kubelet, controllers, an administrator."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about this machine for its Node."""

    name: str
    address: str
    info: Mapping[str, str]
    capacity: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True
    """False: no Pods are to be placed here."""
    more_addresses: tuple[tuple[str, str], ...] = ()
    """Types and addresses that flags give, beside `address` and the host name."""
    given_labels: Mapping[str, str] = field(default_factory=dict)
    given_taints: tuple[Obj, ...] = ()
    """Labels and taints to create the Node with."""

    @property
    def labels(self) -> dict[str, str]:
        return {
            HOSTNAME_LABEL: self.name,
            OS_LABEL: self.info["operatingSystem"],
            ARCHITECTURE_LABEL: self.info["architecture"],
        }


def this_machine(name: str, address: str = "", *, ready: bool = True) -> Machine:
    """Return the facts of this machine. `address` is its own, "" for one that is not known."""
    system = platform.uname()
    info = {
        "machineID": _read_line("/etc/machine-id"),
        "systemUUID": _read_line("/sys/class/dmi/id/product_uuid"),
        "bootID": _read_line("/proc/sys/kernel/random/boot_id"),
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
    return Machine(name, address, info, capacity, ready)


def _read_line(path: str) -> str:
    try:
        return read_limited(Path(path)).decode("utf-8", "replace").strip()
    except ConfigError:
        return ""


def _os_image() -> str:
    for line in _read_line("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""


def address_towards(cluster: Cluster) -> str:
    """Return the source address of connections to a server; "" when there is none.

    It is that towards the proxy where the server has a name that the proxy alone resolves. A proxy of this machine tells nothing.
    """
    parts = urlsplit(cluster.server)
    if address := source_address(dialled_host(parts), parts.port or HTTPS_PORT):
        return address
    try:
        proxy = proxies_for(cluster)(cluster.server)
    except ConfigError:
        return ""
    by = urlsplit(proxy.url) if proxy is not None else None
    found = source_address(by.hostname or "", by.port or HTTPS_PORT) if by is not None else ""
    return "" if found and ip_address(found).is_loopback else found


def node_object(machine: Machine, now: datetime) -> Obj:
    """Return the Node to create."""
    own = () if machine.ready else (NOT_READY_TAINT,)
    taints = [dict(taint) for taint in (*own, *(extra for extra in machine.given_taints if extra not in own))]
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": machine.name, "labels": {**machine.given_labels, **machine.labels}},
        "spec": {"taints": taints} if taints else {},
        "status": node_status(machine, now, None),
    }


def node_status(machine: Machine, now: datetime, previous: Obj | None) -> Obj:
    """Return the status at `now`. Conditions that did not change keep their transition time."""
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
    addresses = (
        *((("InternalIP", machine.address),) if machine.address else ()),
        *machine.more_addresses,
        ("Hostname", machine.name),
    )
    status_object: Obj = {
        "addresses": [{"type": kind, "address": address} for kind, address in addresses],
        "conditions": conditions,
        "nodeInfo": dict(machine.info),
    }
    if machine.capacity:
        capacity = dict(machine.capacity) | ({} if machine.ready else {"pods": "0"})
        status_object |= {"capacity": capacity, "allocatable": dict(capacity)}
    return status_object


async def register(client: ClusterClient, machine: Machine, *, first: bool = True, uid: str = "") -> Obj:
    """Create the Node or update the existing one. Return the stored Node.

    `first`: this program has not renewed the Lease yet, so that a renewed Lease shows another program. `uid` is that of the Node
    which this machine has registered, empty when any Node may be updated and none is missing.

    Raises NodeKeptError, NodeDeletedError, ApiError, PeerError.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return await _register(client, machine, first, uid)
        except (AlreadyExistsError, ConflictError):
            if not left:
                raise
    raise AssertionError("unreachable: the last try returns or raises")


async def _register(client: ClusterClient, machine: Machine, first: bool, uid: str) -> Obj:
    now = client.clock.now()
    try:
        known = await client.get("nodes", machine.name)
    except NotFoundError:
        # The deletion of a Node that this machine registered ends its membership, so it is not made again.
        check_registered(machine.name, uid, None)
        return await client.create("nodes", node_object(machine, now))
    check_registered(machine.name, uid, known)
    # Before the first write: labels and status of a Node that a kubelet keeps are left as they are.
    check_keeper(known, await _lease(client, machine.name) if first else None, now)
    labels = known["metadata"].get("labels") or {}
    missing = {key: value for key, value in machine.labels.items() if labels.get(key) != value}
    if missing:
        known = await client.patch(
            "nodes", machine.name, _conditional_patch(known, labels=missing), content_type=STRATEGIC
        )
    status = node_status(machine, now, known)
    status["addresses"] = _patched_addresses(machine, status["addresses"], known)
    patch = _conditional_patch(known) | {"status": status}
    return await client.patch("nodes", machine.name, patch, content_type=STRATEGIC, subresource="status")


def _patched_addresses(machine: Machine, reported: Sequence[Obj], known: Obj) -> list[Obj]:
    """Return the addresses for a patch of the status. Those of types that are not reported stay, unless flags give addresses.

    The merge by type changes one address of each type, so that a second one of an earlier run would stay.
    """
    present = (known.get("status") or {}).get("addresses") or ()
    types = [one.get("type") for one in present]
    own = {one["type"] for one in reported}
    if machine.more_addresses:
        return [*reported, {"$patch": "replace"}]
    if any(types.count(kind) > 1 for kind in own):
        return [*reported, *(one for one in present if one.get("type") not in own), {"$patch": "replace"}]
    return list(reported)


def _conditional_patch(known: Obj, **metadata: object) -> Obj:
    """Return a patch that the server refuses with 409 when the Node has changed since `known`."""
    return {"metadata": {"resourceVersion": known["metadata"]["resourceVersion"], **metadata}}


async def _lease(client: ClusterClient, name: str) -> Obj | None:
    try:
        return await client.get("leases", name, LEASES)
    except NotFoundError:
        return None


def is_in_use(node: Obj, now: datetime) -> bool:
    """Return True when the Node is Ready or its status is fresh."""
    return ready_condition(node).get("status") == "True" or is_fresh(node, now)
