"""What a Pod is when its author leaves it out (Kubernetes API reference, core/v1 Pod; k8s.io/api core/v1 comments).

Rules kept here:
* Spec: restartPolicy Always, dnsPolicy ClusterFirst, 30 seconds to stop, default-scheduler, service links, an empty
  securityContext; serviceAccount and serviceAccountName are one thing with two names.
* Containers: images tagged latest, or not at all, are always pulled; last words in /dev/termination-log; ports speak TCP;
  requests are limits when not given; with hostNetwork a port is the node's. Probes: 1, 10, 1, 3.
* Volumes: a volume without a source is an empty directory; files have mode 0644; tokens live for an hour; the older sources
  say which driver, pool or file system is usual.
* Status: podIP is the first of podIPs, hostIP of hostIPs.
* A template of Pods has all that, but for service links and requests: those are the Pod's that is made from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mooring.api.core.pod.schema.intreevolume import LEGACY_DEFAULTS
from mooring.apimachinery.schema import Obj

FILE_MODE = 0o644
TOKEN_SECONDS = 3600
_SPEC: dict[str, Any] = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_CONTAINER = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")


def default(obj: Obj) -> None:
    """Fill in a Pod, in place."""
    spec = obj.setdefault("spec", {})
    default_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for name in CONTAINER_LISTS:
        for container in spec.get(name) or ():
            resources = container.get("resources") or {}
            if limits := resources.get("limits"):
                resources["requests"] = {**limits, **(resources.get("requests") or {})}
    if status := obj.get("status"):
        _first(status, "podIP", "podIPs")
        _first(status, "hostIP", "hostIPs")


def default_spec(spec: Obj) -> None:
    """Fill in what Pods and templates of Pods have alike, in place."""
    _fill(spec, _SPEC)
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for name in CONTAINER_LISTS:
        for container in spec.get(name) or ():
            _container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _fill(obj: Obj, defaults: dict[str, Any]) -> None:
    for name, value in defaults.items():
        if not obj.get(name):
            obj[name] = value


def _first(status: Obj, one: str, many: str) -> None:
    """Both spellings of an address list; the single one wins when they differ."""
    first, all_of_them = status.get(one), status.get(many)
    if first and (not all_of_them or all_of_them[0].get("ip") != first):
        status[many] = [{"ip": first}]
    elif all_of_them and not first and all_of_them[0].get("ip"):
        status[one] = all_of_them[0]["ip"]


def _container(container: Obj, *, host_network: bool) -> None:
    _fill(container, _CONTAINER)
    _fill(container, {"imagePullPolicy": "Always" if is_latest(container.get("image", "")) else "IfNotPresent"})
    for port in container.get("ports") or ():
        _fill(port, {"protocol": "TCP"})
        if host_network and port.get("containerPort"):
            _fill(port, {"hostPort": port["containerPort"]})
    for variable in container.get("env") or ():
        _field_version(variable.get("valueFrom") or {})
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if name in container:
            _fill(container[name], _PROBE)
            _handler(container[name])
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):  # stopSignal stands beside the handlers
            _handler(handler)


def is_latest(image: str) -> bool:
    """Whether an image name means the tag `latest`: by that tag, or without tag and digest."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag == "latest" or not (tag or digest)


def _handler(handler: Obj) -> None:
    if "httpGet" in handler:
        _fill(handler["httpGet"], {"path": "/", "scheme": "HTTP"})
    if "grpc" in handler:
        handler["grpc"].setdefault("service", "")


def _field_version(source: Obj) -> None:
    if "fieldRef" in source:
        _fill(source["fieldRef"], {"apiVersion": "v1"})


def _volume(volume: Obj) -> None:
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for name, defaults in LEGACY_DEFAULTS.items():
        for member, value in defaults.items() if name in volume else ():
            volume[name].setdefault(member, value)
    for name in ("secret", "configMap", "downwardAPI", "projected"):
        if name in volume:
            volume[name].setdefault("defaultMode", FILE_MODE)
    for source in _downward(volume):
        for item in source.get("items") or ():
            _field_version(item)
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", TOKEN_SECONDS)


def _downward(volume: Obj) -> Iterator[Obj]:
    for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
        if "downwardAPI" in source:
            yield source["downwardAPI"]
