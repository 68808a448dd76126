"""What a Service has and no other may have: its addresses and its node ports.

Rules kept here (Kubernetes documentation "Service ClusterIP allocation"; networking.k8s.io/v1 IPAddress, KEP-1880):
* An address is claimed as kube-apiserver claims it: by an IPAddress whose name is the address and whose parent is the Service. A
  node port is claimed likewise, under a key of our own, since Kubernetes has no object for it.
* `None` and texts that are no address claim nothing: validation refuses the latter.
"""

from __future__ import annotations

from collections.abc import Iterator

from mooring.api.core.addresses import parse_address
from mooring.api.core.service.types import HEADLESS
from mooring.api.kind import Claim
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, invalid

ADDRESSES = "/registry/ipaddresses/"
NODE_PORTS = "/registry/mooring/nodeports/"
TAKEN = "already allocated"
_ADDRESS_LABELS = "ipaddress.kubernetes.io/"


def claims(obj: Obj) -> tuple[Claim, ...]:
    """Those of the addresses and node ports that the Service names."""
    spec = obj.get("spec") or {}
    parent = {"group": "", "resource": "services", **_place(obj)}
    found = {claim.key: claim for claim in (*_addresses(spec, parent), *_ports(spec, parent))}
    return tuple(found.values())


def node_ports(spec: Obj) -> Iterator[tuple[str, int]]:
    """The node ports a Service has, and where it says so."""
    for index, port in enumerate(spec.get("ports") or ()):
        if number := port.get("nodePort"):
            yield f"spec.ports[{index}].nodePort", number
    if number := spec.get("healthCheckNodePort"):
        yield "spec.healthCheckNodePort", number


def address_taken(given: list[str], text: str) -> FieldError:
    return invalid("spec.clusterIPs", given, f"failed to allocate IP {text}: provided IP is {TAKEN}")


def port_taken(path: str, port: int) -> FieldError:
    return invalid(path, port, f"provided port is {TAKEN}")


def _addresses(spec: Obj, parent: Obj) -> Iterator[Claim]:
    given = spec.get("clusterIPs") or [spec.get("clusterIP", "")]
    for text in given:
        address = parse_address(text) if text != HEADLESS else None
        if address is None:
            continue
        labels = {
            _ADDRESS_LABELS + "ip-family": f"IPv{address.version}",
            _ADDRESS_LABELS + "managed-by": "ipallocator.k8s.io",
        }
        value = _object("networking.k8s.io/v1", "IPAddress", str(address), labels, parent)
        yield Claim(ADDRESSES + str(address), value, address_taken(given, text))


def _ports(spec: Obj, parent: Obj) -> Iterator[Claim]:
    for path, port in node_ports(spec):
        value = _object("mooring.dev/v1", "NodePort", str(port), {}, parent)
        yield Claim(f"{NODE_PORTS}{port}", value, port_taken(path, port))


def _object(api_version: str, kind: str, name: str, labels: Obj, parent: Obj) -> Obj:
    metadata = {"name": name, **({"labels": labels} if labels else {})}
    return {"kind": kind, "apiVersion": api_version, "metadata": metadata, "spec": {"parentRef": parent}}


def _place(obj: Obj) -> Obj:
    metadata = obj.get("metadata") or {}
    return {"namespace": metadata.get("namespace", ""), "name": metadata.get("name", "")}
