"""NetworkPolicy: defaults and validation. This server stores policies; the network plugin of the cluster enforces them.

Rules kept here (Kubernetes API reference, networking.k8s.io/v1; wording as kube-apiserver's):
* A policy without types is for Ingress, and for Egress too when it has rules for it. A port without protocol is of TCP.
* A peer is a range of addresses, or Pods and namespaces that selectors choose; its exceptions lie within the range. A port is a
  number, the beginning of a range up to `endPort`, or a name.
* Ranges that a stored policy has may stay in it, whatever their form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network

from mooring.api.core.addresses import (
    MAX_PORT,
    NOT_A_PORT,
    PROTOCOLS,
    parse_range,
    port_name_errors,
    range_problem,
    range_warnings,
)
from mooring.api.kind import Kind
from mooring.api.meta.labelselector import label_selector_errors, printed_selector
from mooring.api.meta.printcolumns import NAME
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, forbidden, invalid, not_supported, required

TYPES = ("Ingress", "Egress")


def _default(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = [TYPES[0], *([TYPES[1]] if spec.get("egress") else [])]
    for rule in (*(spec.get("ingress") or ()), *(spec.get("egress") or ())):
        for port in rule.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _rules(obj: Obj) -> Iterator[tuple[str, Obj, str]]:
    """Yield each rule with its path and the name of its peers."""
    spec = obj.get("spec") or {}
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(direction) or ()):
            yield f"spec.{direction}[{index}]", rule, peers


def _blocks(obj: Obj) -> Iterator[tuple[str, Obj]]:
    """Yield each range of addresses with its path."""
    for path, rule, peers in _rules(obj):
        for index, peer in enumerate(rule.get(peers) or ()):
            if (block := peer.get("ipBlock")) is not None:
                yield f"{path}.{peers}[{index}].ipBlock", block


def _ranges(obj: Obj) -> Iterator[tuple[str, str]]:
    for path, block in _blocks(obj):
        yield f"{path}.cidr", block.get("cidr", "")
        for index, text in enumerate(block.get("except") or ()):
            yield f"{path}.except[{index}]", text


def _validate(obj: Obj) -> list[FieldError]:
    spec = obj["spec"]
    errors = label_selector_errors(spec.get("podSelector") or {}, "spec.podSelector")
    for path, rule, peers in _rules(obj):
        for index, port in enumerate(rule.get("ports") or ()):
            errors += _port_errors(port, f"{path}.ports[{index}]")
        for index, peer in enumerate(rule.get(peers) or ()):
            errors += _peer_errors(peer, f"{path}.{peers}[{index}]")
    types = spec.get("policyTypes") or ()
    if len(types) > len(TYPES):
        return [*errors, invalid("spec.policyTypes", types, "may not specify more than two policyTypes")]
    return errors + [
        not_supported(f"spec.policyTypes[{index}]", one, TYPES) for index, one in enumerate(types) if one not in TYPES
    ]


def _port_errors(port: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    protocol, number, end = port.get("protocol"), port.get("port"), port.get("endPort")
    if protocol is not None and protocol not in PROTOCOLS:
        errors.append(not_supported(f"{path}.protocol", protocol, ("TCP", "UDP", "SCTP")))
    at = f"{path}.endPort"
    if number is None:
        if end is not None:
            errors.append(invalid(at, end, "may not be specified when `port` is not specified"))
    elif isinstance(number, str):
        if end is not None:
            errors.append(invalid(at, end, "may not be specified when `port` is non-numeric"))
        errors += [invalid(f"{path}.port", number, detail) for detail in port_name_errors(number)]
    else:
        if not 1 <= number <= MAX_PORT:
            errors.append(invalid(f"{path}.port", number, NOT_A_PORT))
        if end is not None and end < number:
            errors.append(invalid(at, number, "must be greater than or equal to `port`"))
        if end is not None and not 1 <= end <= MAX_PORT:
            errors.append(invalid(at, end, NOT_A_PORT))
    return errors


def _peer_errors(peer: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    selectors = [name for name in ("podSelector", "namespaceSelector") if peer.get(name) is not None]
    for name in selectors:
        errors += label_selector_errors(peer[name], f"{path}.{name}")
    block = peer.get("ipBlock")
    if block is not None:
        errors += _block_errors(block, f"{path}.ipBlock")
        if selectors:
            errors.append(forbidden(path, "may not specify both ipBlock and another peer"))
    elif not selectors:
        errors.append(required(path, "must specify a peer"))
    return errors


def _block_errors(block: Obj, path: str) -> list[FieldError]:
    cidr = block.get("cidr", "")
    if not cidr:
        return [required(f"{path}.cidr")]
    whole = parse_range(cidr)
    if whole is None:
        return []
    return [
        invalid(f"{path}.except[{index}]", text, "must be a strict subset of `cidr`")
        for index, text in enumerate(block.get("except") or ())
        if (part := parse_range(text)) is not None and not _is_within(part, whole)
    ]


def _is_within(part: IPv4Network | IPv6Network, whole: IPv4Network | IPv6Network) -> bool:
    return part.version == whole.version and part.prefixlen > whole.prefixlen and part.network_address in whole


def _range_errors(obj: Obj, known: Collection[str]) -> list[FieldError]:
    """Return the errors of ranges that are not `known`. Exceptions of a range that cannot be read are not looked at."""
    errors: list[FieldError] = []
    for path, block in _blocks(obj):
        cidr = block.get("cidr", "")
        if not cidr:
            continue  # required
        excepted = enumerate(block.get("except") or ()) if parse_range(cidr) is not None else ()
        for at, text in ((f"{path}.cidr", cidr), *((f"{path}.except[{index}]", one) for index, one in excepted)):
            if text not in known and (reason := range_problem(text)):
                errors.append(invalid(at, text, reason))
    return errors


def _validate_create(obj: Obj) -> list[FieldError]:
    return _range_errors(obj, ())


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    return _range_errors(new, {text for _, text in _ranges(old)})


def _warnings(new: Obj, old: Obj | None) -> list[str]:
    return [warning for path, text in _ranges(new) for warning in range_warnings(path, text)]


def _selector(obj: Obj, now: datetime) -> str:
    return printed_selector((obj.get("spec") or {}).get("podSelector") or {})


KIND = Kind(
    resource=Resource(
        group="networking.k8s.io",
        version="v1",
        kind="NetworkPolicy",
        plural="networkpolicies",
        namespaced=True,
        schema=message("io.k8s.api.networking.v1.NetworkPolicy"),
        short_names=("netpol",),
        columns=(NAME, Column("Pod-Selector", _selector, description="The Pods that the policy is for."), AGE),
    ),
    storage="/registry/networkpolicies",
    name_errors=dns1123_subdomain_errors,
    default=_default,
    validate=_validate,
    validate_create=_validate_create,
    validate_update=_validate_update,
    warnings=_warnings,
    has_generation=True,
)
