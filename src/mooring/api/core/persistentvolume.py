"""PersistentVolume, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api core/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE, OBJECT_REFERENCE
from mooring.api.core.persistentvolumesource import (
    AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE,
    AZURE_DISK_VOLUME_SOURCE,
    AZURE_FILE_PERSISTENT_VOLUME_SOURCE,
    CEPH_FS_PERSISTENT_VOLUME_SOURCE,
    CINDER_PERSISTENT_VOLUME_SOURCE,
    CSI_PERSISTENT_VOLUME_SOURCE,
    FC_VOLUME_SOURCE,
    FLEX_PERSISTENT_VOLUME_SOURCE,
    FLOCKER_VOLUME_SOURCE,
    GCE_PERSISTENT_DISK_VOLUME_SOURCE,
    GLUSTERFS_PERSISTENT_VOLUME_SOURCE,
    ISCSI_PERSISTENT_VOLUME_SOURCE,
    LOCAL_VOLUME_SOURCE,
    PHOTON_PERSISTENT_DISK_VOLUME_SOURCE,
    PORTWORX_VOLUME_SOURCE,
    QUOBYTE_VOLUME_SOURCE,
    RBD_PERSISTENT_VOLUME_SOURCE,
    SCALE_IO_PERSISTENT_VOLUME_SOURCE,
    STORAGE_OS_PERSISTENT_VOLUME_SOURCE,
    VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE,
)
from mooring.api.core.pod.schema.scheduling import NODE_SELECTOR
from mooring.api.core.pod.schema.volume import HOST_PATH_VOLUME_SOURCE, NFS_VOLUME_SOURCE
from mooring.api.readonly import read_only_kind, spec_and_status
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

VOLUME_NODE_AFFINITY = Message(
    CORE + "VolumeNodeAffinity",
    (Field("required", 1, NODE_SELECTOR, pointer=True),),
)

PERSISTENT_VOLUME_SPEC = Message(
    CORE + "PersistentVolumeSpec",
    (
        Field("capacity", 1, MapOf(Scalar.QUANTITY)),
        Field("gcePersistentDisk", 1, GCE_PERSISTENT_DISK_VOLUME_SOURCE, pointer=True, within=2),
        Field("awsElasticBlockStore", 2, AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE, pointer=True, within=2),
        Field("hostPath", 3, HOST_PATH_VOLUME_SOURCE, pointer=True, within=2),
        Field("glusterfs", 4, GLUSTERFS_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("nfs", 5, NFS_VOLUME_SOURCE, pointer=True, within=2),
        Field("rbd", 6, RBD_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("iscsi", 7, ISCSI_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("cinder", 8, CINDER_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("cephfs", 9, CEPH_FS_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("fc", 10, FC_VOLUME_SOURCE, pointer=True, within=2),
        Field("flocker", 11, FLOCKER_VOLUME_SOURCE, pointer=True, within=2),
        Field("flexVolume", 12, FLEX_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("azureFile", 13, AZURE_FILE_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("vsphereVolume", 14, VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE, pointer=True, within=2),
        Field("quobyte", 15, QUOBYTE_VOLUME_SOURCE, pointer=True, within=2),
        Field("azureDisk", 16, AZURE_DISK_VOLUME_SOURCE, pointer=True, within=2),
        Field("photonPersistentDisk", 17, PHOTON_PERSISTENT_DISK_VOLUME_SOURCE, pointer=True, within=2),
        Field("portworxVolume", 18, PORTWORX_VOLUME_SOURCE, pointer=True, within=2),
        Field("scaleIO", 19, SCALE_IO_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("local", 20, LOCAL_VOLUME_SOURCE, pointer=True, within=2),
        Field("storageos", 21, STORAGE_OS_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("csi", 22, CSI_PERSISTENT_VOLUME_SOURCE, pointer=True, within=2),
        Field("accessModes", 3, ListOf(Scalar.STRING)),
        Field("claimRef", 4, OBJECT_REFERENCE, pointer=True),
        Field("persistentVolumeReclaimPolicy", 5, Scalar.STRING),
        Field("storageClassName", 6, Scalar.STRING),
        Field("mountOptions", 7, ListOf(Scalar.STRING)),
        Field("volumeMode", 8, Scalar.STRING, pointer=True),
        Field("nodeAffinity", 9, VOLUME_NODE_AFFINITY, pointer=True),
        Field("volumeAttributesClassName", 10, Scalar.STRING, pointer=True),
    ),
)

PERSISTENT_VOLUME_STATUS = Message(
    CORE + "PersistentVolumeStatus",
    (
        Field("phase", 1, Scalar.STRING),
        Field("message", 2, Scalar.STRING),
        Field("reason", 3, Scalar.STRING),
        Field("lastPhaseTransitionTime", 4, Scalar.TIME, pointer=True),
    ),
)

PERSISTENT_VOLUME = Message(
    CORE + "PersistentVolume",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, PERSISTENT_VOLUME_SPEC),
        Field("status", 3, PERSISTENT_VOLUME_STATUS),
    ),
)

KIND = read_only_kind(
    spec_and_status(PERSISTENT_VOLUME, "A piece of storage. This server attaches none."),
    "",
    "pv",
    stored_fields=PERSISTENT_VOLUME,
    storage="persistentvolumes",
    namespaced=False,
)
