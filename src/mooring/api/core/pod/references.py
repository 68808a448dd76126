"""Objects that a Pod refers to in its namespace, which its node must be able to read in order to run it.

Rules kept here (docs/protocol/node-authorization.md#graph; k8s.io/api core/v1 PodSpec):
* Secrets: imagePullSecrets, volumes, projected volumes, credentials of CSI drivers and in-tree volume sources, environment
  variables of all containers.
* ConfigMaps: volumes, projected volumes, environment variables of all containers.
* Claims: those that volumes name; the one of an ephemeral volume is `<pod>-<volume>`. Resource claims: those in the spec, and
  those in the status, which were created for the Pod.
* The service account; a cluster trust bundle that is projected by name.
* An empty name is not a reference for the node, but counts for a mirror Pod, which may have none.
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
