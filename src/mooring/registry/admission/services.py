"""ServiceClusterIP and ServiceNodePort: allocate cluster addresses and node ports to Services, each to one Service only.

Rules kept here (Kubernetes API reference, core/v1 Service; docs/protocol/namespaces.md#the-service-defaultkubernetes; wording as
kube-apiserver's):
* A Service that needs an address gets a free one of the range, unless it requests one, or none (`None`). A requested address must
  be in the range and free. Node ports alike; a port that is served over TCP and UDP has the same node port for both.
* An address for which a node has an unexpired certificate is that node's: a Service that requests it is refused, because it would
  stop the renewal (`controllers/certificates/sanpolicy/rules.py`). One that requests none gets another while there is one, so that
  nodes cannot use up the range. The Service `default/kubernetes` gets its address in any case.
* An update keeps the Service's own values. An address or port is free when no Service in the view has it, which covers every
  acknowledged write. Concurrent writes of other servers are settled by claims (`mooring.api.core.service`).
* All addresses are of the range and so of its family. A Service that requires another family is refused.
* The choice follows from the Service's uid: admission draws no entropy.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from mooring.api.core.addresses import parse_address
from mooring.api.core.service import (
    DEFAULT_RANGE,
    NODE_PORT_RANGE,
    address_allocated,
    free_address,
    free_port,
    init_ip_families,
    node_ports,
    port_allocated,
)
from mooring.api.core.servicevalidation import (
    FAMILIES,
    HEADLESS,
    is_headless_without_selector,
    needs_cluster_ip,
    needs_health_check,
    needs_node_ports,
)
from mooring.apimachinery.schema import Obj
from mooring.controllers.certificates.sanpolicy.evidence import Holders
from mooring.errors import FieldError, InternalServerError, InvalidError, invalid
from mooring.pki.x509.canonicalnames import canonical
from mooring.registry.admission.request import AdmissionRequest
from mooring.settings.addresses import Network

_API_SERVER = ("default", "kubernetes")


class ServiceClusterIP:
    name = "ServiceClusterIP"

    def __init__(self, cidr: Network = DEFAULT_RANGE) -> None:
        self._range = cidr
        self._holders = Holders()

    def admit(self, request: AdmissionRequest) -> None:
        spec = _written_spec(request)
        if spec is None:
            return
        self._check_families(request, spec)
        if not needs_cluster_ip(spec):
            return
        given = spec.get("clusterIPs") or []
        if not given and not spec.get("clusterIP"):
            taken, seed = _taken_addresses(request), _seed(request, "address")
            of_nobody = _TakenOrOfNode(taken, self._holders, request)
            address = free_address(of_nobody, seed, self._range) or free_address(taken, seed, self._range)
            if address is None:
                raise InternalServerError(f"every address of {self._range}, the range of Services, is taken")
            spec["clusterIP"], spec["clusterIPs"] = address, [address]
            return
        for text in given:
            self._check(request, given, text)

    def _check_families(self, request: AdmissionRequest, spec: Obj) -> None:
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
        """Raise InvalidError for a requested address that cannot be allocated. Validation refuses text that is not an address."""
        address = parse_address(text) if text != HEADLESS else None
        if address is None or text in _own_addresses(request):
            return
        if address not in self._range:
            reason = f"the provided IP ({text}) is not in the valid range. The range of valid IPs is {self._range}"
        elif address in (self._range.network_address, self._range.broadcast_address):
            reason = f"the provided IP ({text}) is not one that an endpoint can have"
        elif str(address) in _taken_addresses(request):
            raise _invalid(request, address_allocated(given, text))
        elif (request.namespace, request.name) != _API_SERVER and _is_of_node(str(address), self._holders, request):
            reason = f"a node has a certificate for the provided IP ({text}); choose another one"
        else:
            return
        raise _invalid(request, invalid("spec.clusterIPs", given, f"failed to allocate IP {text}: {reason}"))


@dataclass(frozen=True, slots=True)
class _TakenOrOfNode:
    """Addresses that other Services have, or for which nodes have certificates."""

    taken: Container[str]
    holders: Holders
    request: AdmissionRequest

    def __contains__(self, address: object) -> bool:
        return address in self.taken or _is_of_node(str(address), self.holders, self.request)


class ServiceNodePort:
    name = "ServiceNodePort"

    def admit(self, request: AdmissionRequest) -> None:
        spec = _written_spec(request)
        if spec is None or not (needs_node_ports(spec) or needs_health_check(spec)):
            return
        used = _taken_ports(request)
        own = dict(node_ports(request.old.get("spec") or {})) if request.old is not None else {}
        given = list(node_ports(spec))
        for path, port in given:
            if port not in own.values() and (error := _port_error(path, port, used)):
                raise _invalid(request, error)
        used.update(port for _, port in given)
        if needs_node_ports(spec):
            self._allocate_ports(request, spec, used)
        if needs_health_check(spec) and not spec.get("healthCheckNodePort"):
            spec["healthCheckNodePort"] = _allocate_port(request, used, "health")

    def _allocate_ports(self, request: AdmissionRequest, spec: Obj, used: set[int]) -> None:
        chosen: dict[int, int] = {}
        for port in spec.get("ports") or ():
            number = port.get("port", 0)
            if port.get("nodePort"):
                chosen.setdefault(number, port["nodePort"])
                continue
            if number not in chosen:
                chosen[number] = _allocate_port(request, used, f"port {number}")
            port["nodePort"] = chosen[number]


def _is_of_node(address: str, holders: Holders, request: AdmissionRequest) -> bool:
    """Return true for an address for which a node has an unexpired certificate."""
    return bool(holders.certified(canonical(address), request.views, request.change.now))


def _written_spec(request: AdmissionRequest) -> Obj | None:
    """Return the spec of the Service that is written, or None for other requests."""
    if request.resource != "services" or request.new is None:
        return None
    spec: Obj = request.new.get("spec") or {}
    return spec


def _other_specs(request: AdmissionRequest) -> Iterator[Obj]:
    """Yield the specs of all other Services."""
    for service in request.views["services"].list():
        metadata = service["metadata"]
        if (metadata.get("namespace"), metadata["name"]) != (request.namespace, request.name):
            yield service.get("spec") or {}


def _own_addresses(request: AdmissionRequest) -> list[str]:
    """Return the addresses that the Service already has."""
    return (request.old.get("spec") or {}).get("clusterIPs") or [] if request.old is not None else []


def _taken_addresses(request: AdmissionRequest) -> set[str]:
    return {str(parse_address(text) or text) for spec in _other_specs(request) for text in spec.get("clusterIPs") or ()}


def _taken_ports(request: AdmissionRequest) -> set[int]:
    return {port for spec in _other_specs(request) for _, port in node_ports(spec)}


def _port_error(path: str, port: int, used: set[int]) -> FieldError | None:
    if port not in NODE_PORT_RANGE:
        reason = f"The range of valid ports is {NODE_PORT_RANGE.start}-{NODE_PORT_RANGE.stop - 1}"
        return invalid(path, port, f"provided port is not in the valid range. {reason}")
    return port_allocated(path, port) if port in used else None


def _allocate_port(request: AdmissionRequest, used: set[int], what: str) -> int:
    port = free_port(used, _seed(request, what))
    if port is None:
        raise InternalServerError("every node port is taken")
    used.add(port)
    return port


def _seed(request: AdmissionRequest, what: str) -> bytes:
    metadata = (request.new or {}).get("metadata") or {}
    return f"{metadata.get('uid', '')} {what}".encode()


def _invalid(request: AdmissionRequest, error: FieldError) -> InvalidError:
    return InvalidError.of("", "Service", request.name, [error])
