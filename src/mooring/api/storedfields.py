"""Fields of the read-only kinds as kube-apiserver stores them in protobuf (`mooring.api.readonly` says what clients see).

Rules kept here:
* Fields, numbers and names are those of types.go and generated.proto in k8s.io/api 1.36. There are no descriptions.
* A line without an indent is the name of a message. Below it each line is a field: its type, its name and its number, as in
  generated.proto. The type is a `Scalar` by its value, or a message: of the same package by its last word, of another by its full
  name. A message stands above those that use it.
* `required`, `pointer` and `within N` are those of `Field`.
"""

from __future__ import annotations

import re

from mooring.api.core.objectreference import OBJECT_REFERENCE
from mooring.api.core.pod.podtemplate import POD_TEMPLATE_SPEC
from mooring.api.core.pod.schema.scheduling import NODE_SELECTOR, TOLERATION
from mooring.api.core.pod.schema.volume import (
    HOST_PATH_VOLUME_SOURCE,
    NFS_VOLUME_SOURCE,
    PERSISTENT_VOLUME_CLAIM_SPEC,
    TYPED_LOCAL_OBJECT_REFERENCE,
)
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar, Type

_ELSEWHERE = (
    OBJECT_META,
    LABEL_SELECTOR,
    OBJECT_REFERENCE,
    POD_TEMPLATE_SPEC,
    NODE_SELECTOR,
    TOLERATION,
    HOST_PATH_VOLUME_SOURCE,
    NFS_VOLUME_SOURCE,
    PERSISTENT_VOLUME_CLAIM_SPEC,
    TYPED_LOCAL_OBJECT_REFERENCE,
)
"""Messages that kinds have which are written, too."""
_FIELD = re.compile(r" {2}(repeated |map )?(\S+) (\w+) = (\d+)( required)?( pointer)?(?: within (\d+))?")
_TEXT = """\
io.k8s.api.core.v1.ReplicationControllerSpec
  int32 replicas = 1 pointer
  int32 minReadySeconds = 4
  map string selector = 2
  PodTemplateSpec template = 3 pointer
io.k8s.api.core.v1.ReplicationControllerCondition
  string type = 1 required
  string status = 2 required
  date-time lastTransitionTime = 3
  string reason = 4
  string message = 5
io.k8s.api.core.v1.ReplicationControllerStatus
  int32 replicas = 1 required
  int32 fullyLabeledReplicas = 2
  int32 readyReplicas = 4
  int32 availableReplicas = 5
  int64 observedGeneration = 3
  repeated ReplicationControllerCondition conditions = 6
io.k8s.api.core.v1.ReplicationController
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  ReplicationControllerSpec spec = 2
  ReplicationControllerStatus status = 3
io.k8s.api.core.v1.GCEPersistentDiskVolumeSource
  string pdName = 1 required
  string fsType = 2
  int32 partition = 3
  boolean readOnly = 4
io.k8s.api.core.v1.AWSElasticBlockStoreVolumeSource
  string volumeID = 1 required
  string fsType = 2
  int32 partition = 3
  boolean readOnly = 4
io.k8s.api.core.v1.GlusterfsPersistentVolumeSource
  string endpoints = 1 required
  string path = 2 required
  boolean readOnly = 3
  string endpointsNamespace = 4 pointer
io.k8s.api.core.v1.SecretReference
  string name = 1
  string namespace = 2
io.k8s.api.core.v1.RBDPersistentVolumeSource
  repeated string monitors = 1 required
  string image = 2 required
  string fsType = 3
  string pool = 4
  string user = 5
  string keyring = 6
  SecretReference secretRef = 7 pointer
  boolean readOnly = 8
io.k8s.api.core.v1.ISCSIPersistentVolumeSource
  string targetPortal = 1 required
  string iqn = 2 required
  int32 lun = 3 required
  string iscsiInterface = 4
  string fsType = 5
  boolean readOnly = 6
  repeated string portals = 7
  boolean chapAuthDiscovery = 8
  boolean chapAuthSession = 11
  SecretReference secretRef = 10 pointer
  string initiatorName = 12 pointer
io.k8s.api.core.v1.CinderPersistentVolumeSource
  string volumeID = 1 required
  string fsType = 2
  boolean readOnly = 3
  SecretReference secretRef = 4 pointer
io.k8s.api.core.v1.CephFSPersistentVolumeSource
  repeated string monitors = 1 required
  string path = 2
  string user = 3
  string secretFile = 4
  SecretReference secretRef = 5 pointer
  boolean readOnly = 6
io.k8s.api.core.v1.FCVolumeSource
  repeated string targetWWNs = 1
  int32 lun = 2 pointer
  string fsType = 3
  boolean readOnly = 4
  repeated string wwids = 5
io.k8s.api.core.v1.FlockerVolumeSource
  string datasetName = 1
  string datasetUUID = 2
io.k8s.api.core.v1.FlexPersistentVolumeSource
  string driver = 1 required
  string fsType = 2
  SecretReference secretRef = 3 pointer
  boolean readOnly = 4
  map string options = 5
io.k8s.api.core.v1.AzureFilePersistentVolumeSource
  string secretName = 1 required
  string shareName = 2 required
  boolean readOnly = 3
  string secretNamespace = 4 required pointer
io.k8s.api.core.v1.VsphereVirtualDiskVolumeSource
  string volumePath = 1 required
  string fsType = 2
  string storagePolicyName = 3
  string storagePolicyID = 4
io.k8s.api.core.v1.QuobyteVolumeSource
  string registry = 1 required
  string volume = 2 required
  boolean readOnly = 3
  string user = 4
  string group = 5
  string tenant = 6
io.k8s.api.core.v1.AzureDiskVolumeSource
  string diskName = 1 required
  string diskURI = 2 required
  string cachingMode = 3 pointer
  string fsType = 4 pointer
  boolean readOnly = 5 pointer
  string kind = 6 pointer
io.k8s.api.core.v1.PhotonPersistentDiskVolumeSource
  string pdID = 1 required
  string fsType = 2
io.k8s.api.core.v1.PortworxVolumeSource
  string volumeID = 1 required
  string fsType = 2
  boolean readOnly = 3
io.k8s.api.core.v1.ScaleIOPersistentVolumeSource
  string gateway = 1 required
  string system = 2 required
  SecretReference secretRef = 3 required pointer
  boolean sslEnabled = 4
  string protectionDomain = 5
  string storagePool = 6
  string storageMode = 7
  string volumeName = 8
  string fsType = 9
  boolean readOnly = 10
io.k8s.api.core.v1.LocalVolumeSource
  string path = 1 required
  string fsType = 2 pointer
io.k8s.api.core.v1.StorageOSPersistentVolumeSource
  string volumeName = 1
  string volumeNamespace = 2
  string fsType = 3
  boolean readOnly = 4
  ObjectReference secretRef = 5 pointer
io.k8s.api.core.v1.CSIPersistentVolumeSource
  string driver = 1 required
  string volumeHandle = 2 required
  boolean readOnly = 3
  string fsType = 4
  map string volumeAttributes = 5
  SecretReference controllerPublishSecretRef = 6 pointer
  SecretReference nodeStageSecretRef = 7 pointer
  SecretReference nodePublishSecretRef = 8 pointer
  SecretReference controllerExpandSecretRef = 9 pointer
  SecretReference nodeExpandSecretRef = 10 pointer
io.k8s.api.core.v1.VolumeNodeAffinity
  NodeSelector required = 1 pointer
io.k8s.api.core.v1.PersistentVolumeSpec
  map quantity capacity = 1
  GCEPersistentDiskVolumeSource gcePersistentDisk = 1 pointer within 2
  AWSElasticBlockStoreVolumeSource awsElasticBlockStore = 2 pointer within 2
  HostPathVolumeSource hostPath = 3 pointer within 2
  GlusterfsPersistentVolumeSource glusterfs = 4 pointer within 2
  NFSVolumeSource nfs = 5 pointer within 2
  RBDPersistentVolumeSource rbd = 6 pointer within 2
  ISCSIPersistentVolumeSource iscsi = 7 pointer within 2
  CinderPersistentVolumeSource cinder = 8 pointer within 2
  CephFSPersistentVolumeSource cephfs = 9 pointer within 2
  FCVolumeSource fc = 10 pointer within 2
  FlockerVolumeSource flocker = 11 pointer within 2
  FlexPersistentVolumeSource flexVolume = 12 pointer within 2
  AzureFilePersistentVolumeSource azureFile = 13 pointer within 2
  VsphereVirtualDiskVolumeSource vsphereVolume = 14 pointer within 2
  QuobyteVolumeSource quobyte = 15 pointer within 2
  AzureDiskVolumeSource azureDisk = 16 pointer within 2
  PhotonPersistentDiskVolumeSource photonPersistentDisk = 17 pointer within 2
  PortworxVolumeSource portworxVolume = 18 pointer within 2
  ScaleIOPersistentVolumeSource scaleIO = 19 pointer within 2
  LocalVolumeSource local = 20 pointer within 2
  StorageOSPersistentVolumeSource storageos = 21 pointer within 2
  CSIPersistentVolumeSource csi = 22 pointer within 2
  repeated string accessModes = 3
  ObjectReference claimRef = 4 pointer
  string persistentVolumeReclaimPolicy = 5
  string storageClassName = 6
  repeated string mountOptions = 7
  string volumeMode = 8 pointer
  VolumeNodeAffinity nodeAffinity = 9 pointer
  string volumeAttributesClassName = 10 pointer
io.k8s.api.core.v1.PersistentVolumeStatus
  string phase = 1
  string message = 2
  string reason = 3
  date-time lastPhaseTransitionTime = 4 pointer
io.k8s.api.core.v1.PersistentVolume
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  PersistentVolumeSpec spec = 2
  PersistentVolumeStatus status = 3
io.k8s.api.core.v1.PersistentVolumeClaimCondition
  string type = 1 required
  string status = 2 required
  date-time lastProbeTime = 3
  date-time lastTransitionTime = 4
  string reason = 5
  string message = 6
io.k8s.api.core.v1.ModifyVolumeStatus
  string targetVolumeAttributesClassName = 1
  string status = 2 required
io.k8s.api.core.v1.PersistentVolumeClaimStatus
  string phase = 1
  repeated string accessModes = 2
  map quantity capacity = 3
  repeated PersistentVolumeClaimCondition conditions = 4
  map quantity allocatedResources = 5
  map string allocatedResourceStatuses = 7
  string currentVolumeAttributesClassName = 8 pointer
  ModifyVolumeStatus modifyVolumeStatus = 9 pointer
io.k8s.api.core.v1.PersistentVolumeClaim
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  PersistentVolumeClaimSpec spec = 2
  PersistentVolumeClaimStatus status = 3
io.k8s.api.apps.v1.RollingUpdateDaemonSet
  int-or-string maxUnavailable = 1 pointer
  int-or-string maxSurge = 2 pointer
io.k8s.api.apps.v1.DaemonSetUpdateStrategy
  string type = 1
  RollingUpdateDaemonSet rollingUpdate = 2 pointer
io.k8s.api.apps.v1.DaemonSetSpec
  io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector selector = 1 required pointer
  io.k8s.api.core.v1.PodTemplateSpec template = 2 required
  DaemonSetUpdateStrategy updateStrategy = 3
  int32 minReadySeconds = 4
  int32 revisionHistoryLimit = 6 pointer
io.k8s.api.apps.v1.DaemonSetCondition
  string type = 1 required
  string status = 2 required
  date-time lastTransitionTime = 3
  string reason = 4
  string message = 5
io.k8s.api.apps.v1.DaemonSetStatus
  int32 currentNumberScheduled = 1 required
  int32 numberMisscheduled = 2 required
  int32 desiredNumberScheduled = 3 required
  int32 numberReady = 4 required
  int64 observedGeneration = 5
  int32 updatedNumberScheduled = 6
  int32 numberAvailable = 7
  int32 numberUnavailable = 8
  int32 collisionCount = 9 pointer
  repeated DaemonSetCondition conditions = 10
io.k8s.api.apps.v1.DaemonSet
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  DaemonSetSpec spec = 2
  DaemonSetStatus status = 3
io.k8s.api.apps.v1.RollingUpdateDeployment
  int-or-string maxUnavailable = 1 pointer
  int-or-string maxSurge = 2 pointer
io.k8s.api.apps.v1.DeploymentStrategy
  string type = 1
  RollingUpdateDeployment rollingUpdate = 2 pointer
io.k8s.api.apps.v1.DeploymentSpec
  int32 replicas = 1 pointer
  io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector selector = 2 required pointer
  io.k8s.api.core.v1.PodTemplateSpec template = 3 required
  DeploymentStrategy strategy = 4
  int32 minReadySeconds = 5
  int32 revisionHistoryLimit = 6 pointer
  boolean paused = 7
  int32 progressDeadlineSeconds = 9 pointer
io.k8s.api.apps.v1.DeploymentCondition
  string type = 1 required
  string status = 2 required
  date-time lastUpdateTime = 6
  date-time lastTransitionTime = 7
  string reason = 4
  string message = 5
io.k8s.api.apps.v1.DeploymentStatus
  int64 observedGeneration = 1
  int32 replicas = 2
  int32 updatedReplicas = 3
  int32 readyReplicas = 7
  int32 availableReplicas = 4
  int32 unavailableReplicas = 5
  int32 terminatingReplicas = 9 pointer
  repeated DeploymentCondition conditions = 6
  int32 collisionCount = 8 pointer
io.k8s.api.apps.v1.Deployment
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  DeploymentSpec spec = 2
  DeploymentStatus status = 3
io.k8s.api.apps.v1.ReplicaSetSpec
  int32 replicas = 1 pointer
  int32 minReadySeconds = 4
  io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector selector = 2 required pointer
  io.k8s.api.core.v1.PodTemplateSpec template = 3
io.k8s.api.apps.v1.ReplicaSetCondition
  string type = 1 required
  string status = 2 required
  date-time lastTransitionTime = 3
  string reason = 4
  string message = 5
io.k8s.api.apps.v1.ReplicaSetStatus
  int32 replicas = 1 required
  int32 fullyLabeledReplicas = 2
  int32 readyReplicas = 4
  int32 availableReplicas = 5
  int32 terminatingReplicas = 7 pointer
  int64 observedGeneration = 3
  repeated ReplicaSetCondition conditions = 6
io.k8s.api.apps.v1.ReplicaSet
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  ReplicaSetSpec spec = 2
  ReplicaSetStatus status = 3
io.k8s.api.apps.v1.RollingUpdateStatefulSetStrategy
  int32 partition = 1 pointer
  int-or-string maxUnavailable = 2 pointer
io.k8s.api.apps.v1.StatefulSetUpdateStrategy
  string type = 1
  RollingUpdateStatefulSetStrategy rollingUpdate = 2 pointer
io.k8s.api.apps.v1.StatefulSetPersistentVolumeClaimRetentionPolicy
  string whenDeleted = 1
  string whenScaled = 2
io.k8s.api.apps.v1.StatefulSetOrdinals
  int32 start = 1 required
io.k8s.api.apps.v1.StatefulSetSpec
  int32 replicas = 1 pointer
  io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector selector = 2 required pointer
  io.k8s.api.core.v1.PodTemplateSpec template = 3 required
  repeated io.k8s.api.core.v1.PersistentVolumeClaim volumeClaimTemplates = 4
  string serviceName = 5 required
  string podManagementPolicy = 6
  StatefulSetUpdateStrategy updateStrategy = 7
  int32 revisionHistoryLimit = 8 pointer
  int32 minReadySeconds = 9
  StatefulSetPersistentVolumeClaimRetentionPolicy persistentVolumeClaimRetentionPolicy = 10 pointer
  StatefulSetOrdinals ordinals = 11 pointer
io.k8s.api.apps.v1.StatefulSetCondition
  string type = 1 required
  string status = 2 required
  date-time lastTransitionTime = 3
  string reason = 4
  string message = 5
io.k8s.api.apps.v1.StatefulSetStatus
  int64 observedGeneration = 1
  int32 replicas = 2 required
  int32 readyReplicas = 3
  int32 currentReplicas = 4
  int32 updatedReplicas = 5
  string currentRevision = 6
  string updateRevision = 7
  int32 collisionCount = 9 pointer
  repeated StatefulSetCondition conditions = 10
  int32 availableReplicas = 11 required
io.k8s.api.apps.v1.StatefulSet
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  StatefulSetSpec spec = 2
  StatefulSetStatus status = 3
io.k8s.api.batch.v1.PodFailurePolicyOnExitCodesRequirement
  string containerName = 1 pointer
  string operator = 2 required
  repeated int32 values = 3 required
io.k8s.api.batch.v1.PodFailurePolicyOnPodConditionsPattern
  string type = 1 required
  string status = 2 required
io.k8s.api.batch.v1.PodFailurePolicyRule
  string action = 1 required
  PodFailurePolicyOnExitCodesRequirement onExitCodes = 2 pointer
  repeated PodFailurePolicyOnPodConditionsPattern onPodConditions = 3
io.k8s.api.batch.v1.PodFailurePolicy
  repeated PodFailurePolicyRule rules = 1 required
io.k8s.api.batch.v1.SuccessPolicyRule
  string succeededIndexes = 1 pointer
  int32 succeededCount = 2 pointer
io.k8s.api.batch.v1.SuccessPolicy
  repeated SuccessPolicyRule rules = 1 required
io.k8s.api.batch.v1.JobSpec
  int32 parallelism = 1 pointer
  int32 completions = 2 pointer
  int64 activeDeadlineSeconds = 3 pointer
  PodFailurePolicy podFailurePolicy = 11 pointer
  SuccessPolicy successPolicy = 16 pointer
  int32 backoffLimit = 7 pointer
  int32 backoffLimitPerIndex = 12 pointer
  int32 maxFailedIndexes = 13 pointer
  io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector selector = 4 pointer
  boolean manualSelector = 5 pointer
  io.k8s.api.core.v1.PodTemplateSpec template = 6 required
  int32 ttlSecondsAfterFinished = 8 pointer
  string completionMode = 9 pointer
  boolean suspend = 10 pointer
  string podReplacementPolicy = 14 pointer
  string managedBy = 15 pointer
io.k8s.api.batch.v1.JobTemplateSpec
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  JobSpec spec = 2
io.k8s.api.batch.v1.CronJobSpec
  string schedule = 1 required
  string timeZone = 8 pointer
  int64 startingDeadlineSeconds = 2 pointer
  string concurrencyPolicy = 3
  boolean suspend = 4 pointer
  JobTemplateSpec jobTemplate = 5 required
  int32 successfulJobsHistoryLimit = 6 pointer
  int32 failedJobsHistoryLimit = 7 pointer
io.k8s.api.batch.v1.CronJobStatus
  repeated io.k8s.api.core.v1.ObjectReference active = 1
  date-time lastScheduleTime = 4 pointer
  date-time lastSuccessfulTime = 5 pointer
io.k8s.api.batch.v1.CronJob
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  CronJobSpec spec = 2
  CronJobStatus status = 3
io.k8s.api.batch.v1.JobCondition
  string type = 1 required
  string status = 2 required
  date-time lastProbeTime = 3
  date-time lastTransitionTime = 4
  string reason = 5
  string message = 6
io.k8s.api.batch.v1.UncountedTerminatedPods
  repeated string succeeded = 1
  repeated string failed = 2
io.k8s.api.batch.v1.JobStatus
  repeated JobCondition conditions = 1
  date-time startTime = 2 pointer
  date-time completionTime = 3 pointer
  int32 active = 4
  int32 succeeded = 5
  int32 failed = 6
  int32 terminating = 11 pointer
  string completedIndexes = 7
  string failedIndexes = 10 pointer
  UncountedTerminatedPods uncountedTerminatedPods = 8 pointer
  int32 ready = 9 pointer
io.k8s.api.batch.v1.Job
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  JobSpec spec = 2
  JobStatus status = 3
io.k8s.api.networking.v1.ServiceBackendPort
  string name = 1
  int32 number = 2
io.k8s.api.networking.v1.IngressServiceBackend
  string name = 1 required
  ServiceBackendPort port = 2
io.k8s.api.networking.v1.IngressBackend
  IngressServiceBackend service = 4 pointer
  io.k8s.api.core.v1.TypedLocalObjectReference resource = 3 pointer
io.k8s.api.networking.v1.IngressTLS
  repeated string hosts = 1
  string secretName = 2
io.k8s.api.networking.v1.HTTPIngressPath
  string path = 1
  string pathType = 3 required pointer
  IngressBackend backend = 2 required
io.k8s.api.networking.v1.HTTPIngressRuleValue
  repeated HTTPIngressPath paths = 1 required
io.k8s.api.networking.v1.IngressRule
  string host = 1
  HTTPIngressRuleValue http = 1 pointer within 2
io.k8s.api.networking.v1.IngressSpec
  string ingressClassName = 4 pointer
  IngressBackend defaultBackend = 1 pointer
  repeated IngressTLS tls = 2
  repeated IngressRule rules = 3
io.k8s.api.networking.v1.IngressPortStatus
  int32 port = 1 required
  string protocol = 2 required
  string error = 3 pointer
io.k8s.api.networking.v1.IngressLoadBalancerIngress
  string ip = 1
  string hostname = 2
  repeated IngressPortStatus ports = 4
io.k8s.api.networking.v1.IngressLoadBalancerStatus
  repeated IngressLoadBalancerIngress ingress = 1
io.k8s.api.networking.v1.IngressStatus
  IngressLoadBalancerStatus loadBalancer = 1
io.k8s.api.networking.v1.Ingress
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  IngressSpec spec = 2
  IngressStatus status = 3
io.k8s.api.networking.v1.NetworkPolicyPort
  string protocol = 1 pointer
  int-or-string port = 2 pointer
  int32 endPort = 3 pointer
io.k8s.api.networking.v1.IPBlock
  string cidr = 1 required
  repeated string except = 2
io.k8s.api.networking.v1.NetworkPolicyPeer
  io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector podSelector = 1 pointer
  io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector namespaceSelector = 2 pointer
  IPBlock ipBlock = 3 pointer
io.k8s.api.networking.v1.NetworkPolicyIngressRule
  repeated NetworkPolicyPort ports = 1
  repeated NetworkPolicyPeer from = 2
io.k8s.api.networking.v1.NetworkPolicyEgressRule
  repeated NetworkPolicyPort ports = 1
  repeated NetworkPolicyPeer to = 2
io.k8s.api.networking.v1.NetworkPolicySpec
  io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector podSelector = 1 required
  repeated NetworkPolicyIngressRule ingress = 2
  repeated NetworkPolicyEgressRule egress = 3
  repeated string policyTypes = 4
io.k8s.api.networking.v1.NetworkPolicy
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  NetworkPolicySpec spec = 2
io.k8s.api.node.v1.Overhead
  map quantity podFixed = 1
io.k8s.api.node.v1.Scheduling
  map string nodeSelector = 1
  repeated io.k8s.api.core.v1.Toleration tolerations = 2
io.k8s.api.node.v1.RuntimeClass
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  string handler = 2 required
  Overhead overhead = 3 pointer
  Scheduling scheduling = 4 pointer
io.k8s.api.storage.v1.TokenRequest
  string audience = 1 required
  int64 expirationSeconds = 2 pointer
io.k8s.api.storage.v1.CSIDriverSpec
  boolean attachRequired = 1 pointer
  boolean podInfoOnMount = 2 pointer
  repeated string volumeLifecycleModes = 3
  boolean storageCapacity = 4 pointer
  string fsGroupPolicy = 5 pointer
  repeated TokenRequest tokenRequests = 6
  boolean requiresRepublish = 7 pointer
  boolean seLinuxMount = 8 pointer
  int64 nodeAllocatableUpdatePeriodSeconds = 9 pointer
  boolean serviceAccountTokenInSecrets = 10 pointer
  boolean preventPodSchedulingIfMissing = 11 pointer
io.k8s.api.storage.v1.CSIDriver
  io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1
  CSIDriverSpec spec = 2 required
"""


def _read(text: str) -> dict[str, Message]:
    """Return the messages by their names, those of other kinds included."""
    found = {message.name: message for message in _ELSEWHERE}
    for block in re.split(r"\n(?! |$)", text.rstrip()):
        name, *lines = block.split("\n")
        package = name.rpartition(".")[0]
        found[name] = Message(name, tuple(_field(line, package, found) for line in lines))
    return found


def _field(line: str, package: str, found: dict[str, Message]) -> Field:
    parts = _FIELD.fullmatch(line)
    assert parts is not None, line
    form, word, name, number, required, pointer, within = parts.groups()
    kind: Type
    if word in _SCALARS:
        kind = _SCALARS[word]
    else:
        kind = found[word if "." in word else f"{package}.{word}"]
    if form:
        kind = ListOf(kind) if form == "repeated " else MapOf(kind)
    return Field(name, int(number), kind, required=bool(required), pointer=bool(pointer), within=int(within or 0))


_SCALARS = {scalar.value: scalar for scalar in Scalar}
STORED_FIELDS = _read(_TEXT)
"""Messages by name."""
