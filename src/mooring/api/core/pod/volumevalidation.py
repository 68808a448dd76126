"""What is wrong with the volumes of a Pod (wording as kube-apiserver's).

Rules kept here (Kubernetes API reference, core/v1 Volume): names are DNS labels and unique; a volume has one source, which says
what it cannot do without; a token lives at least ten minutes.
"""

from __future__ import annotations

from mooring.apimachinery.names import dns1123_label_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, duplicate, forbidden, invalid, required

MIN_TOKEN_SECONDS = 600
MAX_TOKEN_SECONDS = 1 << 32
_NEEDED = {
    "hostPath": ("path",),
    "secret": ("secretName",),
    "configMap": ("name",),
    "nfs": ("server", "path"),
    "persistentVolumeClaim": ("claimName",),
    "csi": ("driver",),
    "ephemeral": ("volumeClaimTemplate",),
    "gcePersistentDisk": ("pdName",),
    "awsElasticBlockStore": ("volumeID",),
    "gitRepo": ("repository",),
    "iscsi": ("targetPortal", "iqn"),
    "glusterfs": ("endpoints", "path"),
    "rbd": ("monitors", "image"),
    "flexVolume": ("driver",),
    "cinder": ("volumeID",),
    "cephfs": ("monitors",),
    "azureFile": ("secretName", "shareName"),
    "vsphereVolume": ("volumePath",),
    "quobyte": ("registry", "volume"),
    "azureDisk": ("diskName", "diskURI"),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "scaleIO": ("gateway", "system", "volumeName"),
    "storageos": ("volumeName",),
}
_PROJECTED = {
    "secret": ("name",),
    "configMap": ("name",),
    "serviceAccountToken": ("path",),
    "clusterTrustBundle": ("path",),
    "podCertificate": ("signerName", "keyType"),
}


def volume_errors(volumes: list[Obj]) -> tuple[set[str], list[FieldError]]:
    """The names that mounts may use, and what is wrong."""
    names: set[str] = set()
    errors: list[FieldError] = []
    for index, volume in enumerate(volumes):
        path, name = f"spec.volumes[{index}]", volume.get("name", "")
        errors += _source_errors(volume, path)
        if not name:
            errors.append(required(f"{path}.name"))
        elif name in names:
            errors.append(duplicate(f"{path}.name", name))
        else:
            errors += [invalid(f"{path}.name", name, why) for why in dns1123_label_errors(name)]
        names.add(name)
    return names, errors


def _source_errors(volume: Obj, path: str) -> list[FieldError]:
    sources = [name for name in volume if name != "name"]
    errors = [forbidden(f"{path}.{name}", "may not specify more than 1 volume type") for name in sources[1:]]
    for name in sources[:1]:
        source = volume[name]
        errors += [required(f"{path}.{name}.{part}") for part in _NEEDED.get(name, ()) if not source.get(part)]
        if name == "projected":
            for index, part in enumerate(source.get("sources") or ()):
                errors += _projection_errors(part, f"{path}.projected.sources[{index}]")
    return errors


def _projection_errors(part: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if len(part) > 1:
        errors.append(forbidden(path, "may not specify more than 1 volume type per source"))
    for name, source in part.items():
        errors += [required(f"{path}.{name}.{needed}") for needed in _PROJECTED.get(name, ()) if not source.get(needed)]
    if "serviceAccountToken" in part:
        seconds = part["serviceAccountToken"].get("expirationSeconds", MIN_TOKEN_SECONDS)
        at = f"{path}.serviceAccountToken.expirationSeconds"
        if seconds < MIN_TOKEN_SECONDS:
            errors.append(invalid(at, seconds, "may not specify a duration less than 10 minutes"))
        elif seconds > MAX_TOKEN_SECONDS:
            errors.append(invalid(at, seconds, "may not specify a duration larger than 2^32 seconds"))
    return errors
