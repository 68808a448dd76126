"""Schema of Pod, its spec and the small parts of it.

Rules kept here: data only; numbers, inlined structs and patch keys from k8s.io/api core/v1 (generated.proto, types.go;
docs/protocol/negotiation.md#field-numbers, docs/protocol/patches.md#strategic-merge).
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE, LOCAL_OBJECT_REFERENCE
from mooring.api.core.pod.schema.container import CONTAINER, EPHEMERAL_CONTAINER, RESOURCE_REQUIREMENTS
from mooring.api.core.pod.schema.podstatus import POD_STATUS
from mooring.api.core.pod.schema.scheduling import AFFINITY, POD_SCHEDULING_GATE, TOLERATION, TOPOLOGY_SPREAD_CONSTRAINT
from mooring.api.core.pod.schema.securitycontext import POD_SECURITY_CONTEXT
from mooring.api.core.pod.schema.volume import VOLUME
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

HOST_ALIAS = Message(
    CORE + "HostAlias",
    (
        Field("ip", 1, Scalar.STRING, "The address.", required=True),
        Field("hostnames", 2, ListOf(Scalar.STRING), "Its names."),
    ),
    "One line of /etc/hosts.",
)

POD_DNS_CONFIG_OPTION = Message(
    CORE + "PodDNSConfigOption",
    (
        Field("name", 1, Scalar.STRING, "Name of the option."),
        Field("value", 2, Scalar.STRING, "Its value.", pointer=True),
    ),
    "One option of the resolver.",
)

POD_DNS_CONFIG = Message(
    CORE + "PodDNSConfig",
    (
        Field("nameservers", 1, ListOf(Scalar.STRING), "More name servers."),
        Field("searches", 2, ListOf(Scalar.STRING), "More search domains."),
        Field("options", 3, ListOf(POD_DNS_CONFIG_OPTION), "More options."),
    ),
    "What the resolver is told besides dnsPolicy.",
)

POD_READINESS_GATE = Message(
    CORE + "PodReadinessGate",
    (Field("conditionType", 1, Scalar.STRING, "Type of the condition.", required=True),),
    "A condition without which the Pod is not ready.",
)

POD_OS = Message(
    CORE + "PodOS",
    (Field("name", 1, Scalar.STRING, "linux or windows.", required=True),),
    "The operating system.",
)

POD_RESOURCE_CLAIM = Message(
    CORE + "PodResourceClaim",
    (
        Field("name", 1, Scalar.STRING, "Name in the Pod.", required=True),
        Field("resourceClaimName", 3, Scalar.STRING, "The claim.", pointer=True),
        Field("resourceClaimTemplateName", 4, Scalar.STRING, "Template from which a claim is made.", pointer=True),
    ),
    "A claim that containers may use by name.",
)

POD_SPEC = Message(
    CORE + "PodSpec",
    (
        Field(
            "volumes",
            1,
            ListOf(VOLUME),
            "Volumes that containers may mount.",
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field(
            "initContainers",
            20,
            ListOf(CONTAINER),
            "Containers that run, one after the other, before all others.",
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field(
            "containers",
            2,
            ListOf(CONTAINER),
            "The containers, at least one. Their list cannot be changed.",
            required=True,
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field(
            "ephemeralContainers",
            34,
            ListOf(EPHEMERAL_CONTAINER),
            "Containers put in later to look at the others; never when the Pod is made.",
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field(
            "restartPolicy",
            3,
            Scalar.STRING,
            "Always, OnFailure or Never; Always when not given.",
            enum=("Always", "Never", "OnFailure"),
        ),
        Field(
            "terminationGracePeriodSeconds", 4, Scalar.INT64, "Time to stop; 30 seconds when not given.", pointer=True
        ),
        Field("activeDeadlineSeconds", 5, Scalar.INT64, "How long the Pod may run.", pointer=True),
        Field(
            "dnsPolicy",
            6,
            Scalar.STRING,
            "ClusterFirst, ClusterFirstWithHostNet, Default or None; ClusterFirst when not given.",
            enum=("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        ),
        Field("nodeSelector", 7, MapOf(Scalar.STRING), "Labels that the node must have.", map_atomic=True),
        Field("serviceAccountName", 8, Scalar.STRING, "Service account that the Pod runs as."),
        Field("serviceAccount", 9, Scalar.STRING, "Deprecated name of serviceAccountName."),
        Field("automountServiceAccountToken", 21, Scalar.BOOL, "Whether a token is mounted.", pointer=True),
        Field("nodeName", 10, Scalar.STRING, "The node that runs the Pod; empty until it is scheduled."),
        Field("hostNetwork", 11, Scalar.BOOL, "Whether it uses the node's network."),
        Field("hostPID", 12, Scalar.BOOL, "Whether it sees the node's processes."),
        Field("hostIPC", 13, Scalar.BOOL, "Whether it shares the node's IPC."),
        Field("shareProcessNamespace", 27, Scalar.BOOL, "Whether containers see each other's processes.", pointer=True),
        Field("securityContext", 14, POD_SECURITY_CONTEXT, "What all containers may do.", pointer=True),
        Field(
            "imagePullSecrets",
            15,
            ListOf(LOCAL_OBJECT_REFERENCE),
            "Secrets with which images are pulled.",
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field("hostname", 16, Scalar.STRING, "Host name of the Pod; its name when not given."),
        Field("subdomain", 17, Scalar.STRING, "Subdomain of its full host name."),
        Field("affinity", 18, AFFINITY, "Where the Pod is right.", pointer=True),
        Field("schedulerName", 19, Scalar.STRING, "Who schedules it; default-scheduler when not given."),
        Field(
            "tolerations", 22, ListOf(TOLERATION), "Taints that do not keep it away. Only additions may be made later."
        ),
        Field(
            "hostAliases",
            23,
            ListOf(HOST_ALIAS),
            "Lines for /etc/hosts.",
            patch="merge",
            patch_key="ip",
            list_keys=("ip",),
        ),
        Field("priorityClassName", 24, Scalar.STRING, "Name of its priority."),
        Field("priority", 25, Scalar.INT32, "Its priority as a number.", pointer=True),
        Field("dnsConfig", 26, POD_DNS_CONFIG, "What the resolver is told besides dnsPolicy.", pointer=True),
        Field("readinessGates", 28, ListOf(POD_READINESS_GATE), "Conditions without which it is not ready."),
        Field("runtimeClassName", 29, Scalar.STRING, "Class of the runtime.", pointer=True),
        Field(
            "enableServiceLinks",
            30,
            Scalar.BOOL,
            "Whether services become variables; true when not given.",
            pointer=True,
        ),
        Field(
            "preemptionPolicy",
            31,
            Scalar.STRING,
            "Never, or PreemptLowerPriority.",
            pointer=True,
            enum=("Never", "PreemptLowerPriority"),
        ),
        Field("overhead", 32, MapOf(Scalar.QUANTITY), "Resources that running a Pod takes besides its containers."),
        Field(
            "topologySpreadConstraints",
            33,
            ListOf(TOPOLOGY_SPREAD_CONSTRAINT),
            "How evenly Pods are spread.",
            patch="merge",
            patch_key="topologyKey",
            list_keys=(
                "topologyKey",
                "whenUnsatisfiable",
            ),
        ),
        Field("setHostnameAsFQDN", 35, Scalar.BOOL, "Whether the host name is the full one.", pointer=True),
        Field("os", 36, POD_OS, "Its operating system.", pointer=True),
        Field("hostUsers", 37, Scalar.BOOL, "Whether it uses the node's user namespace.", pointer=True),
        Field(
            "schedulingGates",
            38,
            ListOf(POD_SCHEDULING_GATE),
            "What must happen before it is scheduled.",
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field(
            "resourceClaims",
            39,
            ListOf(POD_RESOURCE_CLAIM),
            "Claims that containers may use.",
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field("resources", 40, RESOURCE_REQUIREMENTS, "Resources of the Pod as a whole.", pointer=True),
        Field("hostnameOverride", 41, Scalar.STRING, "Host name in place of all others.", pointer=True),
    ),
    "What is to run, and how.",
)

POD = Message(
    CORE + "Pod",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata."),
        Field("spec", 2, POD_SPEC, "What is to run, and how."),
        Field("status", 3, POD_STATUS, "What is known about it; its node reports it."),
    ),
    "Containers that run together on one node.",
)
