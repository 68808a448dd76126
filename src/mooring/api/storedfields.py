"""Fields of the kinds that are only read, for decoding what kube-apiserver stored as protobuf.

Rules kept here: data only; names and numbers from k8s.io/api 1.36 (core, apps, batch, networking, node and storage v1: types.go,
generated.proto). The fields have no descriptions: clients see the schemas of `mooring.api.readonly`.
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE, OBJECT_REFERENCE
from mooring.api.core.pod.podtemplate import POD_TEMPLATE_SPEC
from mooring.api.core.pod.schema.scheduling import NODE_SELECTOR, TOLERATION
from mooring.api.core.pod.schema.volume import (
    HOST_PATH_VOLUME_SOURCE,
    NFS_VOLUME_SOURCE,
    PERSISTENT_VOLUME_CLAIM_SPEC,
    TYPED_LOCAL_OBJECT_REFERENCE,
)
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

APPS, BATCH, NETWORKING = "io.k8s.api.apps.v1.", "io.k8s.api.batch.v1.", "io.k8s.api.networking.v1."
NODE, STORAGE = "io.k8s.api.node.v1.", "io.k8s.api.storage.v1."

REPLICATION_CONTROLLER_SPEC = Message(
    CORE + "ReplicationControllerSpec",
    (
        Field("replicas", 1, Scalar.INT32, pointer=True),
        Field("minReadySeconds", 4, Scalar.INT32),
        Field("selector", 2, MapOf(Scalar.STRING)),
        Field("template", 3, POD_TEMPLATE_SPEC, pointer=True),
    ),
)

REPLICATION_CONTROLLER_CONDITION = Message(
    CORE + "ReplicationControllerCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastTransitionTime", 3, Scalar.TIME),
        Field("reason", 4, Scalar.STRING),
        Field("message", 5, Scalar.STRING),
    ),
)

REPLICATION_CONTROLLER_STATUS = Message(
    CORE + "ReplicationControllerStatus",
    (
        Field("replicas", 1, Scalar.INT32, required=True),
        Field("fullyLabeledReplicas", 2, Scalar.INT32),
        Field("readyReplicas", 4, Scalar.INT32),
        Field("availableReplicas", 5, Scalar.INT32),
        Field("observedGeneration", 3, Scalar.INT64),
        Field("conditions", 6, ListOf(REPLICATION_CONTROLLER_CONDITION)),
    ),
)

REPLICATION_CONTROLLER = Message(
    CORE + "ReplicationController",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, REPLICATION_CONTROLLER_SPEC),
        Field("status", 3, REPLICATION_CONTROLLER_STATUS),
    ),
)

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

PERSISTENT_VOLUME_CLAIM_CONDITION = Message(
    CORE + "PersistentVolumeClaimCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastProbeTime", 3, Scalar.TIME),
        Field("lastTransitionTime", 4, Scalar.TIME),
        Field("reason", 5, Scalar.STRING),
        Field("message", 6, Scalar.STRING),
    ),
)

MODIFY_VOLUME_STATUS = Message(
    CORE + "ModifyVolumeStatus",
    (
        Field("targetVolumeAttributesClassName", 1, Scalar.STRING),
        Field("status", 2, Scalar.STRING, required=True),
    ),
)

PERSISTENT_VOLUME_CLAIM_STATUS = Message(
    CORE + "PersistentVolumeClaimStatus",
    (
        Field("phase", 1, Scalar.STRING),
        Field("accessModes", 2, ListOf(Scalar.STRING)),
        Field("capacity", 3, MapOf(Scalar.QUANTITY)),
        Field("conditions", 4, ListOf(PERSISTENT_VOLUME_CLAIM_CONDITION)),
        Field("allocatedResources", 5, MapOf(Scalar.QUANTITY)),
        Field("allocatedResourceStatuses", 7, MapOf(Scalar.STRING)),
        Field("currentVolumeAttributesClassName", 8, Scalar.STRING, pointer=True),
        Field("modifyVolumeStatus", 9, MODIFY_VOLUME_STATUS, pointer=True),
    ),
)

PERSISTENT_VOLUME_CLAIM = Message(
    CORE + "PersistentVolumeClaim",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, PERSISTENT_VOLUME_CLAIM_SPEC),
        Field("status", 3, PERSISTENT_VOLUME_CLAIM_STATUS),
    ),
)

ROLLING_UPDATE_DAEMON_SET = Message(
    APPS + "RollingUpdateDaemonSet",
    (
        Field("maxUnavailable", 1, Scalar.INT_OR_STRING, pointer=True),
        Field("maxSurge", 2, Scalar.INT_OR_STRING, pointer=True),
    ),
)

DAEMON_SET_UPDATE_STRATEGY = Message(
    APPS + "DaemonSetUpdateStrategy",
    (
        Field("type", 1, Scalar.STRING),
        Field("rollingUpdate", 2, ROLLING_UPDATE_DAEMON_SET, pointer=True),
    ),
)

DAEMON_SET_SPEC = Message(
    APPS + "DaemonSetSpec",
    (
        Field("selector", 1, LABEL_SELECTOR, required=True, pointer=True),
        Field("template", 2, POD_TEMPLATE_SPEC, required=True),
        Field("updateStrategy", 3, DAEMON_SET_UPDATE_STRATEGY),
        Field("minReadySeconds", 4, Scalar.INT32),
        Field("revisionHistoryLimit", 6, Scalar.INT32, pointer=True),
    ),
)

DAEMON_SET_CONDITION = Message(
    APPS + "DaemonSetCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastTransitionTime", 3, Scalar.TIME),
        Field("reason", 4, Scalar.STRING),
        Field("message", 5, Scalar.STRING),
    ),
)

DAEMON_SET_STATUS = Message(
    APPS + "DaemonSetStatus",
    (
        Field("currentNumberScheduled", 1, Scalar.INT32, required=True),
        Field("numberMisscheduled", 2, Scalar.INT32, required=True),
        Field("desiredNumberScheduled", 3, Scalar.INT32, required=True),
        Field("numberReady", 4, Scalar.INT32, required=True),
        Field("observedGeneration", 5, Scalar.INT64),
        Field("updatedNumberScheduled", 6, Scalar.INT32),
        Field("numberAvailable", 7, Scalar.INT32),
        Field("numberUnavailable", 8, Scalar.INT32),
        Field("collisionCount", 9, Scalar.INT32, pointer=True),
        Field("conditions", 10, ListOf(DAEMON_SET_CONDITION)),
    ),
)

DAEMON_SET = Message(
    APPS + "DaemonSet",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, DAEMON_SET_SPEC),
        Field("status", 3, DAEMON_SET_STATUS),
    ),
)

ROLLING_UPDATE_DEPLOYMENT = Message(
    APPS + "RollingUpdateDeployment",
    (
        Field("maxUnavailable", 1, Scalar.INT_OR_STRING, pointer=True),
        Field("maxSurge", 2, Scalar.INT_OR_STRING, pointer=True),
    ),
)

DEPLOYMENT_STRATEGY = Message(
    APPS + "DeploymentStrategy",
    (
        Field("type", 1, Scalar.STRING),
        Field("rollingUpdate", 2, ROLLING_UPDATE_DEPLOYMENT, pointer=True),
    ),
)

DEPLOYMENT_SPEC = Message(
    APPS + "DeploymentSpec",
    (
        Field("replicas", 1, Scalar.INT32, pointer=True),
        Field("selector", 2, LABEL_SELECTOR, required=True, pointer=True),
        Field("template", 3, POD_TEMPLATE_SPEC, required=True),
        Field("strategy", 4, DEPLOYMENT_STRATEGY),
        Field("minReadySeconds", 5, Scalar.INT32),
        Field("revisionHistoryLimit", 6, Scalar.INT32, pointer=True),
        Field("paused", 7, Scalar.BOOL),
        Field("progressDeadlineSeconds", 9, Scalar.INT32, pointer=True),
    ),
)

DEPLOYMENT_CONDITION = Message(
    APPS + "DeploymentCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastUpdateTime", 6, Scalar.TIME),
        Field("lastTransitionTime", 7, Scalar.TIME),
        Field("reason", 4, Scalar.STRING),
        Field("message", 5, Scalar.STRING),
    ),
)

DEPLOYMENT_STATUS = Message(
    APPS + "DeploymentStatus",
    (
        Field("observedGeneration", 1, Scalar.INT64),
        Field("replicas", 2, Scalar.INT32),
        Field("updatedReplicas", 3, Scalar.INT32),
        Field("readyReplicas", 7, Scalar.INT32),
        Field("availableReplicas", 4, Scalar.INT32),
        Field("unavailableReplicas", 5, Scalar.INT32),
        Field("terminatingReplicas", 9, Scalar.INT32, pointer=True),
        Field("conditions", 6, ListOf(DEPLOYMENT_CONDITION)),
        Field("collisionCount", 8, Scalar.INT32, pointer=True),
    ),
)

DEPLOYMENT = Message(
    APPS + "Deployment",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, DEPLOYMENT_SPEC),
        Field("status", 3, DEPLOYMENT_STATUS),
    ),
)

REPLICA_SET_SPEC = Message(
    APPS + "ReplicaSetSpec",
    (
        Field("replicas", 1, Scalar.INT32, pointer=True),
        Field("minReadySeconds", 4, Scalar.INT32),
        Field("selector", 2, LABEL_SELECTOR, required=True, pointer=True),
        Field("template", 3, POD_TEMPLATE_SPEC),
    ),
)

REPLICA_SET_CONDITION = Message(
    APPS + "ReplicaSetCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastTransitionTime", 3, Scalar.TIME),
        Field("reason", 4, Scalar.STRING),
        Field("message", 5, Scalar.STRING),
    ),
)

REPLICA_SET_STATUS = Message(
    APPS + "ReplicaSetStatus",
    (
        Field("replicas", 1, Scalar.INT32, required=True),
        Field("fullyLabeledReplicas", 2, Scalar.INT32),
        Field("readyReplicas", 4, Scalar.INT32),
        Field("availableReplicas", 5, Scalar.INT32),
        Field("terminatingReplicas", 7, Scalar.INT32, pointer=True),
        Field("observedGeneration", 3, Scalar.INT64),
        Field("conditions", 6, ListOf(REPLICA_SET_CONDITION)),
    ),
)

REPLICA_SET = Message(
    APPS + "ReplicaSet",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, REPLICA_SET_SPEC),
        Field("status", 3, REPLICA_SET_STATUS),
    ),
)

ROLLING_UPDATE_STATEFUL_SET_STRATEGY = Message(
    APPS + "RollingUpdateStatefulSetStrategy",
    (
        Field("partition", 1, Scalar.INT32, pointer=True),
        Field("maxUnavailable", 2, Scalar.INT_OR_STRING, pointer=True),
    ),
)

STATEFUL_SET_UPDATE_STRATEGY = Message(
    APPS + "StatefulSetUpdateStrategy",
    (
        Field("type", 1, Scalar.STRING),
        Field("rollingUpdate", 2, ROLLING_UPDATE_STATEFUL_SET_STRATEGY, pointer=True),
    ),
)

STATEFUL_SET_PERSISTENT_VOLUME_CLAIM_RETENTION_POLICY = Message(
    APPS + "StatefulSetPersistentVolumeClaimRetentionPolicy",
    (
        Field("whenDeleted", 1, Scalar.STRING),
        Field("whenScaled", 2, Scalar.STRING),
    ),
)

STATEFUL_SET_ORDINALS = Message(
    APPS + "StatefulSetOrdinals",
    (Field("start", 1, Scalar.INT32, required=True),),
)

STATEFUL_SET_SPEC = Message(
    APPS + "StatefulSetSpec",
    (
        Field("replicas", 1, Scalar.INT32, pointer=True),
        Field("selector", 2, LABEL_SELECTOR, required=True, pointer=True),
        Field("template", 3, POD_TEMPLATE_SPEC, required=True),
        Field("volumeClaimTemplates", 4, ListOf(PERSISTENT_VOLUME_CLAIM)),
        Field("serviceName", 5, Scalar.STRING, required=True),
        Field("podManagementPolicy", 6, Scalar.STRING),
        Field("updateStrategy", 7, STATEFUL_SET_UPDATE_STRATEGY),
        Field("revisionHistoryLimit", 8, Scalar.INT32, pointer=True),
        Field("minReadySeconds", 9, Scalar.INT32),
        Field(
            "persistentVolumeClaimRetentionPolicy",
            10,
            STATEFUL_SET_PERSISTENT_VOLUME_CLAIM_RETENTION_POLICY,
            pointer=True,
        ),
        Field("ordinals", 11, STATEFUL_SET_ORDINALS, pointer=True),
    ),
)

STATEFUL_SET_CONDITION = Message(
    APPS + "StatefulSetCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastTransitionTime", 3, Scalar.TIME),
        Field("reason", 4, Scalar.STRING),
        Field("message", 5, Scalar.STRING),
    ),
)

STATEFUL_SET_STATUS = Message(
    APPS + "StatefulSetStatus",
    (
        Field("observedGeneration", 1, Scalar.INT64),
        Field("replicas", 2, Scalar.INT32, required=True),
        Field("readyReplicas", 3, Scalar.INT32),
        Field("currentReplicas", 4, Scalar.INT32),
        Field("updatedReplicas", 5, Scalar.INT32),
        Field("currentRevision", 6, Scalar.STRING),
        Field("updateRevision", 7, Scalar.STRING),
        Field("collisionCount", 9, Scalar.INT32, pointer=True),
        Field("conditions", 10, ListOf(STATEFUL_SET_CONDITION)),
        Field("availableReplicas", 11, Scalar.INT32, required=True),
    ),
)

STATEFUL_SET = Message(
    APPS + "StatefulSet",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, STATEFUL_SET_SPEC),
        Field("status", 3, STATEFUL_SET_STATUS),
    ),
)

POD_FAILURE_POLICY_ON_EXIT_CODES_REQUIREMENT = Message(
    BATCH + "PodFailurePolicyOnExitCodesRequirement",
    (
        Field("containerName", 1, Scalar.STRING, pointer=True),
        Field("operator", 2, Scalar.STRING, required=True),
        Field("values", 3, ListOf(Scalar.INT32), required=True),
    ),
)

POD_FAILURE_POLICY_ON_POD_CONDITIONS_PATTERN = Message(
    BATCH + "PodFailurePolicyOnPodConditionsPattern",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
    ),
)

POD_FAILURE_POLICY_RULE = Message(
    BATCH + "PodFailurePolicyRule",
    (
        Field("action", 1, Scalar.STRING, required=True),
        Field("onExitCodes", 2, POD_FAILURE_POLICY_ON_EXIT_CODES_REQUIREMENT, pointer=True),
        Field("onPodConditions", 3, ListOf(POD_FAILURE_POLICY_ON_POD_CONDITIONS_PATTERN)),
    ),
)

POD_FAILURE_POLICY = Message(
    BATCH + "PodFailurePolicy",
    (Field("rules", 1, ListOf(POD_FAILURE_POLICY_RULE), required=True),),
)

SUCCESS_POLICY_RULE = Message(
    BATCH + "SuccessPolicyRule",
    (
        Field("succeededIndexes", 1, Scalar.STRING, pointer=True),
        Field("succeededCount", 2, Scalar.INT32, pointer=True),
    ),
)

SUCCESS_POLICY = Message(
    BATCH + "SuccessPolicy",
    (Field("rules", 1, ListOf(SUCCESS_POLICY_RULE), required=True),),
)

JOB_SPEC = Message(
    BATCH + "JobSpec",
    (
        Field("parallelism", 1, Scalar.INT32, pointer=True),
        Field("completions", 2, Scalar.INT32, pointer=True),
        Field("activeDeadlineSeconds", 3, Scalar.INT64, pointer=True),
        Field("podFailurePolicy", 11, POD_FAILURE_POLICY, pointer=True),
        Field("successPolicy", 16, SUCCESS_POLICY, pointer=True),
        Field("backoffLimit", 7, Scalar.INT32, pointer=True),
        Field("backoffLimitPerIndex", 12, Scalar.INT32, pointer=True),
        Field("maxFailedIndexes", 13, Scalar.INT32, pointer=True),
        Field("selector", 4, LABEL_SELECTOR, pointer=True),
        Field("manualSelector", 5, Scalar.BOOL, pointer=True),
        Field("template", 6, POD_TEMPLATE_SPEC, required=True),
        Field("ttlSecondsAfterFinished", 8, Scalar.INT32, pointer=True),
        Field("completionMode", 9, Scalar.STRING, pointer=True),
        Field("suspend", 10, Scalar.BOOL, pointer=True),
        Field("podReplacementPolicy", 14, Scalar.STRING, pointer=True),
        Field("managedBy", 15, Scalar.STRING, pointer=True),
    ),
)

JOB_TEMPLATE_SPEC = Message(
    BATCH + "JobTemplateSpec",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, JOB_SPEC),
    ),
)

CRON_JOB_SPEC = Message(
    BATCH + "CronJobSpec",
    (
        Field("schedule", 1, Scalar.STRING, required=True),
        Field("timeZone", 8, Scalar.STRING, pointer=True),
        Field("startingDeadlineSeconds", 2, Scalar.INT64, pointer=True),
        Field("concurrencyPolicy", 3, Scalar.STRING),
        Field("suspend", 4, Scalar.BOOL, pointer=True),
        Field("jobTemplate", 5, JOB_TEMPLATE_SPEC, required=True),
        Field("successfulJobsHistoryLimit", 6, Scalar.INT32, pointer=True),
        Field("failedJobsHistoryLimit", 7, Scalar.INT32, pointer=True),
    ),
)

CRON_JOB_STATUS = Message(
    BATCH + "CronJobStatus",
    (
        Field("active", 1, ListOf(OBJECT_REFERENCE)),
        Field("lastScheduleTime", 4, Scalar.TIME, pointer=True),
        Field("lastSuccessfulTime", 5, Scalar.TIME, pointer=True),
    ),
)

CRON_JOB = Message(
    BATCH + "CronJob",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, CRON_JOB_SPEC),
        Field("status", 3, CRON_JOB_STATUS),
    ),
)

JOB_CONDITION = Message(
    BATCH + "JobCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastProbeTime", 3, Scalar.TIME),
        Field("lastTransitionTime", 4, Scalar.TIME),
        Field("reason", 5, Scalar.STRING),
        Field("message", 6, Scalar.STRING),
    ),
)

UNCOUNTED_TERMINATED_PODS = Message(
    BATCH + "UncountedTerminatedPods",
    (
        Field("succeeded", 1, ListOf(Scalar.STRING)),
        Field("failed", 2, ListOf(Scalar.STRING)),
    ),
)

JOB_STATUS = Message(
    BATCH + "JobStatus",
    (
        Field("conditions", 1, ListOf(JOB_CONDITION)),
        Field("startTime", 2, Scalar.TIME, pointer=True),
        Field("completionTime", 3, Scalar.TIME, pointer=True),
        Field("active", 4, Scalar.INT32),
        Field("succeeded", 5, Scalar.INT32),
        Field("failed", 6, Scalar.INT32),
        Field("terminating", 11, Scalar.INT32, pointer=True),
        Field("completedIndexes", 7, Scalar.STRING),
        Field("failedIndexes", 10, Scalar.STRING, pointer=True),
        Field("uncountedTerminatedPods", 8, UNCOUNTED_TERMINATED_PODS, pointer=True),
        Field("ready", 9, Scalar.INT32, pointer=True),
    ),
)

JOB = Message(
    BATCH + "Job",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, JOB_SPEC),
        Field("status", 3, JOB_STATUS),
    ),
)

SERVICE_BACKEND_PORT = Message(
    NETWORKING + "ServiceBackendPort",
    (
        Field("name", 1, Scalar.STRING),
        Field("number", 2, Scalar.INT32),
    ),
)

INGRESS_SERVICE_BACKEND = Message(
    NETWORKING + "IngressServiceBackend",
    (
        Field("name", 1, Scalar.STRING, required=True),
        Field("port", 2, SERVICE_BACKEND_PORT),
    ),
)

INGRESS_BACKEND = Message(
    NETWORKING + "IngressBackend",
    (
        Field("service", 4, INGRESS_SERVICE_BACKEND, pointer=True),
        Field("resource", 3, TYPED_LOCAL_OBJECT_REFERENCE, pointer=True),
    ),
)

INGRESS_TLS = Message(
    NETWORKING + "IngressTLS",
    (
        Field("hosts", 1, ListOf(Scalar.STRING)),
        Field("secretName", 2, Scalar.STRING),
    ),
)

HTTP_INGRESS_PATH = Message(
    NETWORKING + "HTTPIngressPath",
    (
        Field("path", 1, Scalar.STRING),
        Field("pathType", 3, Scalar.STRING, required=True, pointer=True),
        Field("backend", 2, INGRESS_BACKEND, required=True),
    ),
)

HTTP_INGRESS_RULE_VALUE = Message(
    NETWORKING + "HTTPIngressRuleValue",
    (Field("paths", 1, ListOf(HTTP_INGRESS_PATH), required=True),),
)

INGRESS_RULE = Message(
    NETWORKING + "IngressRule",
    (
        Field("host", 1, Scalar.STRING),
        Field("http", 1, HTTP_INGRESS_RULE_VALUE, pointer=True, within=2),
    ),
)

INGRESS_SPEC = Message(
    NETWORKING + "IngressSpec",
    (
        Field("ingressClassName", 4, Scalar.STRING, pointer=True),
        Field("defaultBackend", 1, INGRESS_BACKEND, pointer=True),
        Field("tls", 2, ListOf(INGRESS_TLS)),
        Field("rules", 3, ListOf(INGRESS_RULE)),
    ),
)

INGRESS_PORT_STATUS = Message(
    NETWORKING + "IngressPortStatus",
    (
        Field("port", 1, Scalar.INT32, required=True),
        Field("protocol", 2, Scalar.STRING, required=True),
        Field("error", 3, Scalar.STRING, pointer=True),
    ),
)

INGRESS_LOAD_BALANCER_INGRESS = Message(
    NETWORKING + "IngressLoadBalancerIngress",
    (
        Field("ip", 1, Scalar.STRING),
        Field("hostname", 2, Scalar.STRING),
        Field("ports", 4, ListOf(INGRESS_PORT_STATUS)),
    ),
)

INGRESS_LOAD_BALANCER_STATUS = Message(
    NETWORKING + "IngressLoadBalancerStatus",
    (Field("ingress", 1, ListOf(INGRESS_LOAD_BALANCER_INGRESS)),),
)

INGRESS_STATUS = Message(
    NETWORKING + "IngressStatus",
    (Field("loadBalancer", 1, INGRESS_LOAD_BALANCER_STATUS),),
)

INGRESS = Message(
    NETWORKING + "Ingress",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, INGRESS_SPEC),
        Field("status", 3, INGRESS_STATUS),
    ),
)

OVERHEAD = Message(
    NODE + "Overhead",
    (Field("podFixed", 1, MapOf(Scalar.QUANTITY)),),
)

SCHEDULING = Message(
    NODE + "Scheduling",
    (
        Field("nodeSelector", 1, MapOf(Scalar.STRING)),
        Field("tolerations", 2, ListOf(TOLERATION)),
    ),
)

RUNTIME_CLASS = Message(
    NODE + "RuntimeClass",
    (
        Field("metadata", 1, OBJECT_META),
        Field("handler", 2, Scalar.STRING, required=True),
        Field("overhead", 3, OVERHEAD, pointer=True),
        Field("scheduling", 4, SCHEDULING, pointer=True),
    ),
)

TOKEN_REQUEST = Message(
    STORAGE + "TokenRequest",
    (
        Field("audience", 1, Scalar.STRING, required=True),
        Field("expirationSeconds", 2, Scalar.INT64, pointer=True),
    ),
)

CSI_DRIVER_SPEC = Message(
    STORAGE + "CSIDriverSpec",
    (
        Field("attachRequired", 1, Scalar.BOOL, pointer=True),
        Field("podInfoOnMount", 2, Scalar.BOOL, pointer=True),
        Field("volumeLifecycleModes", 3, ListOf(Scalar.STRING)),
        Field("storageCapacity", 4, Scalar.BOOL, pointer=True),
        Field("fsGroupPolicy", 5, Scalar.STRING, pointer=True),
        Field("tokenRequests", 6, ListOf(TOKEN_REQUEST)),
        Field("requiresRepublish", 7, Scalar.BOOL, pointer=True),
        Field("seLinuxMount", 8, Scalar.BOOL, pointer=True),
        Field("nodeAllocatableUpdatePeriodSeconds", 9, Scalar.INT64, pointer=True),
        Field("serviceAccountTokenInSecrets", 10, Scalar.BOOL, pointer=True),
        Field("preventPodSchedulingIfMissing", 11, Scalar.BOOL, pointer=True),
    ),
)

CSI_DRIVER = Message(
    STORAGE + "CSIDriver",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, CSI_DRIVER_SPEC, required=True),
    ),
)
