"""Audiences of the tokens that a node may request for the volumes of a Pod.

Rules kept here (docs/protocol/node-authorization.md#noderestriction):
* A projected volume names the audience of its token. The empty one is the API server.
* A CSI volume has the audiences that its CSIDriver lists in `spec.tokenRequests`. The driver of a claim is that of its volume. The
  claim of an ephemeral volume is `<pod>-<volume>`. Another server that shares the store wrote these objects.
* A volume of an in-tree plugin belongs to the driver to which Kubernetes moved the plugin (k8s.io/csi-translation-lib).
* An object that does not exist or cannot be read gives no audience. It does not hide those of other volumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mooring.api.core.pod.references import CLAIMS
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.errors import ApiError, InternalServerError, NotFoundError, qualified, quoted

VOLUMES = "persistentvolumes"
DRIVERS = "csidrivers"
_QUALIFIED = {
    CLAIMS: ("", "persistentvolumeclaim"),
    VOLUMES: ("", "persistentvolume"),
    DRIVERS: ("storage.k8s.io", "csidriver"),
}
"""Group and name of the resources in kube-apiserver's errors, which use the singular."""
_IN_TREE = {
    "awsElasticBlockStore": "ebs.csi.aws.com",
    "azureDisk": "disk.csi.azure.com",
    "azureFile": "file.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "gcePersistentDisk": "pd.csi.storage.gke.io",
    "portworxVolume": "pxd.portworx.com",
    "vsphereVolume": "csi.vsphere.vmware.com",
}
"""CSI drivers of the volume sources of in-tree plugins."""


def volume_audiences(pod: Obj, views: Views, failures: list[str]) -> Iterator[str]:
    """Yield the audiences of the Pod's volumes. The errors of failed look-ups are appended to `failures`, each once."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            if "serviceAccountToken" in source:
                yield (source["serviceAccountToken"] or {}).get("audience") or ""
        try:
            yield from _driver_audiences(pod, volume, views)
        except ApiError as error:
            if error.message not in failures:
                failures.append(error.message)


def _driver_audiences(pod: Obj, volume: Obj, views: Views) -> Iterator[str]:
    source = volume
    if claim := _claim_name(pod, volume):
        bound = _member(_find(views, CLAIMS, claim, pod["metadata"].get("namespace", "")), "spec", "volumeName")
        source = _member(_find(views, VOLUMES, bound or ""), "spec")
    if driver := _driver_name(source):
        for request in _member(_find(views, DRIVERS, driver), "spec", "tokenRequests") or ():
            yield _member(request, "audience") or ""


def _claim_name(pod: Obj, volume: Obj) -> str:
    """Return the name of the claim of a volume; "" for a volume without one."""
    if _member(volume, "ephemeral", "volumeClaimTemplate") is not None:
        return f"{pod['metadata'].get('name', '')}-{volume.get('name', '')}"
    name: str = _member(volume, "persistentVolumeClaim", "claimName") or ""
    return name


def _driver_name(source: Any) -> str:
    """Return the CSI driver of a volume of a Pod, or of the spec of a PersistentVolume; "" for one without a driver."""
    moved = (driver for plugin, driver in _IN_TREE.items() if _member(source, plugin) is not None)
    name: str = _member(source, "csi", "driver") or next(moved, "")
    return name


def _find(views: Views, plural: str, name: str, namespace: str = "") -> Obj:
    """Return an object. Raises ApiError when it does not exist or cannot be read."""
    found = views[plural].get(name, namespace)
    if found is not None:
        return found
    group, resource = _QUALIFIED[plural]
    if views[plural].problem(name, namespace):
        raise InternalServerError(f"{qualified(resource, group)} {quoted(name)} cannot be read")
    raise NotFoundError.of(group, resource, name)


def _member(value: Any, *path: str) -> Any:
    """Return a member of an object, None without one. The objects of another server are stored unchecked."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
