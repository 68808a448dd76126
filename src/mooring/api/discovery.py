"""EndpointSlice: strategy, validation, print columns.

Rules kept here (Kubernetes API reference, discovery.k8s.io/v1 EndpointSlice; wording as kube-apiserver's):
* All addresses of a slice are of one type, which is immutable: IPv4, IPv6 or FQDN.
* At most 1000 endpoints of at most 100 addresses each, and at most 100 ports: a slice fits a watch event.
* The names of its ports are unique; the empty name counts as one. A port without a number stands for every port.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mooring.api.core.addresses import (
    address_errors,
    address_warnings,
    endpoint_port_errors,
    parse_address,
    port_names_errors,
    special_address_errors,
)
from mooring.api.core.endpoints import shortened
from mooring.api.kind import Kind
from mooring.api.objectmeta import NAME, label_errors
from mooring.apimachinery.names import dns1123_label_errors, dns1123_subdomain_errors, label_value_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, duplicate, invalid, not_supported, required

MAX_HINTS = 8
"""Zones, and also nodes, in the hints of one endpoint."""
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
"""Label with the name of the controller that writes this slice."""
CONTROLLERS = ("endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io")
MAX_ENDPOINTS = 1000
MAX_ADDRESSES = 100
MAX_PORTS = 100
ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
UNSET = "<unset>"


def _default(obj: Obj) -> None:
    for port in obj.get("ports") or ():
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def _validate(obj: Obj) -> list[FieldError]:
    address_type, endpoints, ports = obj.get("addressType", ""), obj.get("endpoints") or [], obj.get("ports") or []
    errors: list[FieldError] = []
    if not address_type:
        errors.append(required("addressType"))
    elif address_type not in ADDRESS_TYPES:
        errors.append(not_supported("addressType", address_type, ADDRESS_TYPES))
    errors += _too_many(endpoints, MAX_ENDPOINTS, "endpoints") or [
        error
        for index, endpoint in enumerate(endpoints)
        for error in _endpoint_errors(endpoint, address_type, f"endpoints[{index}]")
    ]
    errors += _too_many(ports, MAX_PORTS, "ports") or [
        *port_names_errors(ports, "ports", needed=False),
        *(error for index, port in enumerate(ports) for error in endpoint_port_errors(port, f"ports[{index}]")),
    ]
    return errors


def _too_many(items: list[Any], limit: int, path: str) -> list[FieldError]:
    if len(items) <= limit:
        return []
    return [FieldError("FieldValueTooMany", path, f"{len(items)}: must have at most {limit} items")]


def _endpoint_errors(endpoint: Obj, address_type: str, path: str) -> list[FieldError]:
    addresses, at = endpoint.get("addresses") or [], f"{path}.addresses"
    errors = [] if addresses else [required(at, "must contain at least 1 address")]
    errors += _too_many(addresses, MAX_ADDRESSES, at) or [
        error
        for index, address in enumerate(addresses)
        for error in _address_errors(address, address_type, f"{at}[{index}]")
    ]
    for name, rule in (
        ("hostname", dns1123_label_errors),
        ("nodeName", dns1123_subdomain_errors),
    ):
        if (value := endpoint.get(name)) is not None:
            errors += [invalid(f"{path}.{name}", value, detail) for detail in rule(value)]
    if topology := endpoint.get("deprecatedTopology"):
        errors += label_errors(topology, f"{path}.deprecatedTopology")
    return errors + _hint_errors(endpoint.get("hints") or {}, f"{path}.hints")


def _address_errors(address: str, address_type: str, path: str) -> list[FieldError]:
    if address_type == "FQDN":
        bare = address.removesuffix(".")
        whys = dns1123_subdomain_errors(bare)
        if not whys and "." not in bare:
            whys = ["should be a domain with at least two segments separated by dots"]
        return [invalid(path, address, detail) for detail in whys]
    if address_type not in ADDRESS_TYPES:
        return []
    parsed = parse_address(address)
    if parsed is None:
        return address_errors(address, path)
    if f"IPv{parsed.version}" != address_type:
        return [invalid(path.rpartition("[")[0], address, f"must be an {address_type} address")]
    return special_address_errors(parsed, path)


def _hint_errors(hints: Mapping[str, Any], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for member, rule in (("forZones", label_value_errors), ("forNodes", dns1123_subdomain_errors)):
        listed = hints.get(member) or []
        if too_many := _too_many(listed, MAX_HINTS, f"{path}.{member}"):
            return errors + too_many
        seen = set()
        for index, hint in enumerate(listed):
            at, name = f"{path}.{member}[{index}].name", hint.get("name", "")
            if name in seen:
                errors.append(duplicate(at, name))
            seen.add(name)
            errors += [invalid(at, name, detail) for detail in rule(name)]
    return errors


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    if new.get("addressType") == old.get("addressType"):
        return []
    return [invalid("addressType", new.get("addressType"), "field is immutable")]


def _ports(obj: Obj, now: datetime) -> str:
    ports = obj.get("ports") or ()
    return shortened([str(port["port"]) if "port" in port else port.get("name") or "*" for port in ports], UNSET)


def _endpoints(obj: Obj, now: datetime) -> str:
    endpoints = obj.get("endpoints") or ()
    return shortened([address for endpoint in endpoints for address in endpoint.get("addresses") or ()], UNSET)


def _warnings(new: Obj, old: Obj | None) -> list[str]:
    warnings = []
    if old is None and new.get("addressType") == "FQDN":
        warnings.append("spec.addressType: FQDN endpoints are deprecated")
    if (new["metadata"].get("labels") or {}).get(MANAGED_BY) in CONTROLLERS:
        # These controllers write canonical addresses.
        return warnings
    for index, endpoint in enumerate(new.get("endpoints") or ()):
        for place, address in enumerate(endpoint.get("addresses") or ()):
            warnings += address_warnings(f"endpoints[{index}].addresses[{place}]", address)
    return warnings


KIND = Kind(
    resource=Resource(
        group="discovery.k8s.io",
        version="v1",
        kind="EndpointSlice",
        plural="endpointslices",
        namespaced=True,
        schema=message("io.k8s.api.discovery.v1.EndpointSlice"),
        columns=(
            NAME,
            Column("AddressType", lambda obj, now: obj.get("addressType", ""), description="IPv4, IPv6 or FQDN."),
            Column("Ports", _ports, description="The ports of its endpoints."),
            Column("Endpoints", _endpoints, description="The addresses of its endpoints."),
            AGE,
        ),
    ),
    storage="/registry/endpointslices",
    name_errors=dns1123_subdomain_errors,
    default=_default,
    validate=_validate,
    validate_update=_validate_update,
    warnings=_warnings,
    has_generation=True,
)
