"""ServiceClusterIP and ServiceNodePort: Services get addresses and node ports, and no two the same.

Rules kept here (Kubernetes API reference, core/v1 Service; docs/protocol/namespaces.md#the-service-defaultkubernetes; wording as
kube-apiserver's):
* A Service that has a use for an address gets a free one of the range, unless it asks for one, or for none (`None`). One asked for
  is of the range and free. Node ports likewise; a port of TCP and UDP has the same one for both.
* What an update keeps is its own. Nothing is given out twice as far as the view shows, which is everything acknowledged so far;
  what another server gives out at this moment is settled by the claims (`mooring.api.core.service.allocation`).
* All addresses are of the range, so of its family; a Service that wants another one is refused.
* The choice follows from the Service's uid: admission draws no entropy of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from mooring.api.core.addresses import parse_address
from mooring.api.core.service.allocation import (
    DEFAULT_RANGE,
    NODE_PORT_RANGE,
    address_allocated,
    free_address,
    free_port,
    init_ip_families,
    node_ports,
    port_allocated,
)
from mooring.api.core.service.spec import (
    FAMILIES,
    HEADLESS,
    is_headless_without_selector,
    needs_cluster_ip,
    needs_health_check,
    needs_node_ports,
)
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, InternalServerError, InvalidError, invalid
from mooring.registry.admission.request import AdmissionRequest
from mooring.settings.addresses import Network


class ServiceClusterIP:
    name = "ServiceClusterIP"

    def __init__(self, cidr: Network = DEFAULT_RANGE) -> None:
        self._range = cidr

    def admit(self, request: AdmissionRequest) -> None:
        spec = _written(request)
        if spec is None:
            return
        self._families(request, spec)
        if not needs_cluster_ip(spec):
            return
        given = spec.get("clusterIPs") or []
        if not given and not spec.get("clusterIP"):
            address = free_address(_addresses(request), _seed(request, "address"), self._range)
            if address is None:
                raise InternalServerError(f"every address of {self._range}, the range of Services, is taken")
            spec["clusterIP"], spec["clusterIPs"] = address, [address]
            return
        for text in given:
            self._check(request, given, text)

    def _families(self, request: AdmissionRequest, spec: Obj) -> None:
        family = f"IPv{self._range.version}"
        init_ip_families(spec, family)
        wanted = () if is_headless_without_selector(spec) else spec.get("ipFamilies") or ()
        errors = [
            invalid(f"spec.ipFamilies[{index}]", other, "not configured on this cluster")
            for index, other in enumerate(wanted)
            if other in FAMILIES and other != family
        ]
        if errors and needs_cluster_ip(spec):
            raise InvalidError.of("", "Service", request.name, errors)

    def _check(self, request: AdmissionRequest, given: list[str], text: str) -> None:
        """Raises InvalidError for an address that cannot be had. What is no address at all is left to validation."""
        address = parse_address(text) if text != HEADLESS else None
        if address is None or text in _own(request):
            return
        if address not in self._range:
            why = f"the provided IP ({text}) is not in the valid range. The range of valid IPs is {self._range}"
        elif address in (self._range.network_address, self._range.broadcast_address):
            why = f"the provided IP ({text}) is not one that an endpoint can have"
        elif str(address) in _addresses(request):
            raise _refused(request, address_allocated(given, text))
        else:
            return
        raise _refused(request, invalid("spec.clusterIPs", given, f"failed to allocate IP {text}: {why}"))


class ServiceNodePort:
    name = "ServiceNodePort"

    def admit(self, request: AdmissionRequest) -> None:
        spec = _written(request)
        if spec is None or not (needs_node_ports(spec) or needs_health_check(spec)):
            return
        used = _ports(request)
        own = dict(node_ports(request.old.get("spec") or {})) if request.old is not None else {}
        given = list(node_ports(spec))
        for path, port in given:
            if port not in own.values() and (error := _port_error(path, port, used)):
                raise _refused(request, error)
        used.update(port for _, port in given)
        if needs_node_ports(spec):
            self._fill(request, spec, used)
        if needs_health_check(spec) and not spec.get("healthCheckNodePort"):
            spec["healthCheckNodePort"] = _next(request, used, "health")

    def _fill(self, request: AdmissionRequest, spec: Obj, used: set[int]) -> None:
        chosen: dict[int, int] = {}
        for port in spec.get("ports") or ():
            number = port.get("port", 0)
            if port.get("nodePort"):
                chosen.setdefault(number, port["nodePort"])
                continue
            if number not in chosen:
                chosen[number] = _next(request, used, f"port {number}")
            port["nodePort"] = chosen[number]


def _written(request: AdmissionRequest) -> Obj | None:
    """The spec of the Service that is written."""
    if request.resource != "services" or request.new is None:
        return None
    spec: Obj = request.new.get("spec") or {}
    return spec


def _others(request: AdmissionRequest) -> Iterator[Obj]:
    """The specs of all other Services."""
    for service in request.views["services"].list():
        metadata = service["metadata"]
        if (metadata.get("namespace"), metadata["name"]) != (request.namespace, request.name):
            yield service.get("spec") or {}


def _own(request: AdmissionRequest) -> list[str]:
    """The addresses that the Service already has."""
    return (request.old.get("spec") or {}).get("clusterIPs") or [] if request.old is not None else []


def _addresses(request: AdmissionRequest) -> set[str]:
    return {str(parse_address(text) or text) for spec in _others(request) for text in spec.get("clusterIPs") or ()}


def _ports(request: AdmissionRequest) -> set[int]:
    return {port for spec in _others(request) for _, port in node_ports(spec)}


def _port_error(path: str, port: int, used: set[int]) -> FieldError | None:
    if port not in NODE_PORT_RANGE:
        why = f"The range of valid ports is {NODE_PORT_RANGE.start}-{NODE_PORT_RANGE.stop - 1}"
        return invalid(path, port, f"provided port is not in the valid range. {why}")
    return port_allocated(path, port) if port in used else None


def _next(request: AdmissionRequest, used: set[int], what: str) -> int:
    port = free_port(used, _seed(request, what))
    if port is None:
        raise InternalServerError("every node port is taken")
    used.add(port)
    return port


def _seed(request: AdmissionRequest, what: str) -> bytes:
    metadata = (request.new or {}).get("metadata") or {}
    return f"{metadata.get('uid', '')} {what}".encode()


def _refused(request: AdmissionRequest, error: FieldError) -> InvalidError:
    return InvalidError.of("", "Service", request.name, [error])
