"""kubernetes-service-controller: the Service `kubernetes` in `default`, behind which the API servers are.

Rules kept here (reference/kubernetes.md 7.15; kube-apiserver's bootstrap controller, whose work this is):
* The Service has the first address of the range and the port https, 443, that leads to the servers' own port. A deleted one comes
  back; ports, selector and type are put right. Labels, annotations and the rest are whoever's they are.
* Its Endpoints and its EndpointSlice say where the servers are, and nothing else; the label on the Endpoints keeps others from
  mirroring them into slices.
* Addresses that mean something else on each machine (loopback, link-local) are not published: a Service cannot lead there. When
  there is no other, the Service stands and leads nowhere.
* The address of a Service cannot be changed: one that has another is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address

from mooring.controllers.actions import Action, Create, Delete, Entropy, Key, Update
from mooring.controllers.activenamespaces import NAMESPACES, is_active
from mooring.kinds.addresses import parse_address, special_address_errors
from mooring.kinds.serviceallocation import API_ADDRESS
from mooring.kinds.view import Views
from mooring.wire.schema import Obj

NAMESPACE, NAME = "default", "kubernetes"
SERVICES, ENDPOINTS, SLICES = "services", "endpoints", "endpointslices"
PORT_NAME, PORT = "https", 443
LABELS = {"component": "apiserver", "provider": "kubernetes"}
SKIP_MIRROR = {"endpointslice.kubernetes.io/skip-mirror": "true"}
OF_SERVICE = {"kubernetes.io/service-name": NAME}


def published(endpoints: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], int]:
    """Of the (host, port) under which the servers are reached, the addresses that can be published, and their port.

    That is the port of the first of them; addresses with another port, and host names, are left out. Where nothing can be
    published, the port is the first that is known.
    """
    known = [(_usable(host), port) for host, port in endpoints if port]
    usable = [(str(address), port) for address, port in known if address is not None]
    port = next((port for _, port in (*usable, *known)), PORT)
    return tuple(dict.fromkeys(address for address, its_port in usable if its_port == port)), port


def _usable(host: str) -> IPv4Address | None:
    address = parse_address(host)
    return address if isinstance(address, IPv4Address) and not special_address_errors(address, "") else None


@dataclass(frozen=True, slots=True)
class ApiServerService:
    """Keeps `default/kubernetes`; `addresses` and `port` as `published` finds them."""

    addresses: tuple[str, ...]
    port: int
    name: str = "kubernetes-service-controller"
    watches: tuple[str, ...] = (SERVICES, ENDPOINTS, SLICES, NAMESPACES)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        place = ("", NAMESPACE) if plural == NAMESPACES else (NAMESPACE, NAME)
        return ((NAMESPACE, NAME),) if (metadata.get("namespace", ""), metadata["name"]) == place else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        if not is_active(NAMESPACE, views):
            return ()
        actions = (
            self._service(views[SERVICES].get(NAME, NAMESPACE)),
            _kept(ENDPOINTS, views[ENDPOINTS].get(NAME, NAMESPACE), self._endpoints()),
            _kept(SLICES, views[SLICES].get(NAME, NAMESPACE), self._slice()),
        )
        return [action for action in actions if action is not None]

    def _service(self, found: Obj | None) -> Action | None:
        port = {"name": PORT_NAME, "protocol": "TCP", "port": PORT, "targetPort": self.port}
        spec: Obj = {"type": "ClusterIP", "clusterIP": API_ADDRESS, "clusterIPs": [API_ADDRESS], "ports": [port]}
        if found is None:
            return Create(SERVICES, _new("Service", "v1", LABELS, spec={**spec, "sessionAffinity": "None"}))
        present = found.get("spec") or {}
        metadata = found["metadata"]
        if present.get("clusterIP") != API_ADDRESS:
            return Delete(SERVICES, NAMESPACE, NAME, metadata["uid"], metadata["resourceVersion"])
        if not present.get("selector") and all(present.get(name) == value for name, value in spec.items()):
            return None
        changed = {name: value for name, value in present.items() if name != "selector"}
        return Update(SERVICES, {**found, "spec": {**changed, **spec}})

    def _endpoints(self) -> Obj:
        ports = [{"name": PORT_NAME, "port": self.port, "protocol": "TCP"}]
        addresses = [{"ip": address} for address in self.addresses]
        subsets = {"subsets": [{"addresses": addresses, "ports": ports}]} if addresses else {}
        return _new("Endpoints", "v1", SKIP_MIRROR, **subsets)

    def _slice(self) -> Obj:
        return _new(
            "EndpointSlice",
            "discovery.k8s.io/v1",
            OF_SERVICE,
            addressType="IPv4",
            ports=[{"name": PORT_NAME, "port": self.port, "protocol": "TCP"}],
            endpoints=[{"addresses": [address], "conditions": {"ready": True}} for address in self.addresses],
        )


def _new(kind: str, api_version: str, labels: dict[str, str], **members: object) -> Obj:
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": dict(labels)}
    return {"kind": kind, "apiVersion": api_version, "metadata": metadata, **members}


def _kept(plural: str, found: Obj | None, wanted: Obj) -> Action | None:
    """What makes `found` say what `wanted` says. Its own labels stay beside those wanted."""
    if found is None:
        return Create(plural, wanted)
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    labelled = {**labels, **wanted["metadata"]["labels"]}
    content, told = _content(found), _content(wanted)
    if content == told and labels == labelled:
        return None
    if content.get("addressType") != told.get("addressType"):  # which cannot be changed
        return Delete(plural, NAMESPACE, NAME, metadata["uid"], metadata["resourceVersion"])
    head = {"kind": wanted["kind"], "apiVersion": wanted["apiVersion"], "metadata": {**metadata, "labels": labelled}}
    return Update(plural, {**head, **told})


def _content(obj: Obj) -> Obj:
    return {name: value for name, value in obj.items() if name not in ("kind", "apiVersion", "metadata") and value}
