"""Sources of a PersistentVolume: the messages of its spec that say where the storage is.

Rules kept here: fields, numbers and names are those of k8s.io/api core/v1 1.36, types.go and generated.proto. No description is
given: clients see a free-form spec, see `mooring.api.readonly`.
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE, OBJECT_REFERENCE
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

GCE_PERSISTENT_DISK_VOLUME_SOURCE = Message(
    CORE + "GCEPersistentDiskVolumeSource",
    (
        Field("pdName", 1, Scalar.STRING, required=True),
        Field("fsType", 2, Scalar.STRING),
        Field("partition", 3, Scalar.INT32),
        Field("readOnly", 4, Scalar.BOOL),
    ),
)

AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE = Message(
    CORE + "AWSElasticBlockStoreVolumeSource",
    (
        Field("volumeID", 1, Scalar.STRING, required=True),
        Field("fsType", 2, Scalar.STRING),
        Field("partition", 3, Scalar.INT32),
        Field("readOnly", 4, Scalar.BOOL),
    ),
)

GLUSTERFS_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "GlusterfsPersistentVolumeSource",
    (
        Field("endpoints", 1, Scalar.STRING, required=True),
        Field("path", 2, Scalar.STRING, required=True),
        Field("readOnly", 3, Scalar.BOOL),
        Field("endpointsNamespace", 4, Scalar.STRING, pointer=True),
    ),
)

SECRET_REFERENCE = Message(
    CORE + "SecretReference",
    (
        Field("name", 1, Scalar.STRING),
        Field("namespace", 2, Scalar.STRING),
    ),
)

RBD_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "RBDPersistentVolumeSource",
    (
        Field("monitors", 1, ListOf(Scalar.STRING), required=True),
        Field("image", 2, Scalar.STRING, required=True),
        Field("fsType", 3, Scalar.STRING),
        Field("pool", 4, Scalar.STRING),
        Field("user", 5, Scalar.STRING),
        Field("keyring", 6, Scalar.STRING),
        Field("secretRef", 7, SECRET_REFERENCE, pointer=True),
        Field("readOnly", 8, Scalar.BOOL),
    ),
)

ISCSI_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "ISCSIPersistentVolumeSource",
    (
        Field("targetPortal", 1, Scalar.STRING, required=True),
        Field("iqn", 2, Scalar.STRING, required=True),
        Field("lun", 3, Scalar.INT32, required=True),
        Field("iscsiInterface", 4, Scalar.STRING),
        Field("fsType", 5, Scalar.STRING),
        Field("readOnly", 6, Scalar.BOOL),
        Field("portals", 7, ListOf(Scalar.STRING)),
        Field("chapAuthDiscovery", 8, Scalar.BOOL),
        Field("chapAuthSession", 11, Scalar.BOOL),
        Field("secretRef", 10, SECRET_REFERENCE, pointer=True),
        Field("initiatorName", 12, Scalar.STRING, pointer=True),
    ),
)

CINDER_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "CinderPersistentVolumeSource",
    (
        Field("volumeID", 1, Scalar.STRING, required=True),
        Field("fsType", 2, Scalar.STRING),
        Field("readOnly", 3, Scalar.BOOL),
        Field("secretRef", 4, SECRET_REFERENCE, pointer=True),
    ),
)

CEPH_FS_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "CephFSPersistentVolumeSource",
    (
        Field("monitors", 1, ListOf(Scalar.STRING), required=True),
        Field("path", 2, Scalar.STRING),
        Field("user", 3, Scalar.STRING),
        Field("secretFile", 4, Scalar.STRING),
        Field("secretRef", 5, SECRET_REFERENCE, pointer=True),
        Field("readOnly", 6, Scalar.BOOL),
    ),
)

FC_VOLUME_SOURCE = Message(
    CORE + "FCVolumeSource",
    (
        Field("targetWWNs", 1, ListOf(Scalar.STRING)),
        Field("lun", 2, Scalar.INT32, pointer=True),
        Field("fsType", 3, Scalar.STRING),
        Field("readOnly", 4, Scalar.BOOL),
        Field("wwids", 5, ListOf(Scalar.STRING)),
    ),
)

FLOCKER_VOLUME_SOURCE = Message(
    CORE + "FlockerVolumeSource",
    (
        Field("datasetName", 1, Scalar.STRING),
        Field("datasetUUID", 2, Scalar.STRING),
    ),
)

FLEX_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "FlexPersistentVolumeSource",
    (
        Field("driver", 1, Scalar.STRING, required=True),
        Field("fsType", 2, Scalar.STRING),
        Field("secretRef", 3, SECRET_REFERENCE, pointer=True),
        Field("readOnly", 4, Scalar.BOOL),
        Field("options", 5, MapOf(Scalar.STRING)),
    ),
)

AZURE_FILE_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "AzureFilePersistentVolumeSource",
    (
        Field("secretName", 1, Scalar.STRING, required=True),
        Field("shareName", 2, Scalar.STRING, required=True),
        Field("readOnly", 3, Scalar.BOOL),
        Field("secretNamespace", 4, Scalar.STRING, required=True, pointer=True),
    ),
)

VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE = Message(
    CORE + "VsphereVirtualDiskVolumeSource",
    (
        Field("volumePath", 1, Scalar.STRING, required=True),
        Field("fsType", 2, Scalar.STRING),
        Field("storagePolicyName", 3, Scalar.STRING),
        Field("storagePolicyID", 4, Scalar.STRING),
    ),
)

QUOBYTE_VOLUME_SOURCE = Message(
    CORE + "QuobyteVolumeSource",
    (
        Field("registry", 1, Scalar.STRING, required=True),
        Field("volume", 2, Scalar.STRING, required=True),
        Field("readOnly", 3, Scalar.BOOL),
        Field("user", 4, Scalar.STRING),
        Field("group", 5, Scalar.STRING),
        Field("tenant", 6, Scalar.STRING),
    ),
)

AZURE_DISK_VOLUME_SOURCE = Message(
    CORE + "AzureDiskVolumeSource",
    (
        Field("diskName", 1, Scalar.STRING, required=True),
        Field("diskURI", 2, Scalar.STRING, required=True),
        Field("cachingMode", 3, Scalar.STRING, pointer=True),
        Field("fsType", 4, Scalar.STRING, pointer=True),
        Field("readOnly", 5, Scalar.BOOL, pointer=True),
        Field("kind", 6, Scalar.STRING, pointer=True),
    ),
)

PHOTON_PERSISTENT_DISK_VOLUME_SOURCE = Message(
    CORE + "PhotonPersistentDiskVolumeSource",
    (
        Field("pdID", 1, Scalar.STRING, required=True),
        Field("fsType", 2, Scalar.STRING),
    ),
)

PORTWORX_VOLUME_SOURCE = Message(
    CORE + "PortworxVolumeSource",
    (
        Field("volumeID", 1, Scalar.STRING, required=True),
        Field("fsType", 2, Scalar.STRING),
        Field("readOnly", 3, Scalar.BOOL),
    ),
)

SCALE_IO_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "ScaleIOPersistentVolumeSource",
    (
        Field("gateway", 1, Scalar.STRING, required=True),
        Field("system", 2, Scalar.STRING, required=True),
        Field("secretRef", 3, SECRET_REFERENCE, required=True, pointer=True),
        Field("sslEnabled", 4, Scalar.BOOL),
        Field("protectionDomain", 5, Scalar.STRING),
        Field("storagePool", 6, Scalar.STRING),
        Field("storageMode", 7, Scalar.STRING),
        Field("volumeName", 8, Scalar.STRING),
        Field("fsType", 9, Scalar.STRING),
        Field("readOnly", 10, Scalar.BOOL),
    ),
)

LOCAL_VOLUME_SOURCE = Message(
    CORE + "LocalVolumeSource",
    (
        Field("path", 1, Scalar.STRING, required=True),
        Field("fsType", 2, Scalar.STRING, pointer=True),
    ),
)

STORAGE_OS_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "StorageOSPersistentVolumeSource",
    (
        Field("volumeName", 1, Scalar.STRING),
        Field("volumeNamespace", 2, Scalar.STRING),
        Field("fsType", 3, Scalar.STRING),
        Field("readOnly", 4, Scalar.BOOL),
        Field("secretRef", 5, OBJECT_REFERENCE, pointer=True),
    ),
)

CSI_PERSISTENT_VOLUME_SOURCE = Message(
    CORE + "CSIPersistentVolumeSource",
    (
        Field("driver", 1, Scalar.STRING, required=True),
        Field("volumeHandle", 2, Scalar.STRING, required=True),
        Field("readOnly", 3, Scalar.BOOL),
        Field("fsType", 4, Scalar.STRING),
        Field("volumeAttributes", 5, MapOf(Scalar.STRING)),
        Field("controllerPublishSecretRef", 6, SECRET_REFERENCE, pointer=True),
        Field("nodeStageSecretRef", 7, SECRET_REFERENCE, pointer=True),
        Field("nodePublishSecretRef", 8, SECRET_REFERENCE, pointer=True),
        Field("controllerExpandSecretRef", 9, SECRET_REFERENCE, pointer=True),
        Field("nodeExpandSecretRef", 10, SECRET_REFERENCE, pointer=True),
    ),
)
