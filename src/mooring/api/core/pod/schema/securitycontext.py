"""Schema of PodSecurityContext and SecurityContext.

Rules kept here: data only; numbers, inlined structs and patch keys from k8s.io/api core/v1 (generated.proto, types.go;
docs/protocol/negotiation.md#field-numbers, docs/protocol/patches.md#strategic-merge).
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

SELINUX_OPTIONS = Message(
    CORE + "SELinuxOptions",
    (
        Field("user", 1, Scalar.STRING, "User of the label."),
        Field("role", 2, Scalar.STRING, "Role of the label."),
        Field("type", 3, Scalar.STRING, "Type of the label."),
        Field("level", 4, Scalar.STRING, "Level of the label."),
    ),
    "An SELinux label.",
)

WINDOWS_SECURITY_CONTEXT_OPTIONS = Message(
    CORE + "WindowsSecurityContextOptions",
    (
        Field("gmsaCredentialSpecName", 1, Scalar.STRING, "Name of the credential spec.", pointer=True),
        Field("gmsaCredentialSpec", 2, Scalar.STRING, "The credential spec itself.", pointer=True),
        Field("runAsUserName", 3, Scalar.STRING, "User that runs the entrypoint.", pointer=True),
        Field("hostProcess", 4, Scalar.BOOL, "Whether it runs as a process of the host.", pointer=True),
    ),
    "What concerns Windows.",
)

_PROFILE_TYPE = Field(
    "type",
    1,
    Scalar.STRING,
    "Localhost, RuntimeDefault or Unconfined.",
    required=True,
    enum=("Localhost", "RuntimeDefault", "Unconfined"),
)
SECCOMP_PROFILE = Message(
    CORE + "SeccompProfile",
    (
        _PROFILE_TYPE,
        Field("localhostProfile", 2, Scalar.STRING, "File of the profile on the node, for Localhost.", pointer=True),
    ),
    "Which system calls are allowed.",
)

APP_ARMOR_PROFILE = Message(
    CORE + "AppArmorProfile",
    (
        _PROFILE_TYPE,
        Field(
            "localhostProfile", 2, Scalar.STRING, "Name of a profile loaded on the node, for Localhost.", pointer=True
        ),
    ),
    "An AppArmor profile.",
)

SYSCTL = Message(
    CORE + "Sysctl",
    (
        Field("name", 1, Scalar.STRING, "Name of the parameter.", required=True),
        Field("value", 2, Scalar.STRING, "Its value.", required=True),
    ),
    "One kernel parameter.",
)

POD_SECURITY_CONTEXT = Message(
    CORE + "PodSecurityContext",
    (
        Field("seLinuxOptions", 1, SELINUX_OPTIONS, "The SELinux label.", pointer=True),
        Field("windowsOptions", 8, WINDOWS_SECURITY_CONTEXT_OPTIONS, "What concerns Windows.", pointer=True),
        Field("runAsUser", 2, Scalar.INT64, "User id of the entrypoint.", pointer=True),
        Field("runAsGroup", 6, Scalar.INT64, "Group id of the entrypoint.", pointer=True),
        Field("runAsNonRoot", 3, Scalar.BOOL, "Whether running as root is refused.", pointer=True),
        Field("supplementalGroups", 4, ListOf(Scalar.INT64), "More groups of the first process."),
        Field(
            "supplementalGroupsPolicy",
            12,
            Scalar.STRING,
            "Merge with the image's groups, or Strict.",
            pointer=True,
            enum=("Merge", "Strict"),
        ),
        Field("fsGroup", 5, Scalar.INT64, "Group that owns volumes.", pointer=True),
        Field("sysctls", 7, ListOf(SYSCTL), "Kernel parameters."),
        Field(
            "fsGroupChangePolicy",
            9,
            Scalar.STRING,
            "Always, or OnRootMismatch.",
            pointer=True,
            enum=("Always", "OnRootMismatch"),
        ),
        Field("seccompProfile", 10, SECCOMP_PROFILE, "Which system calls are allowed.", pointer=True),
        Field("appArmorProfile", 11, APP_ARMOR_PROFILE, "The AppArmor profile.", pointer=True),
        Field("seLinuxChangePolicy", 13, Scalar.STRING, "MountOption, or Recursive.", pointer=True),
    ),
    "What all containers of the Pod may do, unless they say otherwise.",
)

CAPABILITIES = Message(
    CORE + "Capabilities",
    (
        Field("add", 1, ListOf(Scalar.STRING), "Capabilities to add."),
        Field("drop", 2, ListOf(Scalar.STRING), "Capabilities to take away."),
    ),
    "Capabilities of Linux.",
)

SECURITY_CONTEXT = Message(
    CORE + "SecurityContext",
    (
        Field("capabilities", 1, CAPABILITIES, "Capabilities to add and take away.", pointer=True),
        Field("privileged", 2, Scalar.BOOL, "Whether it may do all that root of the node may.", pointer=True),
        Field("seLinuxOptions", 3, SELINUX_OPTIONS, "The SELinux label.", pointer=True),
        Field("windowsOptions", 10, WINDOWS_SECURITY_CONTEXT_OPTIONS, "What concerns Windows.", pointer=True),
        Field("runAsUser", 4, Scalar.INT64, "User id of the entrypoint.", pointer=True),
        Field("runAsGroup", 8, Scalar.INT64, "Group id of the entrypoint.", pointer=True),
        Field("runAsNonRoot", 5, Scalar.BOOL, "Whether running as root is refused.", pointer=True),
        Field("readOnlyRootFilesystem", 6, Scalar.BOOL, "Whether the root file system is read-only.", pointer=True),
        Field(
            "allowPrivilegeEscalation",
            7,
            Scalar.BOOL,
            "Whether a process may gain more privileges than its parent.",
            pointer=True,
        ),
        Field("procMount", 9, Scalar.STRING, "Default, or Unmasked.", pointer=True, enum=("Default", "Unmasked")),
        Field("seccompProfile", 11, SECCOMP_PROFILE, "Which system calls are allowed.", pointer=True),
        Field("appArmorProfile", 12, APP_ARMOR_PROFILE, "The AppArmor profile.", pointer=True),
    ),
    "What a container may do; it comes before what the Pod says.",
)
