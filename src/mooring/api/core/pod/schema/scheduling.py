"""Schema of the fields that place a Pod: affinity, tolerations, topology spread.

Rules kept here: data only; numbers, inlined structs and patch keys from k8s.io/api core/v1 (generated.proto, types.go;
docs/protocol/negotiation.md#field-numbers, docs/protocol/patches.md#strategic-merge).
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE
from mooring.apimachinery.metav1 import LABEL_SELECTOR
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

NODE_SELECTOR_REQUIREMENT = Message(
    CORE + "NodeSelectorRequirement",
    (
        Field("key", 1, Scalar.STRING, "The label or field.", required=True),
        Field(
            "operator",
            2,
            Scalar.STRING,
            "In, NotIn, Exists, DoesNotExist, Gt or Lt.",
            required=True,
            enum=("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"),
        ),
        Field("values", 3, ListOf(Scalar.STRING), "What it is compared with."),
    ),
    "A requirement on one label or field of a node.",
)

NODE_SELECTOR_TERM = Message(
    CORE + "NodeSelectorTerm",
    (
        Field("matchExpressions", 1, ListOf(NODE_SELECTOR_REQUIREMENT), "Requirements on labels."),
        Field("matchFields", 2, ListOf(NODE_SELECTOR_REQUIREMENT), "Requirements on fields."),
    ),
    "Requirements that must all hold.",
    atomic=True,
)

NODE_SELECTOR = Message(
    CORE + "NodeSelector",
    (Field("nodeSelectorTerms", 1, ListOf(NODE_SELECTOR_TERM), "The terms.", required=True),),
    "Terms of which one must hold.",
    atomic=True,
)

PREFERRED_SCHEDULING_TERM = Message(
    CORE + "PreferredSchedulingTerm",
    (
        Field("weight", 1, Scalar.INT32, "How much it counts, 1 to 100.", required=True),
        Field("preference", 2, NODE_SELECTOR_TERM, "The term.", required=True),
    ),
    "A term that nodes had better fulfil.",
)

NODE_AFFINITY = Message(
    CORE + "NodeAffinity",
    (
        Field("requiredDuringSchedulingIgnoredDuringExecution", 1, NODE_SELECTOR, "What must hold.", pointer=True),
        Field(
            "preferredDuringSchedulingIgnoredDuringExecution",
            2,
            ListOf(PREFERRED_SCHEDULING_TERM),
            "What had better hold.",
        ),
    ),
    "Which nodes are right.",
)

POD_AFFINITY_TERM = Message(
    CORE + "PodAffinityTerm",
    (
        Field("labelSelector", 1, LABEL_SELECTOR, "Which Pods.", pointer=True),
        Field("namespaces", 2, ListOf(Scalar.STRING), "Namespaces of those Pods."),
        Field("topologyKey", 3, Scalar.STRING, "Label of nodes that says what near means.", required=True),
        Field("namespaceSelector", 4, LABEL_SELECTOR, "Namespaces of those Pods, by their labels.", pointer=True),
        Field("matchLabelKeys", 5, ListOf(Scalar.STRING), "Labels in which those Pods are like this one."),
        Field("mismatchLabelKeys", 6, ListOf(Scalar.STRING), "Labels in which those Pods are unlike this one."),
    ),
    "Pods to be near to, or away from.",
)

WEIGHTED_POD_AFFINITY_TERM = Message(
    CORE + "WeightedPodAffinityTerm",
    (
        Field("weight", 1, Scalar.INT32, "How much it counts, 1 to 100.", required=True),
        Field("podAffinityTerm", 2, POD_AFFINITY_TERM, "The term.", required=True),
    ),
    "A term that had better hold.",
)

POD_AFFINITY = Message(
    CORE + "PodAffinity",
    (
        Field("requiredDuringSchedulingIgnoredDuringExecution", 1, ListOf(POD_AFFINITY_TERM), "What must hold."),
        Field(
            "preferredDuringSchedulingIgnoredDuringExecution",
            2,
            ListOf(WEIGHTED_POD_AFFINITY_TERM),
            "What had better hold.",
        ),
    ),
    "Pods to be near to.",
)

POD_ANTI_AFFINITY = Message(
    CORE + "PodAntiAffinity",
    (
        Field("requiredDuringSchedulingIgnoredDuringExecution", 1, ListOf(POD_AFFINITY_TERM), "What must hold."),
        Field(
            "preferredDuringSchedulingIgnoredDuringExecution",
            2,
            ListOf(WEIGHTED_POD_AFFINITY_TERM),
            "What had better hold.",
        ),
    ),
    "Pods to stay away from.",
)

AFFINITY = Message(
    CORE + "Affinity",
    (
        Field("nodeAffinity", 1, NODE_AFFINITY, "Which nodes are right.", pointer=True),
        Field("podAffinity", 2, POD_AFFINITY, "Pods to be near to.", pointer=True),
        Field("podAntiAffinity", 3, POD_ANTI_AFFINITY, "Pods to stay away from.", pointer=True),
    ),
    "Where the Pod is right.",
)

TOLERATION = Message(
    CORE + "Toleration",
    (
        Field("key", 1, Scalar.STRING, "Key of the taint; all keys when empty."),
        Field(
            "operator",
            2,
            Scalar.STRING,
            "Exists, Equal, Lt or Gt; Equal when not given.",
            enum=("Equal", "Exists", "Gt", "Lt"),
        ),
        Field("value", 3, Scalar.STRING, "Value of the taint."),
        Field(
            "effect",
            4,
            Scalar.STRING,
            "Effect of the taint; all effects when empty.",
            enum=("NoExecute", "NoSchedule", "PreferNoSchedule"),
        ),
        Field(
            "tolerationSeconds",
            5,
            Scalar.INT64,
            "How long NoExecute is tolerated; for ever when not given.",
            pointer=True,
        ),
    ),
    "A taint that does not keep the Pod away.",
)

TOPOLOGY_SPREAD_CONSTRAINT = Message(
    CORE + "TopologySpreadConstraint",
    (
        Field("maxSkew", 1, Scalar.INT32, "How uneven it may be.", required=True),
        Field("topologyKey", 2, Scalar.STRING, "Label of nodes over whose values Pods are spread.", required=True),
        Field(
            "whenUnsatisfiable",
            3,
            Scalar.STRING,
            "DoNotSchedule or ScheduleAnyway.",
            required=True,
            enum=("DoNotSchedule", "ScheduleAnyway"),
        ),
        Field("labelSelector", 4, LABEL_SELECTOR, "Which Pods are counted.", pointer=True),
        Field("minDomains", 5, Scalar.INT32, "How many values there must be.", pointer=True),
        Field(
            "nodeAffinityPolicy",
            6,
            Scalar.STRING,
            "Honor or Ignore: whether nodes that are not right count.",
            pointer=True,
            enum=("Honor", "Ignore"),
        ),
        Field(
            "nodeTaintsPolicy",
            7,
            Scalar.STRING,
            "Honor or Ignore: whether tainted nodes count.",
            pointer=True,
            enum=("Honor", "Ignore"),
        ),
        Field("matchLabelKeys", 8, ListOf(Scalar.STRING), "Labels in which counted Pods are like this one."),
    ),
    "How evenly Pods are spread.",
)

POD_SCHEDULING_GATE = Message(
    CORE + "PodSchedulingGate",
    (Field("name", 1, Scalar.STRING, "Name of the gate.", required=True),),
    "Something that must happen before the Pod is scheduled.",
)
