"""Defaults of Pods and of Pod templates (Kubernetes API reference, core/v1 Pod; k8s.io/api core/v1 comments).

Rules kept here:
* Spec: restartPolicy Always, dnsPolicy ClusterFirst, 30 seconds grace period, default-scheduler, service links, an empty
  securityContext; serviceAccount and serviceAccountName are two names of one field.
* Containers: imagePullPolicy Always for the tag latest or no tag; termination messages in /dev/termination-log; protocol TCP;
  requests equal to limits; with hostNetwork the host port equals the container port. Probes: timeout 1, period 10, success 1,
  failure 3.
* Volumes: emptyDir without a source; file mode 0644; tokens for an hour; the usual driver, pool or file system of in-tree sources.
* Status: podIP is the first of podIPs, hostIP the first of hostIPs.
* A template gets the same defaults except service links and requests, which are set in the Pod that is created from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
_IN_TREE_DEFAULTS: dict[str, dict[str, str | bool]] = {
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "azureDisk": {"cachingMode": "ReadWrite", "kind": "Shared", "fsType": "ext4", "readOnly": False},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
}
"""Default values of the in-tree volume sources, which preceded CSI drivers, by source and field."""


def default(obj: Obj) -> None:
    """Fill in the defaults of a Pod, in place."""
    spec = obj.setdefault("spec", {})
    default_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for name in CONTAINER_LISTS:
        for container in spec.get(name) or ():
            resources = container.get("resources") or {}
            if limits := resources.get("limits"):
                resources["requests"] = {**limits, **(resources.get("requests") or {})}
    if status := obj.get("status"):
        _sync_first_address(status, "podIP", "podIPs")
        _sync_first_address(status, "hostIP", "hostIPs")


def default_spec(spec: Obj) -> None:
    """Fill in the defaults that Pods and Pod templates share, in place."""
    _set_if_empty(spec, _SPEC)
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for name in CONTAINER_LISTS:
        for container in spec.get(name) or ():
            _default_container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def _set_if_empty(obj: Obj, defaults: dict[str, Any]) -> None:
    for name, value in defaults.items():
        if not obj.get(name):
            obj[name] = value


def _sync_first_address(status: Obj, singular: str, plural: str) -> None:
    """Make the singular address field equal the first of the plural one; the singular one wins when they differ."""
    first, addresses = status.get(singular), status.get(plural)
    if first and (not addresses or addresses[0].get("ip") != first):
        status[plural] = [{"ip": first}]
    elif addresses and not first and addresses[0].get("ip"):
        status[singular] = addresses[0]["ip"]


def _default_container(container: Obj, *, host_network: bool) -> None:
    _set_if_empty(container, _CONTAINER)
    _set_if_empty(container, {"imagePullPolicy": "Always" if is_latest(container.get("image", "")) else "IfNotPresent"})
    for port in container.get("ports") or ():
        _set_if_empty(port, {"protocol": "TCP"})
        if host_network and port.get("containerPort"):
            _set_if_empty(port, {"hostPort": port["containerPort"]})
    for variable in container.get("env") or ():
        _default_field_ref(variable.get("valueFrom") or {})
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if name in container:
            _set_if_empty(container[name], _PROBE)
            _default_handler(container[name])
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):  # stopSignal is a string beside the handlers
            _default_handler(handler)


def is_latest(image: str) -> bool:
    """Return true when an image has the tag `latest`, or neither tag nor digest. No image has none of these."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return bool(image) and (tag == "latest" or not (tag or digest))


def _default_handler(handler: Obj) -> None:
    if "httpGet" in handler:
        _set_if_empty(handler["httpGet"], {"path": "/", "scheme": "HTTP"})
    if "grpc" in handler:
        handler["grpc"].setdefault("service", "")


def _default_field_ref(source: Obj) -> None:
    if "fieldRef" in source:
        _set_if_empty(source["fieldRef"], {"apiVersion": "v1"})


def _default_volume(volume: Obj) -> None:
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for name, defaults in _IN_TREE_DEFAULTS.items():
        for member, value in defaults.items() if name in volume else ():
            volume[name].setdefault(member, value)
    for name in ("secret", "configMap", "downwardAPI", "projected"):
        if name in volume:
            volume[name].setdefault("defaultMode", FILE_MODE)
    for source in _downward_api_sources(volume):
        for item in source.get("items") or ():
            _default_field_ref(item)
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", TOKEN_SECONDS)


def _downward_api_sources(volume: Obj) -> Iterator[Obj]:
    for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
        if "downwardAPI" in source:
            yield source["downwardAPI"]
