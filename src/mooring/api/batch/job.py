"""Job, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api batch/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.pod.podtemplate import POD_TEMPLATE_SPEC
from mooring.api.readonly import workload
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

API = "io.k8s.api.batch.v1."

POD_FAILURE_POLICY_ON_EXIT_CODES_REQUIREMENT = Message(
    API + "PodFailurePolicyOnExitCodesRequirement",
    (
        Field("containerName", 1, Scalar.STRING, pointer=True),
        Field("operator", 2, Scalar.STRING, required=True),
        Field("values", 3, ListOf(Scalar.INT32), required=True),
    ),
)

POD_FAILURE_POLICY_ON_POD_CONDITIONS_PATTERN = Message(
    API + "PodFailurePolicyOnPodConditionsPattern",
    (
        Field("type", 1, Scalar.STRING, required=True),
        Field("status", 2, Scalar.STRING, required=True),
    ),
)

POD_FAILURE_POLICY_RULE = Message(
    API + "PodFailurePolicyRule",
    (
        Field("action", 1, Scalar.STRING, required=True),
        Field("onExitCodes", 2, POD_FAILURE_POLICY_ON_EXIT_CODES_REQUIREMENT, pointer=True),
        Field("onPodConditions", 3, ListOf(POD_FAILURE_POLICY_ON_POD_CONDITIONS_PATTERN)),
    ),
)

POD_FAILURE_POLICY = Message(
    API + "PodFailurePolicy",
    (Field("rules", 1, ListOf(POD_FAILURE_POLICY_RULE), required=True),),
)

SUCCESS_POLICY_RULE = Message(
    API + "SuccessPolicyRule",
    (
        Field("succeededIndexes", 1, Scalar.STRING, pointer=True),
        Field("succeededCount", 2, Scalar.INT32, pointer=True),
    ),
)

SUCCESS_POLICY = Message(
    API + "SuccessPolicy",
    (Field("rules", 1, ListOf(SUCCESS_POLICY_RULE), required=True),),
)

JOB_SPEC = Message(
    API + "JobSpec",
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

JOB_CONDITION = Message(
    API + "JobCondition",
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
    API + "UncountedTerminatedPods",
    (
        Field("succeeded", 1, ListOf(Scalar.STRING)),
        Field("failed", 2, ListOf(Scalar.STRING)),
    ),
)

JOB_STATUS = Message(
    API + "JobStatus",
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
    API + "Job",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, JOB_SPEC),
        Field("status", 3, JOB_STATUS),
    ),
)

KIND = workload("batch", JOB, "", "Runs Pods until they succeed. This server runs none.")
