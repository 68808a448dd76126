"""DaemonSet, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api apps/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.pod.podtemplate import POD_TEMPLATE_SPEC
from mooring.api.readonly import workload
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

API = "io.k8s.api.apps.v1."

ROLLING_UPDATE_DAEMON_SET = Message(
    API + "RollingUpdateDaemonSet",
    (
        Field("maxUnavailable", 1, Scalar.INT_OR_STRING, pointer=True),
        Field("maxSurge", 2, Scalar.INT_OR_STRING, pointer=True),
    ),
)

DAEMON_SET_UPDATE_STRATEGY = Message(
    API + "DaemonSetUpdateStrategy",
    (
        Field("type", 1, Scalar.STRING),
        Field("rollingUpdate", 2, ROLLING_UPDATE_DAEMON_SET, pointer=True),
    ),
)

DAEMON_SET_SPEC = Message(
    API + "DaemonSetSpec",
    (
        Field("selector", 1, LABEL_SELECTOR, required=True, pointer=True),
        Field("template", 2, POD_TEMPLATE_SPEC, required=True),
        Field("updateStrategy", 3, DAEMON_SET_UPDATE_STRATEGY),
        Field("minReadySeconds", 4, Scalar.INT32),
        Field("revisionHistoryLimit", 6, Scalar.INT32, pointer=True),
    ),
)

DAEMON_SET_CONDITION = Message(
    API + "DaemonSetCondition",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
        Field("lastTransitionTime", 3, Scalar.TIME),
        Field("reason", 4, Scalar.STRING),
        Field("message", 5, Scalar.STRING),
    ),
)

DAEMON_SET_STATUS = Message(
    API + "DaemonSetStatus",
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
    API + "DaemonSet",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, DAEMON_SET_SPEC),
        Field("status", 3, DAEMON_SET_STATUS),
    ),
)

KIND = workload("apps", DAEMON_SET, "ds", "Keeps one Pod running on each node. This server runs none.")
