"""ReplicaSet, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api apps/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.pod.podtemplate import POD_TEMPLATE_SPEC
from mooring.api.readonly import workload
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

API = "io.k8s.api.apps.v1."

REPLICA_SET_SPEC = Message(
    API + "ReplicaSetSpec",
    (
        Field("replicas", 1, Scalar.INT32, pointer=True),
        Field("minReadySeconds", 4, Scalar.INT32),
        Field("selector", 2, LABEL_SELECTOR, required=True, pointer=True),
        Field("template", 3, POD_TEMPLATE_SPEC),
    ),
)

REPLICA_SET_CONDITION = Message(
    API + "ReplicaSetCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastTransitionTime", 3, Scalar.TIME),
        Field("reason", 4, Scalar.STRING),
        Field("message", 5, Scalar.STRING),
    ),
)

REPLICA_SET_STATUS = Message(
    API + "ReplicaSetStatus",
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
    API + "ReplicaSet",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, REPLICA_SET_SPEC),
        Field("status", 3, REPLICA_SET_STATUS),
    ),
)

KIND = workload("apps", REPLICA_SET, "rs", "Keeps Pods of one template running. This server runs none.")
