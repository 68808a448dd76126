"""kubernetes-service-controller: the Service `kubernetes` in `default`, behind which the API servers are.

Rules kept here (docs/protocol/namespaces.md#the-service-defaultkubernetes; kube-apiserver's bootstrap controller, whose work this
is):
* The Service has the first address of the range (`service_address`) and the port https, 443, that leads to the server's own
  port. A deleted one comes back; ports, selector and type are put right. Labels, annotations and the rest are whoever's they are.
* Its Endpoints and its EndpointSlice say where the servers are, and nothing else; the label on the Endpoints keeps others from
  mirroring them into slices.
* When no address is known that Pods could use (`mooring.settings.network` chooses it), the Service stands and leads nowhere.
* The address of a Service cannot be changed: one that has another is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Delete, Entropy, Key, Update
from mooring.controllers.namespace.phase import NAMESPACES, is_active

NAMESPACE, NAME = "default", "kubernetes"
SERVICES, ENDPOINTS, SLICES = "services", "endpoints", "endpointslices"
PORT_NAME, PORT = "https", 443
LABELS = {"component": "apiserver", "provider": "kubernetes"}
SKIP_MIRROR = {"endpointslice.kubernetes.io/skip-mirror": "true"}
OF_SERVICE = {"kubernetes.io/service-name": NAME}


@dataclass(frozen=True, slots=True)
class ApiServerService:
    """Keeps `default/kubernetes`. `addresses` are all of the family of `service_address`, and may be none."""

    addresses: tuple[str, ...]
    port: int
    service_address: str
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
        spec: Obj = {
            "type": "ClusterIP",
            "clusterIP": self.service_address,
            "clusterIPs": [self.service_address],
            "ports": [port],
        }
        if found is None:
            return Create(SERVICES, _new("Service", "v1", LABELS, spec={**spec, "sessionAffinity": "None"}))
        present = found.get("spec") or {}
        metadata = found["metadata"]
        if present.get("clusterIP") != self.service_address:
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
            addressType="IPv6" if ":" in self.service_address else "IPv4",
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
