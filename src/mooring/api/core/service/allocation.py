"""Allocation of cluster IPs and node ports to Services: the choice of a free one, and the claim that keeps it unique.

Rules kept here (Kubernetes documentation "Service ClusterIP allocation", "Avoiding collisions in NodePort allocation";
networking.k8s.io/v1 IPAddress, KEP-1880):
* Cluster IPs come from the configured range (`service-cluster-ip-range`). Its first address belongs to the API server, its last
  address is never allocated. Node ports come from 30000 to 32767.
* Dynamic allocation starts above a lower band, which is reserved for values that clients choose: 16 to 256 addresses, 16 to 128
  ports. The band is used when everything above it is allocated.
* `seed` determines where the search begins; the first free value from there on is taken.
* A cluster IP is claimed like in kube-apiserver: by an IPAddress whose name is the address and whose parent is the Service. A node
  port is claimed in the same way under a key of Mooring's own, because Kubernetes has no object for it, and in kube-apiserver's
  bitmap where there is one.
* `None` and invalid addresses claim nothing; validation refuses the latter.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Container, Iterator

from mooring.api.core.addresses import parse_address
from mooring.api.core.service.spec import EXTERNAL_NAME, FAMILIES, HEADLESS, is_headless_without_selector
from mooring.api.kind import ValueClaim
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, invalid
from mooring.settings.addresses import DEFAULT_SERVICE_RANGE, Network

DEFAULT_RANGE: Network = ipaddress.IPv4Network(DEFAULT_SERVICE_RANGE)
NODE_PORT_RANGE = range(30000, 32768)
_MIN_BAND, _MAX_ADDRESS_BAND, _MAX_PORT_BAND = 16, 256, 128

IP_ADDRESS_PREFIX = "/registry/ipaddresses/"
NODE_PORT_PREFIX = "/registry/mooring/nodeports/"
NODE_PORT_BITMAP = "/registry/ranges/servicenodeports"
ALLOCATED = "already allocated"
_ADDRESS_LABELS = "ipaddress.kubernetes.io/"


def api_address(cidr: Network) -> str:
    """Return the cluster IP of `kubernetes.default.svc` (docs/protocol/namespaces.md#the-service-defaultkubernetes)."""
    return str(cidr[1])


def init_ip_families(spec: Obj, family: str) -> None:
    """Set `ipFamilyPolicy` and `ipFamilies`, in place; `family` is the cluster's.

    A headless Service without a selector may be dual-stack in a single-stack cluster, because its endpoints come from outside.
    """
    if spec.get("type") == EXTERNAL_NAME:
        return
    without_selector = is_headless_without_selector(spec)
    policy = spec.setdefault("ipFamilyPolicy", "RequireDualStack" if without_selector else "SingleStack")
    families = spec.get("ipFamilies") or [family]
    if without_selector and policy != "SingleStack" and len(families) == 1:
        families = [*families, *(other for other in FAMILIES if other not in families)]
    spec["ipFamilies"] = families


def free_address(used: Container[str], seed: bytes, cidr: Network = DEFAULT_RANGE) -> str | None:
    """Return an address of `cidr` that is not in `used`, or None. The first two and the last address are never returned."""
    size = cidr.num_addresses
    band = min(max(_MIN_BAND, size // 16), _MAX_ADDRESS_BAND)
    for offset in _search_order(range(2, size - 1), band, seed):
        address = str(cidr[offset])
        if address not in used:
            return address
    return None


def free_port(used: Container[int], seed: bytes, ports: range = NODE_PORT_RANGE) -> int | None:
    """Return a node port that is not in `used`, or None."""
    band = min(max(_MIN_BAND, len(ports) // 32), _MAX_PORT_BAND)
    for offset in _search_order(range(len(ports)), band, seed):
        if ports[offset] not in used:
            return ports[offset]
    return None


def _search_order(offsets: range, band: int, seed: bytes) -> Iterator[int]:
    """Yield all offsets: those from `band` on, beginning at one that `seed` determines, then those below `band`."""
    upper = range(max(band, offsets.start), offsets.stop)
    if upper:
        begin = int.from_bytes(hashlib.sha256(seed).digest(), "big") % (upper.stop - upper.start)  # len() ends at 2**63
        yield from upper[begin:]
        yield from upper[:begin]
    yield from range(offsets.start, min(band, offsets.stop))


def claims(obj: Obj) -> tuple[ValueClaim, ...]:
    """Return the claims of the cluster IPs and node ports in the spec of a Service."""
    spec, metadata = obj.get("spec") or {}, obj.get("metadata") or {}
    parent = {
        "group": "",
        "resource": "services",
        "namespace": metadata.get("namespace", ""),
        "name": metadata.get("name", ""),
    }
    found = {claim.key: claim for claim in (*_address_claims(spec, parent), *_port_claims(spec, parent))}
    return tuple(found.values())


def node_ports(spec: Obj) -> Iterator[tuple[str, int]]:
    """Yield the path and the number of each node port in a Service spec."""
    for index, port in enumerate(spec.get("ports") or ()):
        if number := port.get("nodePort"):
            yield f"spec.ports[{index}].nodePort", number
    if number := spec.get("healthCheckNodePort"):
        yield "spec.healthCheckNodePort", number


def address_allocated(addresses: list[str], address: str) -> FieldError:
    return invalid("spec.clusterIPs", addresses, f"failed to allocate IP {address}: provided IP is {ALLOCATED}")


def port_allocated(path: str, port: int) -> FieldError:
    return invalid(path, port, f"provided port is {ALLOCATED}")


def _address_claims(spec: Obj, parent: Obj) -> Iterator[ValueClaim]:
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP", "")]
    for text in addresses:
        address = parse_address(text) if text != HEADLESS else None
        if address is None:
            continue
        labels = {
            _ADDRESS_LABELS + "ip-family": f"IPv{address.version}",
            _ADDRESS_LABELS + "managed-by": "ipallocator.k8s.io",
        }
        value = _claim_object("networking.k8s.io/v1", "IPAddress", str(address), labels, parent)
        yield ValueClaim(IP_ADDRESS_PREFIX + str(address), value, address_allocated(addresses, text))


def _port_claims(spec: Obj, parent: Obj) -> Iterator[ValueClaim]:
    for path, port in node_ports(spec):
        value = _claim_object("mooring.dev/v1", "NodePort", str(port), {}, parent)
        bit = (NODE_PORT_BITMAP, port - NODE_PORT_RANGE.start) if port in NODE_PORT_RANGE else None
        yield ValueClaim(f"{NODE_PORT_PREFIX}{port}", value, port_allocated(path, port), bit)


def _claim_object(api_version: str, kind: str, name: str, labels: Obj, parent: Obj) -> Obj:
    metadata = {"name": name, **({"labels": labels} if labels else {})}
    return {"kind": kind, "apiVersion": api_version, "metadata": metadata, "spec": {"parentRef": parent}}
