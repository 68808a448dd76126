"""Schema of PodStatus.

Rules kept here: data only; numbers, inlined structs and patch keys from k8s.io/api core/v1 (generated.proto, types.go;
docs/protocol/negotiation.md#field-numbers, docs/protocol/patches.md#strategic-merge).
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE
from mooring.api.core.pod.schema.container import RESOURCE_REQUIREMENTS, STOP_SIGNALS
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

POD_CONDITION = Message(
    CORE + "PodCondition",
    (
        Field("type", 1, Scalar.STRING, "Aspect, such as Ready.", required=True),
        Field("observedGeneration", 7, Scalar.INT64, "The generation it was seen for."),
        Field("status", 2, Scalar.STRING, "True, False or Unknown.", required=True),
        Field("lastProbeTime", 3, Scalar.TIME, "When it was last looked at."),
        Field("lastTransitionTime", 4, Scalar.TIME, "When status last changed."),
        Field("reason", 5, Scalar.STRING, "Why, in one word."),
        Field("message", 6, Scalar.STRING, "Why, in a sentence."),
    ),
    "One aspect of the Pod's state.",
)

HOST_IP = Message(
    CORE + "HostIP",
    (Field("ip", 1, Scalar.STRING, "The address.", required=True),),
    "An address of the node.",
)

POD_IP = Message(
    CORE + "PodIP",
    (Field("ip", 1, Scalar.STRING, "The address.", required=True),),
    "An address of the Pod.",
)

CONTAINER_STATE_WAITING = Message(
    CORE + "ContainerStateWaiting",
    (
        Field("reason", 1, Scalar.STRING, "Why, in one word."),
        Field("message", 2, Scalar.STRING, "Why, in a sentence."),
    ),
    "A container that does not run yet.",
)

CONTAINER_STATE_RUNNING = Message(
    CORE + "ContainerStateRunning",
    (Field("startedAt", 1, Scalar.TIME, "Since when."),),
    "A container that runs.",
)

CONTAINER_STATE_TERMINATED = Message(
    CORE + "ContainerStateTerminated",
    (
        Field("exitCode", 1, Scalar.INT32, "Exit code of the container.", required=True),
        Field("signal", 2, Scalar.INT32, "Signal that ended it."),
        Field("reason", 3, Scalar.STRING, "Why, in one word."),
        Field("message", 4, Scalar.STRING, "Why, in a sentence."),
        Field("startedAt", 5, Scalar.TIME, "When it was started."),
        Field("finishedAt", 6, Scalar.TIME, "When it ended."),
        Field("containerID", 7, Scalar.STRING, "Its id, with that of the runtime."),
    ),
    "A container that ended.",
)

CONTAINER_STATE = Message(
    CORE + "ContainerState",
    (
        Field("waiting", 1, CONTAINER_STATE_WAITING, "It does not run yet.", pointer=True),
        Field("running", 2, CONTAINER_STATE_RUNNING, "It runs.", pointer=True),
        Field("terminated", 3, CONTAINER_STATE_TERMINATED, "It ended.", pointer=True),
    ),
    "What a container does: one of three.",
)

IMAGE_VOLUME_STATUS = Message(
    CORE + "ImageVolumeStatus",
    (Field("imageRef", 1, Scalar.STRING, "Digest of the image."),),
    "The image behind a volume.",
)

VOLUME_STATUS = Message(
    CORE + "VolumeStatus",
    (Field("image", 1, IMAGE_VOLUME_STATUS, "The image behind the volume.", pointer=True),),
    "What is mounted.",
)

VOLUME_MOUNT_STATUS = Message(
    CORE + "VolumeMountStatus",
    (
        Field("name", 1, Scalar.STRING, "Name of the volume.", required=True),
        Field("mountPath", 2, Scalar.STRING, "Path in the container.", required=True),
        Field("readOnly", 3, Scalar.BOOL, "Whether it is mounted read-only."),
        Field("recursiveReadOnly", 4, Scalar.STRING, "Whether mounts below it are read-only too.", pointer=True),
        Field("volumeStatus", 5, VOLUME_STATUS, "What is mounted.", pointer=True),
    ),
    "A mount as it is.",
)

LINUX_CONTAINER_USER = Message(
    CORE + "LinuxContainerUser",
    (
        Field("uid", 1, Scalar.INT64, "Its user id.", required=True),
        Field("gid", 2, Scalar.INT64, "Its group id.", required=True),
        Field("supplementalGroups", 3, ListOf(Scalar.INT64), "Its other groups."),
    ),
    "The first process on Linux.",
)

CONTAINER_USER = Message(
    CORE + "ContainerUser",
    (Field("linux", 1, LINUX_CONTAINER_USER, "On Linux.", pointer=True),),
    "Who the first process of a container runs as.",
)

RESOURCE_HEALTH = Message(
    CORE + "ResourceHealth",
    (
        Field("resourceID", 1, Scalar.STRING, "Id of the device.", required=True),
        Field("health", 2, Scalar.STRING, "Healthy, Unhealthy or Unknown."),
    ),
    "Health of one device.",
)

RESOURCE_STATUS = Message(
    CORE + "ResourceStatus",
    (
        Field("name", 1, Scalar.STRING, "Name of the resource.", required=True),
        Field("resources", 2, ListOf(RESOURCE_HEALTH), "Health of each device.", list_keys=("resourceID",)),
    ),
    "Health of a kind of device.",
)

CONTAINER_STATUS = Message(
    CORE + "ContainerStatus",
    (
        Field("name", 1, Scalar.STRING, "Name of the container.", required=True),
        Field("state", 2, CONTAINER_STATE, "What it does."),
        Field("lastState", 3, CONTAINER_STATE, "What it did before its last start."),
        Field("ready", 4, Scalar.BOOL, "Whether it is ready for requests.", required=True),
        Field("restartCount", 5, Scalar.INT32, "How often it was started again.", required=True),
        Field("image", 6, Scalar.STRING, "Name of its image.", required=True),
        Field("imageID", 7, Scalar.STRING, "Digest of its image.", required=True),
        Field("containerID", 8, Scalar.STRING, "Its id, with that of the runtime."),
        Field("started", 9, Scalar.BOOL, "Whether its start is over.", pointer=True),
        Field("allocatedResources", 10, MapOf(Scalar.QUANTITY), "Resources the node has set aside."),
        Field("resources", 11, RESOURCE_REQUIREMENTS, "Resources it runs with.", pointer=True),
        Field(
            "volumeMounts",
            12,
            ListOf(VOLUME_MOUNT_STATUS),
            "Mounts as they are.",
            patch="merge",
            patch_key="mountPath",
            list_keys=("mountPath",),
        ),
        Field("user", 13, CONTAINER_USER, "Who its first process runs as.", pointer=True),
        Field(
            "allocatedResourcesStatus",
            14,
            ListOf(RESOURCE_STATUS),
            "Health of its devices.",
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field("stopSignal", 15, Scalar.STRING, "Signal that stops it.", pointer=True, enum=STOP_SIGNALS),
    ),
    "What is known about one container.",
)

POD_RESOURCE_CLAIM_STATUS = Message(
    CORE + "PodResourceClaimStatus",
    (
        Field("name", 1, Scalar.STRING, "Name of the claim in the Pod.", required=True),
        Field("resourceClaimName", 2, Scalar.STRING, "Name of the claim that was made.", pointer=True),
    ),
    "A claim made for the Pod.",
)

CONTAINER_EXTENDED_RESOURCE_REQUEST = Message(
    CORE + "ContainerExtendedResourceRequest",
    (
        Field("containerName", 1, Scalar.STRING, "Name of the container.", required=True),
        Field("resourceName", 2, Scalar.STRING, "Name of the resource.", required=True),
        Field("requestName", 3, Scalar.STRING, "Name of the request.", required=True),
    ),
    "An extended resource and the request that stands for it.",
)

POD_EXTENDED_RESOURCE_CLAIM_STATUS = Message(
    CORE + "PodExtendedResourceClaimStatus",
    (
        Field(
            "requestMappings",
            1,
            ListOf(CONTAINER_EXTENDED_RESOURCE_REQUEST),
            "Which request stands for which resource.",
            required=True,
        ),
        Field("resourceClaimName", 2, Scalar.STRING, "Name of the claim.", required=True),
    ),
    "The claim that stands for extended resources.",
)

POD_STATUS = Message(
    CORE + "PodStatus",
    (
        Field("observedGeneration", 17, Scalar.INT64, "The generation that the node has seen."),
        Field(
            "phase",
            1,
            Scalar.STRING,
            "Pending, Running, Succeeded, Failed or Unknown.",
            enum=("Failed", "Pending", "Running", "Succeeded", "Unknown"),
        ),
        Field(
            "conditions",
            2,
            ListOf(POD_CONDITION),
            "Aspects of its state.",
            patch="merge",
            patch_key="type",
            list_keys=("type",),
        ),
        Field("message", 3, Scalar.STRING, "Why, in a sentence."),
        Field("reason", 4, Scalar.STRING, "Why, in one word."),
        Field("nominatedNodeName", 11, Scalar.STRING, "Node that is being cleared for it."),
        Field("hostIP", 5, Scalar.STRING, "Address of its node."),
        Field("hostIPs", 16, ListOf(HOST_IP), "Addresses of its node.", patch="merge", patch_key="ip"),
        Field("podIP", 6, Scalar.STRING, "Its address; the first of podIPs."),
        Field(
            "podIPs",
            12,
            ListOf(POD_IP),
            "Its addresses, at most one per IP family.",
            patch="merge",
            patch_key="ip",
            list_keys=("ip",),
        ),
        Field("startTime", 7, Scalar.TIME, "When its node accepted it.", pointer=True),
        Field("initContainerStatuses", 10, ListOf(CONTAINER_STATUS), "Its init containers."),
        Field("containerStatuses", 8, ListOf(CONTAINER_STATUS), "Its containers."),
        Field(
            "qosClass",
            9,
            Scalar.STRING,
            "Guaranteed, Burstable or BestEffort; follows from resources.",
            enum=("BestEffort", "Burstable", "Guaranteed"),
        ),
        Field("ephemeralContainerStatuses", 13, ListOf(CONTAINER_STATUS), "Its ephemeral containers."),
        Field("resize", 14, Scalar.STRING, "Deprecated: state of a change of resources."),
        Field(
            "resourceClaimStatuses",
            15,
            ListOf(POD_RESOURCE_CLAIM_STATUS),
            "Claims made for it.",
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field(
            "extendedResourceClaimStatus",
            18,
            POD_EXTENDED_RESOURCE_CLAIM_STATUS,
            "The claim that stands for extended resources.",
            pointer=True,
        ),
        Field("allocatedResources", 19, MapOf(Scalar.QUANTITY), "Resources its node has set aside."),
        Field("resources", 20, RESOURCE_REQUIREMENTS, "Resources it runs with.", pointer=True),
    ),
    "What is known about the Pod; its node reports it.",
)
