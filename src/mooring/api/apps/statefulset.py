"""StatefulSet, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api apps/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.persistentvolumeclaim import PERSISTENT_VOLUME_CLAIM
from mooring.api.core.pod.podtemplate import POD_TEMPLATE_SPEC
from mooring.api.readonly import workload
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

API = "io.k8s.api.apps.v1."

ROLLING_UPDATE_STATEFUL_SET_STRATEGY = Message(
    API + "RollingUpdateStatefulSetStrategy",
    (
        Field("partition", 1, Scalar.INT32, pointer=True),
        Field("maxUnavailable", 2, Scalar.INT_OR_STRING, pointer=True),
    ),
)

STATEFUL_SET_UPDATE_STRATEGY = Message(
    API + "StatefulSetUpdateStrategy",
    (
        Field("type", 1, Scalar.STRING),
        Field("rollingUpdate", 2, ROLLING_UPDATE_STATEFUL_SET_STRATEGY, pointer=True),
    ),
)

STATEFUL_SET_PERSISTENT_VOLUME_CLAIM_RETENTION_POLICY = Message(
    API + "StatefulSetPersistentVolumeClaimRetentionPolicy",
    (
        Field("whenDeleted", 1, Scalar.STRING),
        Field("whenScaled", 2, Scalar.STRING),
    ),
)

STATEFUL_SET_ORDINALS = Message(
    API + "StatefulSetOrdinals",
    (Field("start", 1, Scalar.INT32, required=True),),
)

STATEFUL_SET_SPEC = Message(
    API + "StatefulSetSpec",
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
    API + "StatefulSetCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastTransitionTime", 3, Scalar.TIME),
        Field("reason", 4, Scalar.STRING),
        Field("message", 5, Scalar.STRING),
    ),
)

STATEFUL_SET_STATUS = Message(
    API + "StatefulSetStatus",
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
    API + "StatefulSet",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, STATEFUL_SET_SPEC),
        Field("status", 3, STATEFUL_SET_STATUS),
    ),
)

KIND = workload("apps", STATEFUL_SET, "sts", "Keeps Pods with an identity running. This server runs none.")
