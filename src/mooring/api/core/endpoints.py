"""Endpoints: strategy, validation, print columns.

Rules kept here (Kubernetes API reference, core/v1 Endpoints; wording as kube-apiserver's):
* A subset is a set of addresses, ready or not, with the ports that each of them has; it has at least one address.
* Several ports need names. The default protocol of a port is TCP. PUT to a missing name creates.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from mooring.api.core.addresses import (
    NOT_AN_ADDRESS,
    address_errors,
    address_warnings,
    endpoint_port_errors,
    parse_address,
    port_names_errors,
    special_address_errors,
)
from mooring.api.kind import Kind
from mooring.api.objectmeta import NAME, NONE
from mooring.apimachinery.names import dns1123_label_errors, dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, invalid, required

MAX_PRINTED = 3
"""Items that a Table row lists before it counts the rest."""

MANAGED_BY = "endpoints.kubernetes.io/managed-by"
"""Label with the name of the controller that writes these Endpoints."""


def _default(obj: Obj) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            if not port.get("protocol"):
                port["protocol"] = "TCP"


def _validate(obj: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, subset in enumerate(obj.get("subsets") or ()):
        at = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            errors.append(required(at, "must specify `addresses` or `notReadyAddresses`"))
        for name in ("addresses", "notReadyAddresses"):
            for number, address in enumerate(subset.get(name) or ()):
                errors += _address_errors(address, f"{at}.{name}[{number}]")
        ports = subset.get("ports") or []
        errors += port_names_errors(ports, f"{at}.ports", needed=len(ports) > 1, unique=False)
        for number, port in enumerate(ports):
            errors += endpoint_port_errors({"port": 0, **port}, f"{at}.ports[{number}]")
    return errors


def _unreadable_address_errors(text: str, path: str) -> list[FieldError]:
    """Return the errors of an invalid address. Two checks of kube-apiserver report it, so most get two errors."""
    errors = address_errors(text, path)
    return (
        [*errors, invalid(path, text, "must be a valid IP address")] if errors[0].detail == NOT_AN_ADDRESS else errors
    )


def _address_errors(address: Obj, path: str) -> list[FieldError]:
    text, node = address.get("ip", ""), address.get("nodeName")
    parsed = parse_address(text)
    errors = (
        _unreadable_address_errors(text, f"{path}.ip")
        if parsed is None
        else special_address_errors(parsed, f"{path}.ip")
    )
    if hostname := address.get("hostname"):
        errors += [invalid(f"{path}.hostname", hostname, detail) for detail in dns1123_label_errors(hostname)]
    if node is not None:
        errors += [invalid(f"{path}.nodeName", node, detail) for detail in dns1123_subdomain_errors(node)]
    return errors


def _ready_addresses(obj: Obj) -> Iterator[str]:
    """Yield every ready address with each of its ports."""
    for subset in obj.get("subsets") or ():
        addresses = [address.get("ip", "") for address in subset.get("addresses") or ()]
        if ports := subset.get("ports"):
            yield from (host_port(address, port.get("port", 0)) for port in ports for address in addresses)
        else:
            yield from addresses


def host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shortened(items: list[str], nothing: str) -> str:
    """Join the first `MAX_PRINTED` items, and count the others."""
    text = ",".join(items[:MAX_PRINTED]) or nothing
    return f"{text} + {len(items) - MAX_PRINTED} more..." if len(items) > MAX_PRINTED else text


def _endpoints(obj: Obj, now: datetime) -> str:
    return shortened(list(_ready_addresses(obj)), NONE if not obj.get("subsets") else "")


def _warnings(new: Obj, old: Obj | None) -> list[str]:
    if (new["metadata"].get("labels") or {}).get(MANAGED_BY) == "endpoint-controller":
        # This controller writes canonical addresses.
        return []
    return [
        warning
        for index, subset in enumerate(new.get("subsets") or ())
        for name in ("addresses", "notReadyAddresses")
        for place, address in enumerate(subset.get(name) or ())
        for warning in address_warnings(f"subsets[{index}].{name}[{place}].ip", address.get("ip", ""))
    ]


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="Endpoints",
        plural="endpoints",
        namespaced=True,
        schema=message("io.k8s.api.core.v1.Endpoints"),
        short_names=("ep",),
        columns=(NAME, Column("Endpoints", _endpoints, description="Addresses and ports that are ready."), AGE),
    ),
    storage="/registry/services/endpoints",
    name_errors=dns1123_subdomain_errors,
    default=_default,
    validate=_validate,
    warnings=_warnings,
    deprecation_warning="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    allow_create_on_update=True,
)
