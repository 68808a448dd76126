"""CronJob, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api batch/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.batch.job import JOB_SPEC
from mooring.api.core.objectreference import OBJECT_REFERENCE
from mooring.api.readonly import workload
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

API = "io.k8s.api.batch.v1."

JOB_TEMPLATE_SPEC = Message(
    API + "JobTemplateSpec",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, JOB_SPEC),
    ),
)

CRON_JOB_SPEC = Message(
    API + "CronJobSpec",
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
    API + "CronJobStatus",
    (
        Field("active", 1, ListOf(OBJECT_REFERENCE)),
        Field("lastScheduleTime", 4, Scalar.TIME, pointer=True),
        Field("lastSuccessfulTime", 5, Scalar.TIME, pointer=True),
    ),
)

CRON_JOB = Message(
    API + "CronJob",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, CRON_JOB_SPEC),
        Field("status", 3, CRON_JOB_STATUS),
    ),
)

KIND = workload("batch", CRON_JOB, "cj", "Makes Jobs at times. This server runs none.")
