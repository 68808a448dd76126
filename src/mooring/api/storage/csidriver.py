"""CSIDriver, a read-only kind: a kubelet's informer lists and watches them.

Rules kept here: fields, numbers and names are those of k8s.io/api storage/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.readonly import METADATA, read_only_kind
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

API = "io.k8s.api.storage.v1."

TOKEN_REQUEST = Message(
    API + "TokenRequest",
    (
        Field("audience", 1, Scalar.STRING, required=True),
        Field("expirationSeconds", 2, Scalar.INT64, pointer=True),
    ),
)

CSI_DRIVER_SPEC = Message(
    API + "CSIDriverSpec",
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
    API + "CSIDriver",
    (
        Field("metadata", 1, OBJECT_META),
        Field("spec", 2, CSI_DRIVER_SPEC, required=True),
    ),
)

SERVED_CSI_DRIVER = Message(
    CSI_DRIVER.name,
    (METADATA, Field("spec", 2, Scalar.RAW, "What the driver can do.", required=True)),
    "A storage driver of the cluster. This server attaches no volumes.",
)

KIND = read_only_kind(
    SERVED_CSI_DRIVER, "storage.k8s.io", stored_fields=CSI_DRIVER, storage="csidrivers", namespaced=False
)
