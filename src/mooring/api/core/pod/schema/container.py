"""Schema of Container: environment, ports, mounts, probes, lifecycle hooks.

Rules kept here: data only; numbers, inlined structs and patch keys from k8s.io/api core/v1 (generated.proto, types.go;
docs/protocol/negotiation.md#field-numbers, docs/protocol/patches.md#strategic-merge).
"""

from __future__ import annotations

from dataclasses import replace

from mooring.api.core.objectreference import CORE
from mooring.api.core.pod.schema.securitycontext import SECURITY_CONTEXT
from mooring.api.core.pod.schema.volume import OBJECT_FIELD_SELECTOR, RESOURCE_FIELD_SELECTOR
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

_SIGNALS = (
    "ABRT",
    "ALRM",
    "BUS",
    "CHLD",
    "CLD",
    "CONT",
    "FPE",
    "HUP",
    "ILL",
    "INT",
    "IO",
    "IOT",
    "KILL",
    "PIPE",
    "POLL",
    "PROF",
    "PWR",
    "QUIT",
    "SEGV",
    "STKFLT",
    "STOP",
    "SYS",
    "TERM",
    "TRAP",
    "TSTP",
    "TTIN",
    "TTOU",
    "URG",
    "USR1",
    "USR2",
    "VTALRM",
    "WINCH",
    "XCPU",
    "XFSZ",
    "RTMIN",
    "RTMAX",
)
STOP_SIGNALS = (
    *(f"SIG{name}" for name in _SIGNALS),
    *(f"SIGRTMIN+{above}" for above in range(1, 16)),
    *(f"SIGRTMAX-{below}" for below in range(1, 15)),
)
"""Linux signals as Kubernetes names them."""

CONTAINER_PORT = Message(
    CORE + "ContainerPort",
    (
        Field("name", 1, Scalar.STRING, "Name of the port, unique in the Pod."),
        Field("hostPort", 2, Scalar.INT32, "Port of the node that leads to it."),
        Field("containerPort", 3, Scalar.INT32, "The port in the container.", required=True),
        Field("protocol", 4, Scalar.STRING, "TCP, UDP or SCTP; TCP when not given.", enum=("SCTP", "TCP", "UDP")),
        Field("hostIP", 5, Scalar.STRING, "Address of the node that hostPort is bound to."),
    ),
    "A port that a container listens on.",
)

CONFIG_MAP_ENV_SOURCE = Message(
    CORE + "ConfigMapEnvSource",
    (
        Field("name", 1, Scalar.STRING, "Name of the ConfigMap.", within=1),
        Field("optional", 2, Scalar.BOOL, "Whether it may be missing.", pointer=True),
    ),
    "A ConfigMap whose keys become variables.",
)

SECRET_ENV_SOURCE = Message(
    CORE + "SecretEnvSource",
    (
        Field("name", 1, Scalar.STRING, "Name of the Secret.", within=1),
        Field("optional", 2, Scalar.BOOL, "Whether it may be missing.", pointer=True),
    ),
    "A Secret whose keys become variables.",
)

ENV_FROM_SOURCE = Message(
    CORE + "EnvFromSource",
    (
        Field("prefix", 1, Scalar.STRING, "Text put before each key."),
        Field("configMapRef", 2, CONFIG_MAP_ENV_SOURCE, "The ConfigMap.", pointer=True),
        Field("secretRef", 3, SECRET_ENV_SOURCE, "The Secret.", pointer=True),
    ),
    "Variables taken from a whole object.",
)

CONFIG_MAP_KEY_SELECTOR = Message(
    CORE + "ConfigMapKeySelector",
    (
        Field("name", 1, Scalar.STRING, "Name of the ConfigMap.", within=1),
        Field("key", 2, Scalar.STRING, "The key.", required=True),
        Field("optional", 3, Scalar.BOOL, "Whether it may be missing.", pointer=True),
    ),
    "One key of a ConfigMap.",
    atomic=True,
)

SECRET_KEY_SELECTOR = Message(
    CORE + "SecretKeySelector",
    (
        Field("name", 1, Scalar.STRING, "Name of the Secret.", within=1),
        Field("key", 2, Scalar.STRING, "The key.", required=True),
        Field("optional", 3, Scalar.BOOL, "Whether it may be missing.", pointer=True),
    ),
    "One key of a Secret.",
    atomic=True,
)

FILE_KEY_SELECTOR = Message(
    CORE + "FileKeySelector",
    (
        Field("volumeName", 1, Scalar.STRING, "The volume.", required=True),
        Field("path", 2, Scalar.STRING, "Relative path of the file.", required=True),
        Field("key", 3, Scalar.STRING, "Name of the variable in the file.", required=True),
        Field("optional", 4, Scalar.BOOL, "Whether it may be missing.", pointer=True),
    ),
    "One variable of a file in a volume.",
    atomic=True,
)

ENV_VAR_SOURCE = Message(
    CORE + "EnvVarSource",
    (
        Field("fieldRef", 1, OBJECT_FIELD_SELECTOR, "A field of the Pod.", pointer=True),
        Field("resourceFieldRef", 2, RESOURCE_FIELD_SELECTOR, "A resource of the container.", pointer=True),
        Field("configMapKeyRef", 3, CONFIG_MAP_KEY_SELECTOR, "A key of a ConfigMap.", pointer=True),
        Field("secretKeyRef", 4, SECRET_KEY_SELECTOR, "A key of a Secret.", pointer=True),
        Field("fileKeyRef", 5, FILE_KEY_SELECTOR, "A variable of a file in a volume.", pointer=True),
    ),
    "Where the value of a variable comes from; exactly one source.",
)

ENV_VAR = Message(
    CORE + "EnvVar",
    (
        Field("name", 1, Scalar.STRING, "Name of the variable.", required=True),
        Field("value", 2, Scalar.STRING, "Its value; $(NAME) stands for earlier variables."),
        Field("valueFrom", 3, ENV_VAR_SOURCE, "Where the value comes from, instead of value.", pointer=True),
    ),
    "One variable of the environment.",
)

RESOURCE_CLAIM = Message(
    CORE + "ResourceClaim",
    (
        Field("name", 1, Scalar.STRING, "Name of the claim in the Pod.", required=True),
        Field("request", 2, Scalar.STRING, "One request of the claim; all of them when empty."),
    ),
    "A claim of the Pod that the container uses.",
)

RESOURCE_REQUIREMENTS = Message(
    CORE + "ResourceRequirements",
    (
        Field("limits", 1, MapOf(Scalar.QUANTITY), "The most that may be used."),
        Field("requests", 2, MapOf(Scalar.QUANTITY), "The least that is needed; limits when not given."),
        Field("claims", 3, ListOf(RESOURCE_CLAIM), "Claims of the Pod that are used.", list_keys=("name",)),
    ),
    "How much of what is needed and allowed.",
)

CONTAINER_RESIZE_POLICY = Message(
    CORE + "ContainerResizePolicy",
    (
        Field("resourceName", 1, Scalar.STRING, "The resource: cpu or memory.", required=True),
        Field("restartPolicy", 2, Scalar.STRING, "NotRequired or RestartContainer.", required=True),
    ),
    "What a change of one resource does.",
)

CONTAINER_RESTART_RULE_ON_EXIT_CODES = Message(
    CORE + "ContainerRestartRuleOnExitCodes",
    (
        Field("operator", 1, Scalar.STRING, "In or NotIn."),
        Field("values", 2, ListOf(Scalar.INT32), "The codes.", list_set=True),
    ),
    "Exit codes.",
)

CONTAINER_RESTART_RULE = Message(
    CORE + "ContainerRestartRule",
    (
        Field("action", 1, Scalar.STRING, "Restart or RestartAllContainers."),
        Field("exitCodes", 2, CONTAINER_RESTART_RULE_ON_EXIT_CODES, "The exits it is about.", pointer=True),
    ),
    "What is done after an exit.",
)

VOLUME_MOUNT = Message(
    CORE + "VolumeMount",
    (
        Field("name", 1, Scalar.STRING, "Name of the volume.", required=True),
        Field("readOnly", 2, Scalar.BOOL, "Whether it is mounted read-only."),
        Field(
            "recursiveReadOnly",
            7,
            Scalar.STRING,
            "Whether mounts below it are read-only too: Disabled, IfPossible or Enabled.",
            pointer=True,
        ),
        Field("mountPath", 3, Scalar.STRING, "Path in the container, without a colon.", required=True),
        Field("subPath", 4, Scalar.STRING, "Path in the volume that is mounted; its root when empty."),
        Field(
            "mountPropagation",
            5,
            Scalar.STRING,
            "Whether mounts spread between host and container.",
            pointer=True,
            enum=("Bidirectional", "HostToContainer", "None"),
        ),
        Field("subPathExpr", 6, Scalar.STRING, "As subPath, with variables."),
    ),
    "Where a volume is seen in the container.",
)

VOLUME_DEVICE = Message(
    CORE + "VolumeDevice",
    (
        Field("name", 1, Scalar.STRING, "Name of the claim in the Pod.", required=True),
        Field("devicePath", 2, Scalar.STRING, "Path of the device in the container.", required=True),
    ),
    "Where a block volume is seen in the container.",
)

HTTP_HEADER = Message(
    CORE + "HTTPHeader",
    (
        Field("name", 1, Scalar.STRING, "Name of the header.", required=True),
        Field("value", 2, Scalar.STRING, "Its value.", required=True),
    ),
    "One header of a request.",
)

EXEC_ACTION = Message(
    CORE + "ExecAction",
    (Field("command", 1, ListOf(Scalar.STRING), "The command and its arguments; no shell. Exit 0 is success."),),
    "A command in the container.",
)

HTTP_GET_ACTION = Message(
    CORE + "HTTPGetAction",
    (
        Field("path", 1, Scalar.STRING, "Path of the request."),
        Field("port", 2, Scalar.INT_OR_STRING, "Number or name of the port.", required=True),
        Field("host", 3, Scalar.STRING, "Host to ask; the Pod's address when empty."),
        Field("scheme", 4, Scalar.STRING, "HTTP or HTTPS.", enum=("HTTP", "HTTPS")),
        Field("httpHeaders", 5, ListOf(HTTP_HEADER), "Headers to send."),
    ),
    "An HTTP GET.",
)

TCP_SOCKET_ACTION = Message(
    CORE + "TCPSocketAction",
    (
        Field("port", 1, Scalar.INT_OR_STRING, "Number or name of the port.", required=True),
        Field("host", 2, Scalar.STRING, "Host to connect to; the Pod's address when empty."),
    ),
    "Opening a TCP connection.",
)

GRPC_ACTION = Message(
    CORE + "GRPCAction",
    (
        Field("port", 1, Scalar.INT32, "Number of the port.", required=True),
        Field("service", 2, Scalar.STRING, "Name of the service to ask about.", pointer=True),
    ),
    "A gRPC health check.",
)

SLEEP_ACTION = Message(
    CORE + "SleepAction",
    (Field("seconds", 1, Scalar.INT64, "Length of the pause.", required=True),),
    "A pause.",
)

LIFECYCLE_HANDLER = Message(
    CORE + "LifecycleHandler",
    (
        Field("exec", 1, EXEC_ACTION, "Run a command.", pointer=True),
        Field("httpGet", 2, HTTP_GET_ACTION, "Send a request.", pointer=True),
        Field("tcpSocket", 3, TCP_SOCKET_ACTION, "Deprecated and not supported.", pointer=True),
        Field("sleep", 4, SLEEP_ACTION, "Wait.", pointer=True),
    ),
    "What is done at one moment of a container's life; exactly one action.",
)

LIFECYCLE = Message(
    CORE + "Lifecycle",
    (
        Field("postStart", 1, LIFECYCLE_HANDLER, "Done right after the start.", pointer=True),
        Field("preStop", 2, LIFECYCLE_HANDLER, "Done before the stop.", pointer=True),
        Field("stopSignal", 3, Scalar.STRING, "Signal that stops the container.", pointer=True, enum=STOP_SIGNALS),
    ),
    "What is done when a container starts and stops.",
)

PROBE = Message(
    CORE + "Probe",
    (
        Field("exec", 1, EXEC_ACTION, "Run a command.", pointer=True, within=1),
        Field("httpGet", 2, HTTP_GET_ACTION, "Send a request.", pointer=True, within=1),
        Field("tcpSocket", 3, TCP_SOCKET_ACTION, "Open a connection.", pointer=True, within=1),
        Field("grpc", 4, GRPC_ACTION, "Ask for health over gRPC.", pointer=True, within=1),
        Field("initialDelaySeconds", 2, Scalar.INT32, "Wait after the start."),
        Field("timeoutSeconds", 3, Scalar.INT32, "When a probe has failed; 1 second when not given."),
        Field("periodSeconds", 4, Scalar.INT32, "How often it is done; every 10 seconds when not given."),
        Field("successThreshold", 5, Scalar.INT32, "Successes in a row that count; 1 when not given."),
        Field("failureThreshold", 6, Scalar.INT32, "Failures in a row that count; 3 when not given."),
        Field(
            "terminationGracePeriodSeconds",
            7,
            Scalar.INT64,
            "Time to stop after a failed probe; the Pod's when not given.",
            pointer=True,
        ),
    ),
    "How the state of a container is found out.",
)

CONTAINER = Message(
    CORE + "Container",
    (
        Field("name", 1, Scalar.STRING, "Name of the container, a DNS label and unique in the Pod.", required=True),
        Field("image", 2, Scalar.STRING, "Name of the image."),
        Field("command", 3, ListOf(Scalar.STRING), "What is run instead of the image's entrypoint."),
        Field("args", 4, ListOf(Scalar.STRING), "Arguments instead of the image's."),
        Field("workingDir", 5, Scalar.STRING, "Working directory instead of the image's."),
        Field(
            "ports",
            6,
            ListOf(CONTAINER_PORT),
            "Ports that the container listens on; for information.",
            patch="merge",
            patch_key="containerPort",
            list_keys=(
                "containerPort",
                "protocol",
            ),
        ),
        Field("envFrom", 19, ListOf(ENV_FROM_SOURCE), "Objects whose keys become variables."),
        Field(
            "env",
            7,
            ListOf(ENV_VAR),
            "Variables of the environment.",
            patch="merge",
            patch_key="name",
            list_keys=("name",),
        ),
        Field("resources", 8, RESOURCE_REQUIREMENTS, "What the container needs and may use."),
        Field("resizePolicy", 23, ListOf(CONTAINER_RESIZE_POLICY), "What a change of resources does."),
        Field(
            "restartPolicy",
            24,
            Scalar.STRING,
            "When the container is started again; Always makes an init container a sidecar.",
            pointer=True,
        ),
        Field("restartPolicyRules", 25, ListOf(CONTAINER_RESTART_RULE), "Exits that are treated otherwise."),
        Field(
            "volumeMounts",
            9,
            ListOf(VOLUME_MOUNT),
            "Volumes seen as directories.",
            patch="merge",
            patch_key="mountPath",
            list_keys=("mountPath",),
        ),
        Field(
            "volumeDevices",
            21,
            ListOf(VOLUME_DEVICE),
            "Volumes seen as devices.",
            patch="merge",
            patch_key="devicePath",
            list_keys=("devicePath",),
        ),
        Field("livenessProbe", 10, PROBE, "When it fails, the container is started again.", pointer=True),
        Field("readinessProbe", 11, PROBE, "When it fails, the container gets no requests.", pointer=True),
        Field("startupProbe", 22, PROBE, "Until it succeeds, no other probe is done.", pointer=True),
        Field("lifecycle", 12, LIFECYCLE, "What is done at start and stop.", pointer=True),
        Field(
            "terminationMessagePath",
            13,
            Scalar.STRING,
            "File with the last words of the container; /dev/termination-log when not given.",
        ),
        Field(
            "terminationMessagePolicy",
            20,
            Scalar.STRING,
            "File, or FallbackToLogsOnError; File when not given.",
            enum=("FallbackToLogsOnError", "File"),
        ),
        Field(
            "imagePullPolicy",
            14,
            Scalar.STRING,
            "Always, Never or IfNotPresent; Always for the tag latest, otherwise IfNotPresent.",
            enum=("Always", "IfNotPresent", "Never"),
        ),
        Field("securityContext", 15, SECURITY_CONTEXT, "What the container may do on the node.", pointer=True),
        Field("stdin", 16, Scalar.BOOL, "Whether its standard input is kept open."),
        Field("stdinOnce", 17, Scalar.BOOL, "Whether it is closed after the first client."),
        Field("tty", 18, Scalar.BOOL, "Whether it gets a terminal."),
    ),
    "One program of the Pod.",
)

EPHEMERAL_CONTAINER = Message(
    CORE + "EphemeralContainer",
    (
        *(replace(field, within=1) for field in CONTAINER.fields),
        Field("targetContainerName", 2, Scalar.STRING, "The container whose processes it sees."),
    ),
    "A container put into a running Pod to look at it.",
)
