"""Schema and defaults of the in-tree volume sources, which preceded CSI drivers.

Rules kept here: data only; numbers from k8s.io/api core/v1 (generated.proto, types.go; docs/protocol/negotiation.md#field-numbers).
Kubernetes has removed most of the code behind them, and still stores the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.api.core.objectreference import CORE, LOCAL_OBJECT_REFERENCE
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

_SOURCES: dict[str, Message] = {
    "gcePersistentDisk": Message(
        CORE + "GCEPersistentDiskVolumeSource",
        (
            Field("pdName", 1, Scalar.STRING, "Name of the disk.", required=True),
            Field("fsType", 2, Scalar.STRING, "File system to mount."),
            Field("partition", 3, Scalar.INT32, "The partition to mount; 0 is the whole device."),
            Field("readOnly", 4, Scalar.BOOL, "Whether it is mounted read-only."),
        ),
        "A disk of Google Compute Engine.",
    ),
    "awsElasticBlockStore": Message(
        CORE + "AWSElasticBlockStoreVolumeSource",
        (
            Field("volumeID", 1, Scalar.STRING, "Id of the volume.", required=True),
            Field("fsType", 2, Scalar.STRING, "File system to mount."),
            Field("partition", 3, Scalar.INT32, "The partition to mount; 0 is the whole device."),
            Field("readOnly", 4, Scalar.BOOL, "Whether it is mounted read-only."),
        ),
        "A disk of Amazon EC2.",
    ),
    "gitRepo": Message(
        CORE + "GitRepoVolumeSource",
        (
            Field("repository", 1, Scalar.STRING, "URL of the repository.", required=True),
            Field("revision", 2, Scalar.STRING, "Commit to check out."),
            Field("directory", 3, Scalar.STRING, "Directory to clone into."),
        ),
        "A clone of a Git repository.",
    ),
    "iscsi": Message(
        CORE + "ISCSIVolumeSource",
        (
            Field("targetPortal", 1, Scalar.STRING, "Address of the target.", required=True),
            Field("iqn", 2, Scalar.STRING, "Name of the target.", required=True),
            Field("lun", 3, Scalar.INT32, "Logical unit number.", required=True, pointer=True),
            Field("iscsiInterface", 4, Scalar.STRING, "Interface of the initiator."),
            Field("fsType", 5, Scalar.STRING, "File system to mount."),
            Field("readOnly", 6, Scalar.BOOL, "Whether it is mounted read-only."),
            Field("portals", 7, ListOf(Scalar.STRING), "Further addresses of the target."),
            Field("chapAuthDiscovery", 8, Scalar.BOOL, "Whether discovery logs in by CHAP."),
            Field("chapAuthSession", 11, Scalar.BOOL, "Whether sessions log in by CHAP."),
            Field("secretRef", 10, LOCAL_OBJECT_REFERENCE, "Secret with the credentials.", pointer=True),
            Field("initiatorName", 12, Scalar.STRING, "Name of the initiator.", pointer=True),
        ),
        "A disk of an iSCSI target.",
    ),
    "glusterfs": Message(
        CORE + "GlusterfsVolumeSource",
        (
            Field("endpoints", 1, Scalar.STRING, "Endpoints that say where the servers are.", required=True),
            Field("path", 2, Scalar.STRING, "Path in it.", required=True),
            Field("readOnly", 3, Scalar.BOOL, "Whether it is mounted read-only."),
        ),
        "A directory of Gluster servers.",
    ),
    "rbd": Message(
        CORE + "RBDVolumeSource",
        (
            Field("monitors", 1, ListOf(Scalar.STRING), "Addresses of the monitors.", required=True),
            Field("image", 2, Scalar.STRING, "Name of the image.", required=True),
            Field("fsType", 3, Scalar.STRING, "File system to mount."),
            Field("pool", 4, Scalar.STRING, "Pool of the image."),
            Field("user", 5, Scalar.STRING, "User to log in as."),
            Field("keyring", 6, Scalar.STRING, "File on the node with the keyring."),
            Field("secretRef", 7, LOCAL_OBJECT_REFERENCE, "Secret with the credentials.", pointer=True),
            Field("readOnly", 8, Scalar.BOOL, "Whether it is mounted read-only."),
        ),
        "A block device of Ceph.",
    ),
    "flexVolume": Message(
        CORE + "FlexVolumeSource",
        (
            Field("driver", 1, Scalar.STRING, "Name of the driver.", required=True),
            Field("fsType", 2, Scalar.STRING, "File system to mount."),
            Field("secretRef", 3, LOCAL_OBJECT_REFERENCE, "Secret with the credentials.", pointer=True),
            Field("readOnly", 4, Scalar.BOOL, "Whether it is mounted read-only."),
            Field("options", 5, MapOf(Scalar.STRING), "What the driver is told."),
        ),
        "What a program on the node mounts.",
    ),
    "cinder": Message(
        CORE + "CinderVolumeSource",
        (
            Field("volumeID", 1, Scalar.STRING, "Id of the volume.", required=True),
            Field("fsType", 2, Scalar.STRING, "File system to mount."),
            Field("readOnly", 3, Scalar.BOOL, "Whether it is mounted read-only."),
            Field("secretRef", 4, LOCAL_OBJECT_REFERENCE, "Secret with the credentials.", pointer=True),
        ),
        "A disk of OpenStack.",
    ),
    "cephfs": Message(
        CORE + "CephFSVolumeSource",
        (
            Field("monitors", 1, ListOf(Scalar.STRING), "Addresses of the monitors.", required=True),
            Field("path", 2, Scalar.STRING, "Path in it."),
            Field("user", 3, Scalar.STRING, "User to log in as."),
            Field("secretFile", 4, Scalar.STRING, "File on the node with the key."),
            Field("secretRef", 5, LOCAL_OBJECT_REFERENCE, "Secret with the credentials.", pointer=True),
            Field("readOnly", 6, Scalar.BOOL, "Whether it is mounted read-only."),
        ),
        "A directory of Ceph.",
    ),
    "flocker": Message(
        CORE + "FlockerVolumeSource",
        (
            Field("datasetName", 1, Scalar.STRING, "Name of the dataset."),
            Field("datasetUUID", 2, Scalar.STRING, "Id of the dataset, instead of a name."),
        ),
        "A dataset of Flocker.",
    ),
    "fc": Message(
        CORE + "FCVolumeSource",
        (
            Field("targetWWNs", 1, ListOf(Scalar.STRING), "World wide names of the targets."),
            Field("lun", 2, Scalar.INT32, "Logical unit number.", pointer=True),
            Field("fsType", 3, Scalar.STRING, "File system to mount."),
            Field("readOnly", 4, Scalar.BOOL, "Whether it is mounted read-only."),
            Field("wwids", 5, ListOf(Scalar.STRING), "World wide identifiers, instead of targets and number."),
        ),
        "A disk on a Fibre Channel.",
    ),
    "azureFile": Message(
        CORE + "AzureFileVolumeSource",
        (
            Field("secretName", 1, Scalar.STRING, "Secret with the account, in the Pod's namespace.", required=True),
            Field("shareName", 2, Scalar.STRING, "Name of the share.", required=True),
            Field("readOnly", 3, Scalar.BOOL, "Whether it is mounted read-only."),
        ),
        "A share of Azure Files.",
    ),
    "vsphereVolume": Message(
        CORE + "VsphereVirtualDiskVolumeSource",
        (
            Field("volumePath", 1, Scalar.STRING, "Path of the disk.", required=True),
            Field("fsType", 2, Scalar.STRING, "File system to mount."),
            Field("storagePolicyName", 3, Scalar.STRING, "Name of the storage policy."),
            Field("storagePolicyID", 4, Scalar.STRING, "Id of the storage policy."),
        ),
        "A disk of vSphere.",
    ),
    "quobyte": Message(
        CORE + "QuobyteVolumeSource",
        (
            Field("registry", 1, Scalar.STRING, "Addresses of the registry.", required=True),
            Field("volume", 2, Scalar.STRING, "Name of the volume.", required=True),
            Field("readOnly", 3, Scalar.BOOL, "Whether it is mounted read-only."),
            Field("user", 4, Scalar.STRING, "User to log in as."),
            Field("group", 5, Scalar.STRING, "Group to map access to."),
            Field("tenant", 6, Scalar.STRING, "Tenant that owns it."),
        ),
        "A volume of Quobyte.",
    ),
    "azureDisk": Message(
        CORE + "AzureDiskVolumeSource",
        (
            Field("diskName", 1, Scalar.STRING, "Name of the disk.", required=True),
            Field("diskURI", 2, Scalar.STRING, "Where the disk is.", required=True),
            Field(
                "cachingMode",
                3,
                Scalar.STRING,
                "None, ReadOnly or ReadWrite.",
                pointer=True,
                enum=("None", "ReadOnly", "ReadWrite"),
            ),
            Field("fsType", 4, Scalar.STRING, "File system to mount.", pointer=True),
            Field("readOnly", 5, Scalar.BOOL, "Whether it is mounted read-only.", pointer=True),
            Field(
                "kind",
                6,
                Scalar.STRING,
                "Shared, Dedicated or Managed.",
                pointer=True,
                enum=("Dedicated", "Managed", "Shared"),
            ),
        ),
        "A disk of Azure.",
    ),
    "photonPersistentDisk": Message(
        CORE + "PhotonPersistentDiskVolumeSource",
        (
            Field("pdID", 1, Scalar.STRING, "Id of the disk.", required=True),
            Field("fsType", 2, Scalar.STRING, "File system to mount."),
        ),
        "A disk of Photon Controller.",
    ),
    "portworxVolume": Message(
        CORE + "PortworxVolumeSource",
        (
            Field("volumeID", 1, Scalar.STRING, "Id of the volume.", required=True),
            Field("fsType", 2, Scalar.STRING, "File system to mount."),
            Field("readOnly", 3, Scalar.BOOL, "Whether it is mounted read-only."),
        ),
        "A volume of Portworx.",
    ),
    "scaleIO": Message(
        CORE + "ScaleIOVolumeSource",
        (
            Field("gateway", 1, Scalar.STRING, "Address of the gateway.", required=True),
            Field("system", 2, Scalar.STRING, "Name of the storage system.", required=True),
            Field("secretRef", 3, LOCAL_OBJECT_REFERENCE, "Secret with the credentials.", required=True, pointer=True),
            Field("sslEnabled", 4, Scalar.BOOL, "Whether the gateway is spoken to over TLS."),
            Field("protectionDomain", 5, Scalar.STRING, "Protection domain of the storage."),
            Field("storagePool", 6, Scalar.STRING, "Pool of the domain."),
            Field("storageMode", 7, Scalar.STRING, "ThickProvisioned or ThinProvisioned."),
            Field("volumeName", 8, Scalar.STRING, "Name of the volume."),
            Field("fsType", 9, Scalar.STRING, "File system to mount."),
            Field("readOnly", 10, Scalar.BOOL, "Whether it is mounted read-only."),
        ),
        "A volume of ScaleIO.",
    ),
    "storageos": Message(
        CORE + "StorageOSVolumeSource",
        (
            Field("volumeName", 1, Scalar.STRING, "Name of the volume."),
            Field("volumeNamespace", 2, Scalar.STRING, "Where its name is looked for; the Pod's namespace when empty."),
            Field("fsType", 3, Scalar.STRING, "File system to mount."),
            Field("readOnly", 4, Scalar.BOOL, "Whether it is mounted read-only."),
            Field("secretRef", 5, LOCAL_OBJECT_REFERENCE, "Secret with the credentials.", pointer=True),
        ),
        "A volume of StorageOS.",
    ),
}
_NUMBERS = {
    "gcePersistentDisk": 3,
    "awsElasticBlockStore": 4,
    "gitRepo": 5,
    "iscsi": 8,
    "glusterfs": 9,
    "rbd": 11,
    "flexVolume": 12,
    "cinder": 13,
    "cephfs": 14,
    "flocker": 15,
    "fc": 17,
    "azureFile": 18,
    "vsphereVolume": 20,
    "quobyte": 21,
    "azureDisk": 22,
    "photonPersistentDisk": 23,
    "portworxVolume": 24,
    "scaleIO": 25,
    "storageos": 27,
}

IN_TREE_SOURCES: Mapping[str, Field] = MappingProxyType(
    {
        name: Field(name, _NUMBERS[name], message, message.doc, pointer=True, within=2)
        for name, message in _SOURCES.items()
    }
)
"""Fields of Volume with an in-tree source, by name."""
IN_TREE_DEFAULTS: Mapping[str, Mapping[str, str | bool]] = MappingProxyType(
    {
        "iscsi": {"iscsiInterface": "default"},
        "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
        "azureDisk": {"cachingMode": "ReadWrite", "kind": "Shared", "fsType": "ext4", "readOnly": False},
        "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
    }
)
"""Default values by volume source and field."""
