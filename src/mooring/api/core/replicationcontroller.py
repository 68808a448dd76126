"""ReplicationController, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api core/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE
from mooring.api.core.pod.podtemplate import POD_TEMPLATE_SPEC
from mooring.api.readonly import workload
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

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

KIND = workload(
    "",
    REPLICATION_CONTROLLER,
    "rc",
    "Keeps Pods of one template running. This server runs none.",
    storage="controllers",
)
