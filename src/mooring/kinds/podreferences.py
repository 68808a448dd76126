"""What a Pod refers to in its own namespace: the objects its node must be able to read in order to run it.

Rules kept here (reference/kubernetes.md 6.6; k8s.io/api core/v1 PodSpec):
* Secrets: imagePullSecrets, volumes, projected volumes, the Secret of a CSI volume, variables of every sort of container.
* ConfigMaps: volumes, projected volumes, variables of every sort of container.
* Claims: those that volumes name; the one made for an ephemeral volume is `<pod>-<volume>`. Resource claims: those the spec names,
  and those its status says were made for it.
* The service account. A name that is empty is no reference.
"""

from __future__ import annotations

from collections.abc import Iterator

from mooring.kinds.poddefaults import CONTAINER_LISTS
from mooring.wire.schema import Obj

SECRETS = "secrets"
CONFIG_MAPS = "configmaps"
CLAIMS = "persistentvolumeclaims"
RESOURCE_CLAIMS = "resourceclaims"
SERVICE_ACCOUNTS = "serviceaccounts"


def references(pod: Obj) -> frozenset[tuple[str, str]]:
    """(resource, name) of everything the Pod refers to."""
    spec = pod.get("spec") or {}
    return frozenset(reference for reference in _all(pod, spec) if reference[1])


def _all(pod: Obj, spec: Obj) -> Iterator[tuple[str, str]]:
    yield SERVICE_ACCOUNTS, spec.get("serviceAccountName", "")
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
    for made in [*(status.get("resourceClaimStatuses") or ()), status.get("extendedResourceClaimStatus") or {}]:
        yield RESOURCE_CLAIMS, made.get("resourceClaimName", "")


def _of_volume(pod: Obj, volume: Obj) -> Iterator[tuple[str, str]]:
    yield SECRETS, (volume.get("secret") or {}).get("secretName", "")
    yield CONFIG_MAPS, (volume.get("configMap") or {}).get("name", "")
    for source in (volume.get("projected") or {}).get("sources") or ():
        yield SECRETS, (source.get("secret") or {}).get("name", "")
        yield CONFIG_MAPS, (source.get("configMap") or {}).get("name", "")
    yield SECRETS, ((volume.get("csi") or {}).get("nodePublishSecretRef") or {}).get("name", "")
    yield CLAIMS, (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
    if "ephemeral" in volume:
        yield CLAIMS, f"{pod['metadata']['name']}-{volume.get('name', '')}"


def _of_container(container: Obj) -> Iterator[tuple[str, str]]:
    for source in container.get("envFrom") or ():
        yield SECRETS, (source.get("secretRef") or {}).get("name", "")
        yield CONFIG_MAPS, (source.get("configMapRef") or {}).get("name", "")
    for variable in container.get("env") or ():
        chosen = variable.get("valueFrom") or {}
        yield SECRETS, (chosen.get("secretKeyRef") or {}).get("name", "")
        yield CONFIG_MAPS, (chosen.get("configMapKeyRef") or {}).get("name", "")
