"""kubernetes-service-controller: keeps the Service `kubernetes` in `default`, its Endpoints and its EndpointSlice.

Rules kept here (docs/protocol/namespaces.md#the-service-defaultkubernetes; the same work as kube-apiserver's own controller):
* The Service has the first address of the range (`service_address`) and the port https, 443, with the server's own port as target.
  A deleted Service is created again; ports, selector and type are corrected. Labels, annotations and other fields are not touched.
* Its Endpoints and its EndpointSlice list the servers and nothing else. A label on the Endpoints prevents other controllers from
  mirroring them into slices.
* When no address is known that Pods can reach (`mooring.settings.network` chooses it), the Service exists without endpoints.
* The cluster IP of a Service is immutable: a Service with another one is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Delete, Entropy, Key, Update
from mooring.controllers.namespace import NAMESPACES, is_active

NAMESPACE, NAME = "default", "kubernetes"
SERVICES, ENDPOINTS, SLICES = "services", "endpoints", "endpointslices"
PORT_NAME, PORT = "https", 443
LABELS = {"component": "apiserver", "provider": "kubernetes"}
SKIP_MIRROR = {"endpointslice.kubernetes.io/skip-mirror": "true"}
OF_SERVICE = {"kubernetes.io/service-name": NAME}


@dataclass(frozen=True, slots=True)
class KubernetesService:
    """Keeps `default/kubernetes`. `addresses` returns those of the servers that live; only those of its IP family are listed."""

    addresses: Callable[[], Sequence[str]]
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
            self._plan_service(views[SERVICES].get(NAME, NAMESPACE)),
            _update_to(ENDPOINTS, views[ENDPOINTS].get(NAME, NAMESPACE), self._endpoints()),
            _update_to(SLICES, views[SLICES].get(NAME, NAMESPACE), self._endpoint_slice()),
        )
        return [action for action in actions if action is not None]

    def _plan_service(self, found: Obj | None) -> Action | None:
        port = {"name": PORT_NAME, "protocol": "TCP", "port": PORT, "targetPort": self.port}
        spec: Obj = {
            "type": "ClusterIP",
            "clusterIP": self.service_address,
            "clusterIPs": [self.service_address],
            "ports": [port],
        }
        if found is None:
            return Create(SERVICES, _new_object("Service", "v1", LABELS, spec={**spec, "sessionAffinity": "None"}))
        present = found.get("spec") or {}
        if present.get("clusterIP") != self.service_address:
            return Delete.of(SERVICES, found)
        if not present.get("selector") and all(present.get(name) == value for name, value in spec.items()):
            return None
        changed = {name: value for name, value in present.items() if name != "selector"}
        return Update(SERVICES, {**found, "spec": {**changed, **spec}})

    def _listed(self) -> list[str]:
        is_ipv6 = ":" in self.service_address
        return [address for address in self.addresses() if (":" in address) == is_ipv6]

    def _endpoints(self) -> Obj:
        ports = [{"name": PORT_NAME, "port": self.port, "protocol": "TCP"}]
        addresses = [{"ip": address} for address in self._listed()]
        subsets = {"subsets": [{"addresses": addresses, "ports": ports}]} if addresses else {}
        return _new_object("Endpoints", "v1", SKIP_MIRROR, **subsets)

    def _endpoint_slice(self) -> Obj:
        return _new_object(
            "EndpointSlice",
            "discovery.k8s.io/v1",
            OF_SERVICE,
            addressType="IPv6" if ":" in self.service_address else "IPv4",
            ports=[{"name": PORT_NAME, "port": self.port, "protocol": "TCP"}],
            endpoints=[{"addresses": [address], "conditions": {"ready": True}} for address in self._listed()],
        )


def _new_object(kind: str, api_version: str, labels: dict[str, str], **members: object) -> Obj:
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": dict(labels)}
    return {"kind": kind, "apiVersion": api_version, "metadata": metadata, **members}


def _update_to(plural: str, found: Obj | None, wanted: Obj) -> Action | None:
    """Return the action that gives `found` the content and labels of `wanted`, or None. Additional labels stay."""
    if found is None:
        return Create(plural, wanted)
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    labelled = {**labels, **wanted["metadata"]["labels"]}
    present, content = _content(found), _content(wanted)
    if present == content and labels == labelled:
        return None
    if present.get("addressType") != content.get("addressType"):  # immutable
        return Delete.of(plural, found)
    head = {"kind": wanted["kind"], "apiVersion": wanted["apiVersion"], "metadata": {**metadata, "labels": labelled}}
    return Update(plural, {**head, **content})


def _content(obj: Obj) -> Obj:
    return {name: value for name, value in obj.items() if name not in ("kind", "apiVersion", "metadata") and value}
