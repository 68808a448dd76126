"""Services: defaults, updates, the addresses and ports that they take, and the columns of their table."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Container, Iterator, Mapping
from datetime import datetime

from mooring.api.core import servicevalidation
from mooring.api.core.addresses import parse_address
from mooring.api.core.servicevalidation import (
    DEFAULT_CLIENT_IP_SECONDS,
    EXTERNAL_NAME,
    FAMILIES,
    HEADLESS,
    LOAD_BALANCER,
    is_externally_accessible,
    is_headless_without_selector,
    is_load_balancer,
    needs_cluster_ip,
    needs_health_check,
    needs_node_ports,
)
from mooring.api.kind import Change, Kind, SubresourceStrategy, ValueClaim
from mooring.api.objectmeta import NAME, NONE, UNKNOWN, reset_fields, spec_of
from mooring.apimachinery.names import dns1123_label_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, invalid
from mooring.settings.addresses import DEFAULT_SERVICE_RANGE, Network

# Allocation of cluster IPs and node ports to Services: the choice of a free one, and the claim that keeps it unique.
#
# Rules kept here (Kubernetes documentation "Service ClusterIP allocation", "Avoiding collisions in NodePort allocation";
# networking.k8s.io/v1 IPAddress, KEP-1880):
# * Cluster IPs come from the configured range (`service-cluster-ip-range`). Its first address belongs to the API server, its last
#   address is never allocated. Node ports come from 30000 to 32767.
# * Dynamic allocation starts above a lower band, which is reserved for values that clients choose: 16 to 256 addresses, 16 to 128
#   ports. The band is used when everything above it is allocated.
# * `seed` determines where the search begins; the first free value from there on is taken.
# * A cluster IP is claimed like in kube-apiserver: by an IPAddress whose name is the address and whose parent is the Service. A
#   node port is claimed in the same way under a key of Mooring's own, because Kubernetes has no object for it, and in
#   kube-apiserver's bitmap where there is one.
# * `None` and invalid addresses claim nothing; validation refuses the latter.

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
        # len() ends at 2**63.
        begin = int.from_bytes(hashlib.sha256(seed).digest(), "big") % (upper.stop - upper.start)
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


# Print columns of Service: type, addresses and ports; with `-o wide` the selector.


def _cluster_ip(obj: Obj, now: datetime) -> str:
    addresses = spec_of(obj).get("clusterIPs")
    return str(addresses[0]) if addresses else NONE


def _external_ip(obj: Obj, now: datetime) -> str:
    spec = spec_of(obj)
    external = spec.get("externalIPs") or []
    match spec.get("type"):
        case "ClusterIP" | "NodePort":
            return ",".join(external) or NONE
        case "LoadBalancer":
            ingress = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
            addresses = sorted({entry.get("ip") or entry.get("hostname", "") for entry in ingress} - {""})
            return ",".join([*addresses, *external]) or "<pending>"
        case "ExternalName":
            return str(spec.get("externalName", ""))
    return UNKNOWN


def _ports(obj: Obj, now: datetime) -> str:
    return ",".join(_port(port) for port in spec_of(obj).get("ports") or ()) or NONE


def _port(port: Obj) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port', 0)}{node_port}/{port.get('protocol', '')}"


def _selector(obj: Obj, now: datetime) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((spec_of(obj).get("selector") or {}).items())) or NONE


COLUMNS = (
    NAME,
    Column("Type", lambda obj, now: spec_of(obj).get("type", ""), description="How it is reached."),
    Column("Cluster-IP", _cluster_ip, description="Its address in the cluster."),
    Column("External-IP", _external_ip, description="Its addresses outside the cluster."),
    Column("Port(s)", _ports, description="Its ports, with those of the nodes that lead to them."),
    AGE,
    Column("Selector", _selector, description="Labels of the Pods behind it.", priority=1),
)


# Service: strategy and defaults. No part of this server routes traffic; proxies read Services and EndpointSlices.
#
# Rules kept here (Kubernetes API reference, core/v1 Service; documentation "Service", "IPv4/IPv6 dual-stack"):
# * Defaults: type ClusterIP, no affinity, policies Cluster, ports TCP to the same port of the Pods.
# * clusterIP and the first of clusterIPs are the same value. Admission allocates addresses, their families and node ports; the
#   store holds a claim for each, so that two servers never allocate the same.
# * Endpoints of the same name are deleted with the Service. Its EndpointSlices are owned by it, and garbage collected.
# * An update without an allocated value keeps it. An update to a type that does not use the value releases it, unless the update
#   changes the value at the same time, which validation refuses.
# * The main resource changes all but status, `/status` status only. PUT to a missing name creates.

_CLUSTER_IP_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")


def _default(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    _set_if_empty(spec, "sessionAffinity", "None")
    _set_if_empty(spec, "type", "ClusterIP")
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {})
        config.setdefault("clientIP", {}).setdefault("timeoutSeconds", DEFAULT_CLIENT_IP_SECONDS)
    for port in spec.get("ports") or ():
        _set_if_empty(port, "protocol", "TCP")
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port", 0)
    if needs_cluster_ip(spec):
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if is_externally_accessible(spec):
        _set_if_empty(spec, "externalTrafficPolicy", "Cluster")
    if spec["type"] == LOAD_BALANCER:
        spec.setdefault("allocateLoadBalancerNodePorts", True)
        for entry in ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ():
            if entry.get("ip"):
                entry.setdefault("ipMode", "VIP")


def _set_if_empty(obj: Obj, name: str, value: str) -> None:
    if not obj.get(name):
        obj[name] = value


def _prepare_for_create(obj: Obj, change: Change) -> None:
    spec = obj["spec"]
    obj["status"] = {"loadBalancer": {}}
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "status")
    spec, old_spec = new["spec"], old.get("spec") or {}
    _keep_cluster_ip(spec, old_spec)
    _keep_node_ports(spec, old_spec)
    _release_unused(spec, old_spec)
    if needs_cluster_ip(old_spec) and needs_cluster_ip(spec):
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if not spec.get(name) and name in old_spec:
                spec[name] = old_spec[name]


def _keep_cluster_ip(spec: Obj, old_spec: Obj) -> None:
    address, stored = spec.get("clusterIP", ""), old_spec.get("clusterIP", "")
    unchanged = (spec.get("clusterIPs") or []) in ([], old_spec.get("clusterIPs") or [])
    if not (needs_cluster_ip(spec) and needs_cluster_ip(old_spec)):
        if address and address != stored and unchanged:
            spec["clusterIPs"] = [address]
    elif not address and not spec.get("clusterIPs"):
        reset_fields(spec, old_spec, "clusterIP", "clusterIPs")
    elif address == stored and not spec.get("clusterIPs"):
        reset_fields(spec, old_spec, "clusterIPs")
    elif address != stored and unchanged:
        spec["clusterIPs"] = [address] if address else []


def _keep_node_ports(spec: Obj, old_spec: Obj) -> None:
    """Keep the node port of each port with unchanged protocol and number."""
    if needs_node_ports(spec) and needs_node_ports(old_spec):
        stored = {_port_key(port): port["nodePort"] for port in old_spec.get("ports") or () if port.get("nodePort")}
        requested = {port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")}
        for port in spec.get("ports") or ():
            number = stored.get(_port_key(port))
            if number and not port.get("nodePort") and number not in requested:
                port["nodePort"] = number
    if needs_health_check(spec) and needs_health_check(old_spec) and not spec.get("healthCheckNodePort"):
        reset_fields(spec, old_spec, "healthCheckNodePort")


def _port_key(port: Obj) -> tuple[str, int]:
    return port.get("protocol", ""), port.get("port", 0)


def _release_unused(spec: Obj, old_spec: Obj) -> None:
    """Remove fields of the previous type that the new type does not use, unless the update changed them."""
    if (
        needs_cluster_ip(old_spec)
        and not needs_cluster_ip(spec)
        and _equal_in(spec, old_spec, "clusterIP", "clusterIPs")
    ):
        for name in _CLUSTER_IP_FIELDS:
            spec.pop(name, None)
    if needs_node_ports(old_spec) and not needs_node_ports(spec):
        before = {port.get("nodePort") for port in old_spec.get("ports") or ()}
        if all(port.get("nodePort") in before for port in spec.get("ports") or () if port.get("nodePort")):
            for port in spec.get("ports") or ():
                port.pop("nodePort", None)
    for name, applies in (
        ("healthCheckNodePort", needs_health_check),
        ("externalTrafficPolicy", is_externally_accessible),
        ("allocateLoadBalancerNodePorts", is_load_balancer),
        ("loadBalancerClass", is_load_balancer),
    ):
        if applies(old_spec) and not applies(spec) and _equal_in(spec, old_spec, name):
            spec.pop(name, None)


def _equal_in(spec: Obj, old_spec: Obj, *names: str) -> bool:
    return all(spec.get(name) == old_spec.get(name) for name in names)


def _prepare_status(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "spec")


def _selectable_fields(obj: Obj) -> Mapping[str, str]:
    spec = obj.get("spec") or {}
    return {"spec.clusterIP": spec.get("clusterIP", ""), "spec.type": spec.get("type", "")}


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="Service",
        plural="services",
        namespaced=True,
        schema=message("io.k8s.api.core.v1.Service"),
        short_names=("svc",),
        categories=("all",),
        subresources=(Subresource("status", ("get", "patch", "update")),),
        columns=COLUMNS,
        returns_deleted=True,
    ),
    storage="/registry/services/specs",
    name_errors=dns1123_label_errors,
    default=_default,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    validate=servicevalidation.validate,
    validate_update=servicevalidation.validate_update,
    selectable_fields=_selectable_fields,
    field_labels=("spec.clusterIP", "spec.type"),
    subresources={
        "status": SubresourceStrategy(
            prepare_for_update=_prepare_status, validate_update=servicevalidation.validate_status_update
        )
    },
    allow_create_on_update=True,
    claims=claims,
    cascade_plurals=("endpoints",),
)
