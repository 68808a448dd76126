"""Service: strategy and defaults. No part of this server routes traffic; proxies read Services and EndpointSlices.

Rules kept here (Kubernetes API reference, core/v1 Service; documentation "Service", "IPv4/IPv6 dual-stack"):
* Defaults: type ClusterIP, no affinity, policies Cluster, ports TCP to the same port of the Pods.
* clusterIP and the first of clusterIPs are the same value. Admission allocates addresses, their families and node ports; the
  store holds a claim for each, so that two servers never allocate the same.
* Endpoints of the same name are deleted with the Service. Its EndpointSlices are owned by it, and garbage collected.
* An update without an allocated value keeps it. An update to a type that does not use the value releases it, unless the update
  changes the value at the same time, which validation refuses.
* The main resource changes all but status, `/status` status only. PUT to a missing name creates.
"""

from __future__ import annotations

from collections.abc import Mapping

from mooring.api.core.service import validation
from mooring.api.core.service.allocation import claims
from mooring.api.core.service.printcolumns import COLUMNS
from mooring.api.core.service.spec import (
    DEFAULT_CLIENT_IP_SECONDS,
    LOAD_BALANCER,
    is_externally_accessible,
    is_load_balancer,
    needs_cluster_ip,
    needs_health_check,
    needs_node_ports,
)
from mooring.api.kind import Change, Kind, SubresourceStrategy
from mooring.api.meta.resetfields import reset_fields
from mooring.apimachinery.names import dns1123_label_errors
from mooring.apimachinery.resource import Resource, Subresource
from mooring.apimachinery.schema import Obj, message

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
    validate=validation.validate,
    validate_update=validation.validate_update,
    selectable_fields=_selectable_fields,
    field_labels=("spec.clusterIP", "spec.type"),
    subresources={
        "status": SubresourceStrategy(
            prepare_for_update=_prepare_status, validate_update=validation.validate_status_update
        )
    },
    allow_create_on_update=True,
    claims=claims,
    cascade_plurals=("endpoints",),
)
