"""Schema of Node: everything that kubelets report and `kubectl describe node` prints.

Rules kept here: data only; field numbers from k8s.io/api core/v1 generated.proto, patch keys from
docs/protocol/patches.md#strategic-merge: conditions and addresses merge by type, podCIDRs as a set, taints are replaced.
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

TAINT = Message(
    CORE + "Taint",
    (
        Field("key", 1, Scalar.STRING, "Key of the taint.", required=True),
        Field("value", 2, Scalar.STRING, "Value that goes with the key."),
        Field(
            "effect",
            3,
            Scalar.STRING,
            "NoSchedule, PreferNoSchedule or NoExecute.",
            required=True,
            enum=("NoExecute", "NoSchedule", "PreferNoSchedule"),
        ),
        Field("timeAdded", 4, Scalar.TIME, "When the taint was added.", pointer=True),
    ),
    "Keeps away Pods that do not tolerate it.",
)

CONFIG_MAP_SOURCE = Message(
    CORE + "ConfigMapNodeConfigSource",
    (
        Field("namespace", 1, Scalar.STRING, "Namespace of the ConfigMap.", required=True),
        Field("name", 2, Scalar.STRING, "Name of the ConfigMap.", required=True),
        Field("uid", 3, Scalar.STRING, "UID of the ConfigMap; only in status."),
        Field("resourceVersion", 4, Scalar.STRING, "Version of the ConfigMap; only in status."),
        Field("kubeletConfigKey", 5, Scalar.STRING, "The key that holds the configuration.", required=True),
    ),
    "A ConfigMap with a kubelet configuration. Deprecated.",
)

CONFIG_SOURCE = Message(
    CORE + "NodeConfigSource",
    (Field("configMap", 2, CONFIG_MAP_SOURCE, "The ConfigMap to read.", pointer=True),),
    "Where a kubelet configuration comes from. Deprecated and not acted on.",
)

NODE_SPEC = Message(
    CORE + "NodeSpec",
    (
        Field("podCIDR", 1, Scalar.STRING, "The first range of Pod addresses of the node; set once."),
        Field("externalID", 2, Scalar.STRING, "Legacy identifier. Cannot be changed."),
        Field("providerID", 3, Scalar.STRING, "The machine as its cloud provider names it; set once."),
        Field("unschedulable", 4, Scalar.BOOL, "True keeps new Pods away."),
        Field("taints", 5, ListOf(TAINT), "Taints of the node."),
        Field("configSource", 6, CONFIG_SOURCE, "Deprecated and not acted on.", pointer=True),
        Field(
            "podCIDRs",
            7,
            ListOf(Scalar.STRING),
            "Ranges of Pod addresses of the node, at most one for IPv4 and one for IPv6; set once.",
            patch="merge",
            list_set=True,
        ),
    ),
    "How the node is to behave.",
)

NODE_CONDITION = Message(
    CORE + "NodeCondition",
    (
        Field("type", 1, Scalar.STRING, "What the condition is about, such as Ready.", required=True),
        Field("status", 2, Scalar.STRING, "True, False or Unknown.", required=True),
        Field("lastHeartbeatTime", 3, Scalar.TIME, "When the node last reported it."),
        Field("lastTransitionTime", 4, Scalar.TIME, "When the status last changed."),
        Field("reason", 5, Scalar.STRING, "Machine-readable reason of the last change."),
        Field("message", 6, Scalar.STRING, "The last change in words."),
    ),
    "One aspect of a node's health.",
)

NODE_ADDRESS = Message(
    CORE + "NodeAddress",
    (
        Field("type", 1, Scalar.STRING, "Hostname, InternalIP, ExternalIP, InternalDNS or ExternalDNS.", required=True),
        Field("address", 2, Scalar.STRING, "The address itself.", required=True),
    ),
    "One address under which the node is reached.",
)

DAEMON_ENDPOINTS = Message(
    CORE + "NodeDaemonEndpoints",
    (
        Field(
            "kubeletEndpoint",
            1,
            Message(
                CORE + "DaemonEndpoint",
                (Field("Port", 1, Scalar.INT32, "Port number.", required=True),),
                "Where a daemon listens.",
            ),
            "Where the kubelet listens.",
        ),
    ),
    "Where the node's daemons listen.",
)

NODE_SYSTEM_INFO = Message(
    CORE + "NodeSystemInfo",
    (
        Field("machineID", 1, Scalar.STRING, "Content of /etc/machine-id.", required=True),
        Field("systemUUID", 2, Scalar.STRING, "UUID that the hardware reports.", required=True),
        Field("bootID", 3, Scalar.STRING, "UUID of the present boot.", required=True),
        Field("kernelVersion", 4, Scalar.STRING, "Version of the kernel.", required=True),
        Field("osImage", 5, Scalar.STRING, "Name of the operating system from /etc/os-release.", required=True),
        Field("containerRuntimeVersion", 6, Scalar.STRING, "Container runtime and its version.", required=True),
        Field("kubeletVersion", 7, Scalar.STRING, "Version of the node's agent.", required=True),
        Field("kubeProxyVersion", 8, Scalar.STRING, "Deprecated: version of kube-proxy.", required=True),
        Field("operatingSystem", 9, Scalar.STRING, "Operating system family, such as linux.", required=True),
        Field("architecture", 10, Scalar.STRING, "Processor architecture, such as amd64.", required=True),
        Field(
            "swap",
            11,
            Message(
                CORE + "NodeSwapStatus",
                (Field("capacity", 1, Scalar.INT64, "Total swap in bytes.", pointer=True),),
                "Swap of the node.",
            ),
            "Swap of the node.",
            pointer=True,
        ),
    ),
    "Identity and software of the machine.",
)

CONTAINER_IMAGE = Message(
    CORE + "ContainerImage",
    (
        Field("names", 1, ListOf(Scalar.STRING), "Names by which the image is known.", always=True),
        Field("sizeBytes", 2, Scalar.INT64, "Size of the image in bytes."),
    ),
    "An image on the node.",
)

ATTACHED_VOLUME = Message(
    CORE + "AttachedVolume",
    (
        Field("name", 1, Scalar.STRING, "Name of the volume.", required=True),
        Field("devicePath", 2, Scalar.STRING, "Device under which the node sees it.", required=True),
    ),
    "A volume attached to the node.",
)

NODE_CONFIG_STATUS = Message(
    CORE + "NodeConfigStatus",
    (
        Field("assigned", 1, CONFIG_SOURCE, "The configuration the node should use.", pointer=True),
        Field("active", 2, CONFIG_SOURCE, "The configuration the node uses.", pointer=True),
        Field("lastKnownGood", 3, CONFIG_SOURCE, "The configuration the node falls back to.", pointer=True),
        Field("error", 4, Scalar.STRING, "Why the assigned configuration is not active."),
    ),
    "State of the configuration source. Deprecated.",
)

RUNTIME_HANDLER = Message(
    CORE + "NodeRuntimeHandler",
    (
        Field("name", 1, Scalar.STRING, "Name of the handler; empty for the default one.", pointer=True, always=True),
        Field(
            "features",
            2,
            Message(
                CORE + "NodeRuntimeHandlerFeatures",
                (
                    Field("recursiveReadOnlyMounts", 1, Scalar.BOOL, "Recursive read-only mounts work.", pointer=True),
                    Field("userNamespaces", 2, Scalar.BOOL, "User namespaces work.", pointer=True),
                ),
                "What a runtime handler can do.",
            ),
            "What the handler can do.",
            pointer=True,
        ),
    ),
    "A way in which the container runtime runs containers.",
)

NODE_FEATURES = Message(
    CORE + "NodeFeatures",
    (
        Field(
            "supplementalGroupsPolicy",
            1,
            Scalar.BOOL,
            "The runtime honours the policy about supplemental groups.",
            pointer=True,
        ),
    ),
    "What the container runtime can do, whatever the handler.",
)

NODE_STATUS = Message(
    CORE + "NodeStatus",
    (
        Field("capacity", 1, MapOf(Scalar.QUANTITY), "All resources of the node."),
        Field("allocatable", 2, MapOf(Scalar.QUANTITY), "Resources that Pods may use; capacity when not given."),
        Field(
            "phase", 3, Scalar.STRING, "Legacy field that nothing fills in.", enum=("Pending", "Running", "Terminated")
        ),
        Field(
            "conditions",
            4,
            ListOf(NODE_CONDITION),
            "Health of the node, as it reports it.",
            patch="merge",
            patch_key="type",
            list_keys=("type",),
        ),
        Field(
            "addresses",
            5,
            ListOf(NODE_ADDRESS),
            "Addresses under which the node is reached.",
            patch="merge",
            patch_key="type",
            list_keys=("type",),
        ),
        Field("daemonEndpoints", 6, DAEMON_ENDPOINTS, "Where the node's daemons listen."),
        Field("nodeInfo", 7, NODE_SYSTEM_INFO, "Identity and software of the machine."),
        Field("images", 8, ListOf(CONTAINER_IMAGE), "Images on the node."),
        Field("volumesInUse", 9, ListOf(Scalar.STRING), "Attachable volumes that are mounted."),
        Field("volumesAttached", 10, ListOf(ATTACHED_VOLUME), "Volumes attached to the node."),
        Field("config", 11, NODE_CONFIG_STATUS, "Deprecated and not acted on.", pointer=True),
        Field("runtimeHandlers", 12, ListOf(RUNTIME_HANDLER), "Ways in which the runtime runs containers."),
        Field("features", 13, NODE_FEATURES, "What the container runtime can do.", pointer=True),
        Field("declaredFeatures", 14, ListOf(Scalar.STRING), "Features the node declares, for the scheduler."),
    ),
    "What the node reports about itself.",
)

NODE = Message(
    CORE + "Node",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata."),
        Field("spec", 2, NODE_SPEC, "How the node is to behave."),
        Field("status", 3, NODE_STATUS, "What the node reports about itself."),
    ),
    "A machine of the cluster.",
)
