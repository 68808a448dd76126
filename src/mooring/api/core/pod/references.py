"""What a Pod refers to in its own namespace: the objects its node must be able to read in order to run it.

Rules kept here (docs/protocol/node-authorization.md#graph; k8s.io/api core/v1 PodSpec):
* Secrets: imagePullSecrets, volumes, projected volumes, the Secret that a CSI driver or an older source of volumes logs in with,
  variables of every sort of container.
* ConfigMaps: volumes, projected volumes, variables of every sort of container.
* Claims: those that volumes name; the one made for an ephemeral volume is `<pod>-<volume>`. Resource claims: those the spec names,
  and those its status says were made for it.
* The service account; a cluster trust bundle that is projected by name. A name that is empty is no reference for the node, and one
  all the same for who may begin none (a mirror Pod).
"""

from __future__ import annotations

from collections.abc import Iterator

from mooring.api.core.pod.defaults import CONTAINER_LISTS
from mooring.apimachinery.schema import Obj

SECRETS = "secrets"
CONFIG_MAPS = "configmaps"
CLAIMS = "persistentvolumeclaims"
RESOURCE_CLAIMS = "resourceclaims"
SERVICE_ACCOUNTS = "serviceaccounts"
TRUST_BUNDLES = "clustertrustbundles"


_WITH_SECRET = ("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
"""Older sources of volumes that log in with a Secret."""


def references(pod: Obj) -> frozenset[tuple[str, str]]:
    """(resource, name) of everything the Pod refers to."""
    return frozenset(reference for reference in walk(pod) if reference[1])


def walk(pod: Obj) -> Iterator[tuple[str, str]]:
    """(resource, name) of each reference, in the order of the Pod; "" where one is begun and names nothing."""
    spec = pod.get("spec") or {}
    if account := spec.get("serviceAccountName"):
        yield SERVICE_ACCOUNTS, account
    for reference in spec.get("imagePullSecrets") or ():
        yield SECRETS, reference.get("name", "")
    for volume in spec.get("volumes") or ():
        yield from _of_volume(pod, volume)
    for name in CONTAINER_LISTS:
        for container in spec.get(name) or ():
            yield from _of_container(container)
    for claim in spec.get("resourceClaims") or ():
        yield RESOURCE_CLAIMS, claim.get("resourceClaimName", "")
    status = pod.get("status") or {}
    for made in status.get("resourceClaimStatuses") or ():
        yield RESOURCE_CLAIMS, made.get("resourceClaimName", "")
    if made := status.get("extendedResourceClaimStatus"):
        yield RESOURCE_CLAIMS, made.get("resourceClaimName", "")


def _of_volume(pod: Obj, volume: Obj) -> Iterator[tuple[str, str]]:
    yield from _named(volume, "secret", SECRETS, "secretName")
    yield from _named(volume, "configMap", CONFIG_MAPS)
    for source in (volume.get("projected") or {}).get("sources") or ():
        yield from _named(source, "secret", SECRETS)
        yield from _named(source, "configMap", CONFIG_MAPS)
        yield from _named(source, "clusterTrustBundle", TRUST_BUNDLES)
    yield from _named(volume.get("csi") or {}, "nodePublishSecretRef", SECRETS)
    yield from _named(volume, "azureFile", SECRETS, "secretName")
    for name in _WITH_SECRET:
        yield from _named(volume.get(name) or {}, "secretRef", SECRETS)
    yield from _named(volume, "persistentVolumeClaim", CLAIMS, "claimName")
    if "ephemeral" in volume:
        yield CLAIMS, f"{pod['metadata'].get('name', '')}-{volume.get('name', '')}"


def _of_container(container: Obj) -> Iterator[tuple[str, str]]:
    for source in container.get("envFrom") or ():
        yield from _named(source, "secretRef", SECRETS)
        yield from _named(source, "configMapRef", CONFIG_MAPS)
    for variable in container.get("env") or ():
        chosen = variable.get("valueFrom") or {}
        yield from _named(chosen, "secretKeyRef", SECRETS)
        yield from _named(chosen, "configMapKeyRef", CONFIG_MAPS)


def _named(part: Obj, member: str, resource: str, key: str = "name") -> Iterator[tuple[str, str]]:
    if member in part:
        yield resource, (part[member] or {}).get(key, "")
