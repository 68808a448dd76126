"""What is wrong with where a Pod wants to run, how it is probed and what it resolves (wording as kube-apiserver's).

Rules kept here (Kubernetes API reference, core/v1 Pod):
* A probe and a lifecycle hook have one handler. Ports are numbers or names of container ports.
* Selectors of nodes have operators with the values that they need; weights go from 1 to 100.
* Spread constraints name a key and what happens when they cannot be met, each pair once.
* Host aliases and name servers are addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mooring.api.core.addresses import MAX_PORT, NOT_A_PORT, NOT_AN_ADDRESS, parse_address, port_name_errors
from mooring.apimachinery.names import dns1123_subdomain_errors, qualified_name_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, duplicate, forbidden, invalid, not_supported, required

SCHEMES = ("HTTP", "HTTPS")
HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")
MAX_WEIGHT = 100
_CONTAINERS = ("initContainers", "containers")


def placement_errors(spec: Obj) -> list[FieldError]:
    """Return what is wrong with the spec of a Pod that has its defaults."""
    return [*_handlers(spec), *_affinity(spec), *_spread(spec), *_names(spec)]


def _handlers(spec: Obj) -> Iterator[FieldError]:
    for member in _CONTAINERS:
        for index, container in enumerate(spec.get(member) or ()):
            path = f"spec.{member}[{index}]"
            for name in ("livenessProbe", "readinessProbe", "startupProbe"):
                if name in container:
                    yield from _handler(container[name], f"{path}.{name}")
            lifecycle = container.get("lifecycle") or {}
            for name in ("postStart", "preStop"):
                if name in lifecycle:
                    yield from _handler(lifecycle[name], f"{path}.lifecycle.{name}")


def _handler(handler: Obj, path: str) -> Iterator[FieldError]:
    given = [name for name in HANDLERS if name in handler]
    if not given:
        yield required(path, "must specify a handler type")
    for name in given[1:]:
        yield forbidden(f"{path}.{name}", "may not specify more than 1 handler type")
    match given[:1]:
        case ["exec"]:
            if not handler["exec"].get("command"):
                yield required(f"{path}.exec.command")
        case ["httpGet"]:
            request = handler["httpGet"]
            yield from _port(request.get("port", 0), f"{path}.httpGet.port")
            if request.get("scheme") not in SCHEMES:
                yield not_supported(f"{path}.httpGet.scheme", request.get("scheme", ""), SCHEMES)
        case ["tcpSocket" | "grpc" as name]:
            yield from _port(handler[name].get("port", 0), f"{path}.{name}.port")


def _port(port: int | str, path: str) -> Iterator[FieldError]:
    if isinstance(port, str):
        yield from (invalid(path, port, why) for why in port_name_errors(port))
    elif not 1 <= port <= MAX_PORT:
        yield invalid(path, port, NOT_A_PORT)


def _affinity(spec: Obj) -> Iterator[FieldError]:
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    name = "preferredDuringSchedulingIgnoredDuringExecution"
    for index, term in enumerate(node.get(name) or ()):
        path, weight = f"spec.affinity.nodeAffinity.{name}[{index}]", term.get("weight", 0)
        if not 1 <= weight <= MAX_WEIGHT:
            yield invalid(f"{path}.weight", weight, f"must be in the range 1-{MAX_WEIGHT}")
        yield from _expressions(term.get("preference") or {}, f"{path}.preference")
    name = "requiredDuringSchedulingIgnoredDuringExecution"
    for index, term in enumerate((node.get(name) or {}).get("nodeSelectorTerms") or ()):
        yield from _expressions(term, f"spec.affinity.nodeAffinity.{name}.nodeSelectorTerms[{index}]")


def _expressions(term: Obj, path: str) -> Iterator[FieldError]:
    for index, expression in enumerate(term.get("matchExpressions") or ()):
        at, operator = f"{path}.matchExpressions[{index}]", expression.get("operator", "")
        values, key = expression.get("values") or (), expression.get("key", "")
        match operator:
            case "In" | "NotIn":
                if not values:
                    yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            case "Exists" | "DoesNotExist":
                if values:
                    yield forbidden(
                        f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                    )
            case "Gt" | "Lt":
                if len(values) != 1:
                    yield required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
            case _:
                yield invalid(f"{at}.operator", operator, "not a valid selector operator")
        yield from (invalid(f"{at}.key", key, why) for why in qualified_name_errors(key))


def _spread(spec: Obj) -> Iterator[FieldError]:
    constraints = spec.get("topologySpreadConstraints") or []
    last = {_pair(constraint): index for index, constraint in enumerate(constraints)}
    for index, constraint in enumerate(constraints):
        path, (key, action) = f"spec.topologySpreadConstraints[{index}]", _pair(constraint)
        if constraint.get("maxSkew", 0) <= 0:
            yield invalid(f"{path}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero")
        if not key:
            yield required(f"{path}.topologyKey", "can not be empty")
        if action not in UNSATISFIABLE:
            yield not_supported(f"{path}.whenUnsatisfiable", action, UNSATISFIABLE)
        if last[key, action] > index:
            yield duplicate(f"{path}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")


def _pair(constraint: Obj) -> tuple[str, str]:
    return constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", "")


def _names(spec: Obj) -> Iterator[FieldError]:
    dns = spec.get("dnsConfig") or {}
    yield from _addresses(dns.get("nameservers") or (), "spec.dnsConfig.nameservers[{}]")
    for index, option in enumerate(dns.get("options") or ()):
        if not option.get("name"):
            yield required(f"spec.dnsConfig.options[{index}]", "must not be empty")
    aliases = spec.get("hostAliases") or ()
    yield from _addresses((alias.get("ip", "") for alias in aliases), "spec.hostAliases[{}].ip")
    for index, alias in enumerate(aliases):
        for place, name in enumerate(alias.get("hostnames") or ()):
            at = f"spec.hostAliases[{index}].hostnames[{place}]"
            yield from (invalid(at, name, why) for why in dns1123_subdomain_errors(name))


def _addresses(addresses: Iterable[str], path: str) -> Iterator[FieldError]:
    for index, address in enumerate(addresses):
        if parse_address(address) is None:
            yield invalid(path.format(index), address, NOT_AN_ADDRESS)
