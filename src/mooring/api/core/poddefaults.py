"""Pods: defaults, the class of their quality of service, and the objects that they refer to."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from mooring.apimachinery.quantity import decimal_value
from mooring.apimachinery.schema import Obj

# Quality of service class of a Pod, from the requests and limits of its containers.
#
# Rules kept here (Kubernetes documentation "Pod Quality of Service Classes"):
# * Guaranteed: every container limits cpu and memory, and its requests equal its limits. BestEffort: no container requests or
#   limits either. Burstable: everything else. Resources of the Pod as a whole, when given, replace those of the containers.
# * Amounts of zero count as absent.

QOS_RESOURCES = ("cpu", "memory")
"""Resources that determine the class."""


def qos_class(spec: Obj) -> str:
    """Return Guaranteed, Burstable or BestEffort."""
    pod_resources = spec.get("resources")
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    parts: list[Obj] = (
        [pod_resources] if pod_resources else [container.get("resources") or {} for container in containers]
    )
    requests = [_amounts(part.get("requests")) for part in parts]
    limits = [_amounts(part.get("limits")) for part in parts]
    if not any(requests) and not any(limits):
        return "BestEffort"
    exact = all(
        len(limit) == len(QOS_RESOURCES) and limit == request for request, limit in zip(requests, limits, strict=True)
    )
    return "Guaranteed" if exact else "Burstable"


def _amounts(resources: Obj | None) -> dict[str, Decimal]:
    amounts = {name: decimal_value(text) for name, text in (resources or {}).items() if name in QOS_RESOURCES}
    return {name: value for name, value in amounts.items() if value > 0}


# Defaults of Pods and of Pod templates (Kubernetes API reference, core/v1 Pod; k8s.io/api core/v1 comments).
#
# Rules kept here:
# * Spec: restartPolicy Always, dnsPolicy ClusterFirst, 30 seconds grace period, default-scheduler, service links, an empty
#   securityContext; serviceAccount and serviceAccountName are two names of one field.
# * Containers: imagePullPolicy Always for the tag latest or no tag; termination messages in /dev/termination-log; protocol TCP;
#   requests equal to limits; with hostNetwork the host port equals the container port. Probes: timeout 1, period 10, success 1,
#   failure 3.
# * Volumes: emptyDir without a source; file mode 0644; tokens for an hour; the usual driver, pool or file system of in-tree
#   sources.
# * Status: podIP is the first of podIPs, hostIP the first of hostIPs.
# * A template gets the same defaults except service links and requests, which are set in the Pod that is created from it.

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
        # stopSignal is a string beside the handlers.
        if isinstance(handler, dict):
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


# Objects that a Pod refers to in its namespace, which its node must be able to read in order to run it.
#
# Rules kept here (docs/protocol/node-authorization.md#graph; k8s.io/api core/v1 PodSpec):
# * Secrets: imagePullSecrets, volumes, projected volumes, credentials of CSI drivers and in-tree volume sources, environment
#   variables of all containers.
# * ConfigMaps: volumes, projected volumes, environment variables of all containers.
# * Claims: those that volumes name; the one of an ephemeral volume is `<pod>-<volume>`. Resource claims: those in the spec, and
#   those in the status, which were created for the Pod.
# * The service account; a cluster trust bundle that is projected by name.
# * An empty name is not a reference for the node, but counts for a mirror Pod, which may have none.

SECRETS = "secrets"
CONFIG_MAPS = "configmaps"
CLAIMS = "persistentvolumeclaims"
RESOURCE_CLAIMS = "resourceclaims"
SERVICE_ACCOUNTS = "serviceaccounts"
TRUST_BUNDLES = "clustertrustbundles"


_SOURCES_WITH_SECRET = ("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
"""In-tree volume sources with credentials in a Secret."""


def references(pod: Obj) -> frozenset[tuple[str, str]]:
    """Return (resource, name) of every object that the Pod refers to."""
    return frozenset(reference for reference in visit_references(pod) if reference[1])


def visit_references(pod: Obj) -> Iterator[tuple[str, str]]:
    """Yield (resource, name) of each reference, in the order of the fields; the name is "" when it is not set."""
    spec = pod.get("spec") or {}
    if account := spec.get("serviceAccountName"):
        yield SERVICE_ACCOUNTS, account
    for reference in spec.get("imagePullSecrets") or ():
        yield SECRETS, reference.get("name", "")
    for volume in spec.get("volumes") or ():
        yield from _volume_references(pod, volume)
    for name in CONTAINER_LISTS:
        for container in spec.get(name) or ():
            yield from _container_references(container)
    for claim in spec.get("resourceClaims") or ():
        yield RESOURCE_CLAIMS, claim.get("resourceClaimName", "")
    status = pod.get("status") or {}
    for claim_status in status.get("resourceClaimStatuses") or ():
        yield RESOURCE_CLAIMS, claim_status.get("resourceClaimName", "")
    if claim_status := status.get("extendedResourceClaimStatus"):
        yield RESOURCE_CLAIMS, claim_status.get("resourceClaimName", "")


def _volume_references(pod: Obj, volume: Obj) -> Iterator[tuple[str, str]]:
    yield from _reference(volume, "secret", SECRETS, "secretName")
    yield from _reference(volume, "configMap", CONFIG_MAPS)
    for source in (volume.get("projected") or {}).get("sources") or ():
        yield from _reference(source, "secret", SECRETS)
        yield from _reference(source, "configMap", CONFIG_MAPS)
        yield from _reference(source, "clusterTrustBundle", TRUST_BUNDLES)
    yield from _reference(volume.get("csi") or {}, "nodePublishSecretRef", SECRETS)
    yield from _reference(volume, "azureFile", SECRETS, "secretName")
    for name in _SOURCES_WITH_SECRET:
        yield from _reference(volume.get(name) or {}, "secretRef", SECRETS)
    yield from _reference(volume, "persistentVolumeClaim", CLAIMS, "claimName")
    if "ephemeral" in volume:
        yield CLAIMS, f"{pod['metadata'].get('name', '')}-{volume.get('name', '')}"


def _container_references(container: Obj) -> Iterator[tuple[str, str]]:
    for source in container.get("envFrom") or ():
        yield from _reference(source, "secretRef", SECRETS)
        yield from _reference(source, "configMapRef", CONFIG_MAPS)
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        yield from _reference(source, "secretKeyRef", SECRETS)
        yield from _reference(source, "configMapKeyRef", CONFIG_MAPS)


def _reference(part: Obj, member: str, resource: str, key: str = "name") -> Iterator[tuple[str, str]]:
    if member in part:
        yield resource, (part[member] or {}).get(key, "")
