"""Deployment, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api apps/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.pod.podtemplate import POD_TEMPLATE_SPEC
from mooring.api.readonly import workload
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

API = "io.k8s.api.apps.v1."

ROLLING_UPDATE_DEPLOYMENT = Message(
    API + "RollingUpdateDeployment",
    (
        Field("maxUnavailable", 1, Scalar.INT_OR_STRING, pointer=True),
        Field("maxSurge", 2, Scalar.INT_OR_STRING, pointer=True),
    ),
)

DEPLOYMENT_STRATEGY = Message(
    API + "DeploymentStrategy",
    (
        Field("type", 1, Scalar.STRING),
        Field("rollingUpdate", 2, ROLLING_UPDATE_DEPLOYMENT, pointer=True),
    ),
)

DEPLOYMENT_SPEC = Message(
    API + "DeploymentSpec",
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
    API + "DeploymentCondition",
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
    API + "DeploymentStatus",
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
    API + "Deployment",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, DEPLOYMENT_SPEC),
        Field("status", 3, DEPLOYMENT_STATUS),
    ),
)

KIND = workload("apps", DEPLOYMENT, "deploy", "Rolls out Pods of a changing template. This server runs none.")
