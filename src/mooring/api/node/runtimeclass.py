"""RuntimeClass, a read-only kind: a kubelet's informer lists and watches them.

Rules kept here: fields, numbers and names are those of k8s.io/api node/v1 1.36, types.go and generated.proto.
An object that kube-apiserver stored as protobuf is decoded with them; `mooring.api.readonly` says what clients see.
"""

from __future__ import annotations

from mooring.api.core.pod.schema.scheduling import TOLERATION
from mooring.api.readonly import METADATA, read_only_kind
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

API = "io.k8s.api.node.v1."

OVERHEAD = Message(
    API + "Overhead",
    (Field("podFixed", 1, MapOf(Scalar.QUANTITY)),),
)

SCHEDULING = Message(
    API + "Scheduling",
    (
        Field("nodeSelector", 1, MapOf(Scalar.STRING)),
        Field("tolerations", 2, ListOf(TOLERATION)),
    ),
)

RUNTIME_CLASS = Message(
    API + "RuntimeClass",
    (
        Field("metadata", 1, OBJECT_META),
        Field("handler", 2, Scalar.STRING, required=True),
        Field("overhead", 3, OVERHEAD, pointer=True),
        Field("scheduling", 4, SCHEDULING, pointer=True),
    ),
)

SERVED_RUNTIME_CLASS = Message(
    RUNTIME_CLASS.name,
    (
        METADATA,
        Field("handler", 2, Scalar.STRING, "The configuration of the container runtime.", required=True),
        Field("overhead", 3, Scalar.RAW, "What running a Pod costs beside its containers."),
        Field("scheduling", 4, Scalar.RAW, "The nodes that have this runtime."),
    ),
    "A way of running containers that Pods may choose. This server runs none.",
)

KIND = read_only_kind(
    SERVED_RUNTIME_CLASS, "node.k8s.io", stored_fields=RUNTIME_CLASS, storage="runtimeclasses", namespaced=False
)
