"""PersistentVolumeClaim, a read-only kind.

Rules kept here: fields, numbers and names are those of k8s.io/api core/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE
from mooring.api.core.pod.schema.volume import PERSISTENT_VOLUME_CLAIM_SPEC
from mooring.api.readonly import read_only_kind, spec_and_status
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

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

KIND = read_only_kind(
    spec_and_status(PERSISTENT_VOLUME_CLAIM, "A wish for storage. This server fulfils none."),
    "",
    "pvc",
    stored_fields=PERSISTENT_VOLUME_CLAIM,
    storage="persistentvolumeclaims",
)
