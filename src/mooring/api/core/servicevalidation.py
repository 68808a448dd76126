"""Services: the words of their spec, the records of their addresses in the store, and their validation."""

from __future__ import annotations

import base64
import ipaddress

from mooring.api.core.addresses import (
    MAX_PORT,
    NOT_A_PORT,
    NOT_A_RANGE,
    address_errors,
    parse_address,
    port_name_errors,
    port_names_errors,
    protocol_errors,
    special_address_errors,
)
from mooring.api.objectmeta import label_errors
from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.codec.storedvalue import decode_stored_value
from mooring.apimachinery.names import dns1123_subdomain_errors, qualified_name_errors
from mooring.apimachinery.schema import Obj, message
from mooring.errors import BadRequestError, FieldError, duplicate, forbidden, invalid, not_supported, required

# Service types, and predicates on a Service spec: cluster IP, node ports, health check, external access.

CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME = "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"
TYPES = (CLUSTER_IP, EXTERNAL_NAME, LOAD_BALANCER, NODE_PORT)
HEADLESS = "None"
"""The clusterIP of a headless Service."""
FAMILIES = ("IPv4", "IPv6")
DEFAULT_CLIENT_IP_SECONDS = 10800
"""Default timeout, in seconds, of session affinity ClientIP."""
MAX_CLIENT_IP_SECONDS = 86400


def needs_cluster_ip(spec: Obj) -> bool:
    return spec.get("type") in (CLUSTER_IP, NODE_PORT, LOAD_BALANCER)


def is_headless(spec: Obj) -> bool:
    return bool(needs_cluster_ip(spec) and spec.get("clusterIPs") and spec["clusterIPs"][0] == HEADLESS)


def is_headless_without_selector(spec: Obj) -> bool:
    """Return true when the Service has neither a cluster IP nor a selector: its endpoints come from outside Kubernetes."""
    return is_headless(spec) and not spec.get("selector")


def needs_node_ports(spec: Obj) -> bool:
    """Return true when each port of the Service gets a port on every node."""
    return spec.get("type") == NODE_PORT or (
        spec.get("type") == LOAD_BALANCER and spec.get("allocateLoadBalancerNodePorts") is not False
    )


def is_externally_accessible(spec: Obj) -> bool:
    """Return true when traffic may come from outside the cluster."""
    return spec.get("type") in (NODE_PORT, LOAD_BALANCER) or bool(
        spec.get("type") == CLUSTER_IP and spec.get("externalIPs")
    )


def needs_health_check(spec: Obj) -> bool:
    """Return true when load balancers probe nodes on `healthCheckNodePort`."""
    return spec.get("type") == LOAD_BALANCER and spec.get("externalTrafficPolicy") == "Local"


def is_load_balancer(spec: Obj) -> bool:
    return spec.get("type") == LOAD_BALANCER


# Records of what Services were allocated, as kube-apiserver keeps them: ServiceCIDR, IPAddress, and the bitmap of node ports.
#
# Rules kept here (docs/protocol/storage.md#allocations):
# * These objects are not kinds of the API here. They are read in both encodings and written as JSON.
# * The bitmap is a RangeAllocation: bit `n` of `data`, a big-endian number, stands for the `n`-th port of `range`.

_SCHEMAS = {
    ("networking.k8s.io/v1", "ServiceCIDR"): message("io.k8s.api.networking.v1.ServiceCIDR"),
    ("networking.k8s.io/v1", "IPAddress"): message("io.k8s.api.networking.v1.IPAddress"),
    ("v1", "RangeAllocation"): message("io.k8s.api.core.v1.RangeAllocation"),
    ("mooring.dev/v1", "NodePort"): message("dev.mooring.v1.NodePort"),
}


def decode_record(value: bytes) -> Obj:
    """Return the record in a stored value; empty when the value is not a record."""
    try:
        return decode_stored_value(value, _SCHEMAS)[0]
    except BadRequestError:
        return {}


def is_allocated(bitmap: Obj, offset: int) -> bool:
    """Return whether the bit `offset` of a RangeAllocation is set."""
    return bool(_bits(bitmap) >> offset & 1)


def with_bit(bitmap: Obj, offset: int, allocated: bool) -> Obj:
    """Return a copy of a RangeAllocation in which the bit `offset` is set or cleared."""
    bits = _bits(bitmap) & ~(1 << offset) | allocated << offset
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "big")
    return {**bitmap, "data": base64.b64encode(data).decode()}


def _bits(bitmap: Obj) -> int:
    return int.from_bytes(base64_field(bitmap.get("data")), "big")


# Validation of Services, on create and update, and of their status (wording as kube-apiserver's).
#
# Rules kept here (Kubernetes API reference, core/v1 Service):
# * A Service has ports, unless it is headless or of type ExternalName. Several ports need names. No protocol and number occur
#   twice.
# * Enumerated fields have known values, and are set only for types that use them: node ports, external traffic, load balancers.
# * The first address and its family are immutable while the Service has an address.

POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")
TRAFFIC = ("Cluster", "Local")
DISTRIBUTIONS = ("PreferClose", "PreferSameNode", "PreferSameZone")
IP_MODES = ("Proxy", "VIP")
"""Values of ipMode: the destination address of load-balanced traffic that arrives at a node."""
IMMUTABLE = "may not change once set"


def validate(obj: Obj) -> list[FieldError]:
    """Validate a Service that has its defaults, on create and on update."""
    spec = obj.get("spec") or {}
    errors = _type_errors(spec) + _ports_errors(spec)
    if selector := spec.get("selector"):
        errors += label_errors(selector, "spec.selector")
    errors += _affinity_errors(spec)
    for index, address in enumerate(spec.get("externalIPs") or ()):
        errors += _address_errors(address, f"spec.externalIPs[{index}]")
    return (
        errors + _traffic_errors(spec) + _load_balancer_errors(spec) + _cluster_ip_errors(spec) + _family_errors(spec)
    )


def _type_errors(spec: Obj) -> list[FieldError]:
    kind, addresses = spec.get("type", ""), spec.get("clusterIPs") or []
    if kind not in TYPES:
        return [not_supported("spec.type", kind, TYPES)]
    if kind == EXTERNAL_NAME:
        name = spec.get("externalName", "")
        errors = [forbidden("spec.clusterIPs", "may not be set for ExternalName services")] if addresses else []
        if not name:
            return [*errors, required("spec.externalName")]
        return errors + [
            invalid("spec.externalName", name, detail) for detail in dns1123_subdomain_errors(name.rstrip("."))
        ]
    if kind != CLUSTER_IP and is_headless(spec):
        return [invalid("spec.clusterIPs[0]", addresses[0], f"may not be set to 'None' for {kind} services")]
    return []


def _ports_errors(spec: Obj) -> list[FieldError]:
    ports = spec.get("ports") or []
    if not ports:
        portless = is_headless(spec) or spec.get("type") == EXTERNAL_NAME
        return [] if portless else [required("spec.ports")]
    errors = port_names_errors(ports, "spec.ports", needed=len(ports) > 1)
    seen: set[tuple[str, int]] = set()
    node_ports: set[tuple[str, int]] = set()
    for index, port in enumerate(ports):
        at, protocol, number = f"spec.ports[{index}]", port.get("protocol", ""), port.get("port", 0)
        errors += _port_errors(port, at)
        if (protocol, number) in seen:
            key = {
                "Name": "",
                "Protocol": protocol,
                "AppProtocol": None,
                "Port": number,
                "TargetPort": 0,
                "NodePort": 0,
            }
            errors.append(duplicate(at, key))
        seen.add((protocol, number))
        if node_port := port.get("nodePort"):
            if spec.get("type") in (CLUSTER_IP, EXTERNAL_NAME):
                detail = f"may not be used when `type` is '{spec['type']}'"
                errors.append(forbidden(f"{at}.nodePort", detail))
            elif (protocol, node_port) in node_ports:
                errors.append(duplicate(f"{at}.nodePort", node_port))
            node_ports.add((protocol, node_port))
    return errors


def _port_errors(port: Obj, at: str) -> list[FieldError]:
    number, target, application = port.get("port", 0), port.get("targetPort", 0), port.get("appProtocol")
    errors = [] if 1 <= number <= MAX_PORT else [invalid(f"{at}.port", number, NOT_A_PORT)]
    errors += protocol_errors(port.get("protocol", ""), f"{at}.protocol")
    if isinstance(target, str):
        errors += [invalid(f"{at}.targetPort", target, detail) for detail in port_name_errors(target)]
    elif not 1 <= target <= MAX_PORT:
        errors.append(invalid(f"{at}.targetPort", target, NOT_A_PORT))
    if application:
        errors += [invalid(f"{at}.appProtocol", application, detail) for detail in qualified_name_errors(application)]
    return errors


def _affinity_errors(spec: Obj) -> list[FieldError]:
    affinity = spec.get("sessionAffinity", "")
    if affinity not in ("ClientIP", "None"):
        return [not_supported("spec.sessionAffinity", affinity, ("ClientIP", "None"))]
    seconds = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds", 1)
    if 1 <= seconds <= MAX_CLIENT_IP_SECONDS:
        return []
    detail = f"must be greater than 0 and less than {MAX_CLIENT_IP_SECONDS}"
    return [invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, detail)]


def _address_errors(text: str, path: str) -> list[FieldError]:
    address = parse_address(text)
    if address is None:
        return address_errors(text, path)
    return special_address_errors(address, path)


def _traffic_errors(spec: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    external, health = spec.get("externalTrafficPolicy", ""), spec.get("healthCheckNodePort", 0)
    if external and not is_externally_accessible(spec):
        errors.append(
            invalid("spec.externalTrafficPolicy", external, "may only be set for externally-accessible services")
        )
    elif (external or is_externally_accessible(spec)) and external not in TRAFFIC:
        errors.append(not_supported("spec.externalTrafficPolicy", external, TRAFFIC))
    if health and not needs_health_check(spec):
        detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        errors.append(invalid("spec.healthCheckNodePort", health, detail))
    internal, distribution = spec.get("internalTrafficPolicy"), spec.get("trafficDistribution")
    if internal is not None and internal not in TRAFFIC:
        errors.append(not_supported("spec.internalTrafficPolicy", internal, TRAFFIC))
    if distribution is not None and distribution not in DISTRIBUTIONS:
        errors.append(not_supported("spec.trafficDistribution", distribution, DISTRIBUTIONS))
    return errors


def _load_balancer_errors(spec: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    if spec.get("type") != LOAD_BALANCER:
        detail = "may only be used when `type` is 'LoadBalancer'"
        fields = (("loadBalancerSourceRanges", "LoadBalancerSourceRanges"), ("loadBalancerClass", "loadBalancerClass"))
        errors += [forbidden(f"spec.{path}", detail) for name, path in fields if spec.get(name)]
        if spec.get("allocateLoadBalancerNodePorts") is not None:
            errors.append(forbidden("spec.allocateLoadBalancerNodePorts", detail))
        return errors
    for index, cidr in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        try:
            if "/" not in cidr:
                raise ValueError(cidr)
            ipaddress.ip_interface(cidr.strip())
        except ValueError:
            errors.append(invalid(f"spec.LoadBalancerSourceRanges[{index}]", cidr, NOT_A_RANGE))
    if kind := spec.get("loadBalancerClass"):
        errors += [invalid("spec.loadBalancerClass", kind, detail) for detail in qualified_name_errors(kind)]
    return errors


def _cluster_ip_errors(spec: Obj) -> list[FieldError]:
    path, addresses = "spec.clusterIPs", spec.get("clusterIPs") or []
    if spec.get("type") == EXTERNAL_NAME:
        return []
    if addresses and not spec.get("clusterIP"):
        return [invalid(path, addresses, "must be empty when `clusterIP` is not specified")]
    errors: list[FieldError] = []
    if spec.get("clusterIP", "") != (addresses[0] if addresses else ""):
        errors.append(invalid(path, addresses, "first value must match `clusterIP`"))
    if len(addresses) > len(FAMILIES):
        return [*errors, invalid(path, addresses, "may only hold up to 2 values")]
    for index, text in enumerate(addresses):
        if text == HEADLESS:
            if index or len(addresses) > 1:
                detail = "'None' must be the first and only value"
                errors.append(invalid(f"{path}[{index}]", text, detail))
        elif parse_address(text) is None:
            errors += address_errors(text, f"{path}[{index}]")
        elif index:
            errors.append(invalid(path, addresses, "this cluster is not configured for dual-stack services"))
    return errors


def _family_errors(spec: Obj) -> list[FieldError]:
    policy, families = spec.get("ipFamilyPolicy"), spec.get("ipFamilies") or []
    if spec.get("type") == EXTERNAL_NAME:
        fields = {"ipFamilyPolicy": policy, "ipFamilies": families}
        return [
            forbidden(f"spec.{name}", "may not be set for ExternalName services") for name in fields if fields[name]
        ]
    errors = [
        not_supported(f"spec.ipFamilies[{index}]", family, FAMILIES)
        for index, family in enumerate(families)
        if family not in FAMILIES
    ]
    first = {family: index for index, family in reversed(list(enumerate(families)))}
    errors += [
        duplicate(f"spec.ipFamilies[{index}]", family) for index, family in enumerate(families) if first[family] < index
    ]
    if policy is not None and policy not in POLICIES:
        errors.append(not_supported("spec.ipFamilyPolicy", policy, POLICIES))
    if not errors and policy == "RequireDualStack" and not is_headless_without_selector(spec):
        detail = "this cluster is not configured for dual-stack services"
        errors.append(invalid("spec.ipFamilyPolicy", policy, detail))
    return errors


def validate_update(new: Obj, old: Obj) -> list[FieldError]:
    """Validate the changes from a stored Service to a new one."""
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    errors: list[FieldError] = []
    if needs_cluster_ip(spec) and needs_cluster_ip(old_spec):
        for name in ("clusterIPs", "ipFamilies"):
            now, before = spec.get(name) or [], old_spec.get(name) or []
            if before and now[:1] != before[:1]:
                errors.append(invalid(f"spec.{name}[0]", now, IMMUTABLE))
    if spec.get("type") == old_spec.get("type") == LOAD_BALANCER:
        now, before = spec.get("loadBalancerClass"), old_spec.get("loadBalancerClass")
        if now != before:
            errors.append(invalid("spec.loadBalancerClass", now, IMMUTABLE))
    return errors


def validate_status_update(new: Obj, old: Obj) -> list[FieldError]:
    """Validate load balancer ingress: only for type LoadBalancer, addresses with a mode, DNS names."""
    path = "status.loadBalancer.ingress"
    ingress = ((new.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    if ingress and (new.get("spec") or {}).get("type") != LOAD_BALANCER:
        return [forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")]
    errors: list[FieldError] = []
    for index, entry in enumerate(ingress):
        at, address, mode, name = (
            f"{path}[{index}]",
            entry.get("ip", ""),
            entry.get("ipMode"),
            entry.get("hostname", ""),
        )
        if address and parse_address(address) is None:
            errors += address_errors(address, f"{at}.ip")
        if mode is None:
            if address:
                errors.append(required(f"{at}.ipMode", "must be specified when `ip` is set"))
        elif not address:
            errors.append(forbidden(f"{at}.ipMode", "may not be specified when `ip` is not set"))
        elif mode not in IP_MODES:
            errors.append(not_supported(f"{at}.ipMode", mode, IP_MODES))
        if name:
            errors += [invalid(f"{at}.hostname", name, detail) for detail in dns1123_subdomain_errors(name)]
            if parse_address(name) is not None:
                errors.append(invalid(f"{at}.hostname", name, "must be a DNS name, not an IP address"))
    return errors
