"""Schema of Volume and its sources, except the in-tree ones.

Rules kept here: data only; numbers, inlined structs and patch keys from k8s.io/api core/v1 (generated.proto, types.go;
docs/protocol/negotiation.md#field-numbers, docs/protocol/patches.md#strategic-merge).
"""

from __future__ import annotations

from mooring.api.core.objectreference import CORE, LOCAL_OBJECT_REFERENCE
from mooring.api.core.pod.schema.intreevolume import IN_TREE_SOURCES
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar

KEY_TO_PATH = Message(
    CORE + "KeyToPath",
    (
        Field("key", 1, Scalar.STRING, "The key to take.", required=True),
        Field("path", 2, Scalar.STRING, 'Relative path of the file; no part of it is "..".', required=True),
        Field(
            "mode",
            3,
            Scalar.INT32,
            "Permission bits of the file; the volume's defaultMode when not given.",
            pointer=True,
        ),
    ),
    "One key and the file it becomes.",
)

HOST_PATH_VOLUME_SOURCE = Message(
    CORE + "HostPathVolumeSource",
    (
        Field("path", 1, Scalar.STRING, "Path on the node.", required=True),
        Field(
            "type",
            2,
            Scalar.STRING,
            "What must be there, or is made: such as Directory or FileOrCreate.",
            pointer=True,
            enum=("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"),
        ),
    ),
    "A file or directory of the node.",
)

EMPTY_DIR_VOLUME_SOURCE = Message(
    CORE + "EmptyDirVolumeSource",
    (
        Field("medium", 1, Scalar.STRING, "Memory for a tmpfs; otherwise the node's disk."),
        Field("sizeLimit", 2, Scalar.QUANTITY, "How much may be stored in it.", pointer=True),
    ),
    "A directory that lives as long as the Pod.",
)

SECRET_VOLUME_SOURCE = Message(
    CORE + "SecretVolumeSource",
    (
        Field("secretName", 1, Scalar.STRING, "Name of the Secret, in the Pod's namespace."),
        Field("items", 2, ListOf(KEY_TO_PATH), "The keys to show; all of them when empty."),
        Field("defaultMode", 3, Scalar.INT32, "Permission bits of the files; 0644 when not given.", pointer=True),
        Field("optional", 4, Scalar.BOOL, "Whether the Secret or its keys may be missing.", pointer=True),
    ),
    "Files made of a Secret.",
)

NFS_VOLUME_SOURCE = Message(
    CORE + "NFSVolumeSource",
    (
        Field("server", 1, Scalar.STRING, "Host name or address of the server.", required=True),
        Field("path", 2, Scalar.STRING, "Path that the server exports.", required=True),
        Field("readOnly", 3, Scalar.BOOL, "Whether it is mounted read-only."),
    ),
    "A directory of an NFS server.",
)

PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE = Message(
    CORE + "PersistentVolumeClaimVolumeSource",
    (
        Field("claimName", 1, Scalar.STRING, "Name of the claim, in the Pod's namespace.", required=True),
        Field("readOnly", 2, Scalar.BOOL, "Whether every mount is read-only."),
    ),
    "Storage that a claim got.",
)

OBJECT_FIELD_SELECTOR = Message(
    CORE + "ObjectFieldSelector",
    (
        Field("apiVersion", 1, Scalar.STRING, "Version of the API the path is written for; v1 when not given."),
        Field("fieldPath", 2, Scalar.STRING, "Path of the field, such as metadata.name.", required=True),
    ),
    "A field of the Pod.",
    atomic=True,
)

RESOURCE_FIELD_SELECTOR = Message(
    CORE + "ResourceFieldSelector",
    (
        Field("containerName", 1, Scalar.STRING, "The container; required in volumes."),
        Field("resource", 2, Scalar.STRING, "The resource, such as limits.cpu.", required=True),
        Field("divisor", 3, Scalar.QUANTITY, "Unit the amount is told in; 1 when not given."),
    ),
    "A resource of a container.",
    atomic=True,
)

DOWNWARD_API_VOLUME_FILE = Message(
    CORE + "DownwardAPIVolumeFile",
    (
        Field("path", 1, Scalar.STRING, 'Relative path of the file; no part of it is "..".', required=True),
        Field("fieldRef", 2, OBJECT_FIELD_SELECTOR, "The field of the Pod to tell.", pointer=True),
        Field("resourceFieldRef", 3, RESOURCE_FIELD_SELECTOR, "The resource of a container to tell.", pointer=True),
        Field(
            "mode",
            4,
            Scalar.INT32,
            "Permission bits of the file; the volume's defaultMode when not given.",
            pointer=True,
        ),
    ),
    "One file that tells something about the Pod.",
)

DOWNWARD_API_VOLUME_SOURCE = Message(
    CORE + "DownwardAPIVolumeSource",
    (
        Field("items", 1, ListOf(DOWNWARD_API_VOLUME_FILE), "The files."),
        Field("defaultMode", 2, Scalar.INT32, "Permission bits of the files; 0644 when not given.", pointer=True),
    ),
    "Files that tell about the Pod.",
)

CONFIG_MAP_VOLUME_SOURCE = Message(
    CORE + "ConfigMapVolumeSource",
    (
        Field("name", 1, Scalar.STRING, "Name of the ConfigMap, in the Pod's namespace.", within=1),
        Field("items", 2, ListOf(KEY_TO_PATH), "The keys to show; all of them when empty."),
        Field("defaultMode", 3, Scalar.INT32, "Permission bits of the files; 0644 when not given.", pointer=True),
        Field("optional", 4, Scalar.BOOL, "Whether the ConfigMap or its keys may be missing.", pointer=True),
    ),
    "Files made of a ConfigMap.",
)

SECRET_PROJECTION = Message(
    CORE + "SecretProjection",
    (
        Field("name", 1, Scalar.STRING, "Name of the Secret, in the Pod's namespace.", within=1),
        Field("items", 2, ListOf(KEY_TO_PATH), "The keys to show; all of them when empty."),
        Field("optional", 4, Scalar.BOOL, "Whether the Secret or its keys may be missing.", pointer=True),
    ),
    "A Secret among other sources.",
)

DOWNWARD_API_PROJECTION = Message(
    CORE + "DownwardAPIProjection",
    (Field("items", 1, ListOf(DOWNWARD_API_VOLUME_FILE), "The files."),),
    "Facts about the Pod among other sources.",
)

CONFIG_MAP_PROJECTION = Message(
    CORE + "ConfigMapProjection",
    (
        Field("name", 1, Scalar.STRING, "Name of the ConfigMap, in the Pod's namespace.", within=1),
        Field("items", 2, ListOf(KEY_TO_PATH), "The keys to show; all of them when empty."),
        Field("optional", 4, Scalar.BOOL, "Whether the ConfigMap or its keys may be missing.", pointer=True),
    ),
    "A ConfigMap among other sources.",
)

SERVICE_ACCOUNT_TOKEN_PROJECTION = Message(
    CORE + "ServiceAccountTokenProjection",
    (
        Field("audience", 1, Scalar.STRING, "Who the token is meant for; the API server when empty."),
        Field(
            "expirationSeconds",
            2,
            Scalar.INT64,
            "Wanted lifetime; 3600 seconds when not given, at least 600.",
            pointer=True,
        ),
        Field("path", 3, Scalar.STRING, "Relative path of the file.", required=True),
    ),
    "A token of the Pod's service account, bound to the Pod.",
)

CLUSTER_TRUST_BUNDLE_PROJECTION = Message(
    CORE + "ClusterTrustBundleProjection",
    (
        Field("name", 1, Scalar.STRING, "Name of one bundle; excludes signerName and labelSelector.", pointer=True),
        Field("signerName", 2, Scalar.STRING, "Signer whose bundles are taken; excludes name.", pointer=True),
        Field(
            "labelSelector",
            3,
            LABEL_SELECTOR,
            "Which bundles of the signer; none when not given, all when empty.",
            pointer=True,
        ),
        Field("optional", 5, Scalar.BOOL, "Whether no bundle may be there.", pointer=True),
        Field("path", 4, Scalar.STRING, "Relative path of the file.", required=True),
    ),
    "Trust anchors of the cluster.",
)

POD_CERTIFICATE_PROJECTION = Message(
    CORE + "PodCertificateProjection",
    (
        Field("signerName", 1, Scalar.STRING, "The signer that is asked."),
        Field("keyType", 2, Scalar.STRING, "Algorithm of the key, such as ED25519 or ECDSAP256."),
        Field("maxExpirationSeconds", 3, Scalar.INT32, "Longest lifetime wanted.", pointer=True),
        Field("credentialBundlePath", 4, Scalar.STRING, "File with key and certificates together."),
        Field("keyPath", 5, Scalar.STRING, "File of the key."),
        Field("certificateChainPath", 6, Scalar.STRING, "File of the certificates."),
        Field("userAnnotations", 7, MapOf(Scalar.STRING), "What else the signer is told."),
    ),
    "A private key and its certificate, kept fresh by the node.",
)

VOLUME_PROJECTION = Message(
    CORE + "VolumeProjection",
    (
        Field("secret", 1, SECRET_PROJECTION, "A Secret.", pointer=True),
        Field("downwardAPI", 2, DOWNWARD_API_PROJECTION, "Facts about the Pod.", pointer=True),
        Field("configMap", 3, CONFIG_MAP_PROJECTION, "A ConfigMap.", pointer=True),
        Field(
            "serviceAccountToken",
            4,
            SERVICE_ACCOUNT_TOKEN_PROJECTION,
            "A token of the Pod's service account.",
            pointer=True,
        ),
        Field("clusterTrustBundle", 5, CLUSTER_TRUST_BUNDLE_PROJECTION, "Trust anchors of the cluster.", pointer=True),
        Field("podCertificate", 6, POD_CERTIFICATE_PROJECTION, "A certificate for the Pod.", pointer=True),
    ),
    "One source of a projected volume.",
)

PROJECTED_VOLUME_SOURCE = Message(
    CORE + "ProjectedVolumeSource",
    (
        Field("sources", 1, ListOf(VOLUME_PROJECTION), "The sources.", always=True),
        Field("defaultMode", 2, Scalar.INT32, "Permission bits of the files; 0644 when not given.", pointer=True),
    ),
    "Several sources in one directory.",
)

CSI_VOLUME_SOURCE = Message(
    CORE + "CSIVolumeSource",
    (
        Field("driver", 1, Scalar.STRING, "Name of the driver.", required=True),
        Field("readOnly", 2, Scalar.BOOL, "Whether it is mounted read-only.", pointer=True),
        Field("fsType", 3, Scalar.STRING, "File system to mount; the driver's choice when not given.", pointer=True),
        Field("volumeAttributes", 4, MapOf(Scalar.STRING), "What the driver is told."),
        Field("nodePublishSecretRef", 5, LOCAL_OBJECT_REFERENCE, "Secret that the driver needs.", pointer=True),
    ),
    "A volume that a CSI driver makes for the Pod.",
)

TYPED_LOCAL_OBJECT_REFERENCE = Message(
    CORE + "TypedLocalObjectReference",
    (
        Field("apiGroup", 1, Scalar.STRING, "API group; empty for core.", pointer=True),
        Field("kind", 2, Scalar.STRING, "Kind of the object.", required=True),
        Field("name", 3, Scalar.STRING, "Name of the object.", required=True),
    ),
    "An object of the same namespace and its kind.",
    atomic=True,
)

TYPED_OBJECT_REFERENCE = Message(
    CORE + "TypedObjectReference",
    (
        Field("apiGroup", 1, Scalar.STRING, "API group; empty for core.", pointer=True),
        Field("kind", 2, Scalar.STRING, "Kind of the object.", required=True),
        Field("name", 3, Scalar.STRING, "Name of the object.", required=True),
        Field("namespace", 4, Scalar.STRING, "Namespace of the object, when it is another one.", pointer=True),
    ),
    "An object and its kind.",
)

VOLUME_RESOURCE_REQUIREMENTS = Message(
    CORE + "VolumeResourceRequirements",
    (
        Field("limits", 1, MapOf(Scalar.QUANTITY), "The most it may be."),
        Field("requests", 2, MapOf(Scalar.QUANTITY), "The least it must be."),
    ),
    "How much storage is wanted.",
)

PERSISTENT_VOLUME_CLAIM_SPEC = Message(
    CORE + "PersistentVolumeClaimSpec",
    (
        Field(
            "accessModes",
            1,
            ListOf(Scalar.STRING),
            "How it is to be mounted.",
            enum=("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"),
        ),
        Field("selector", 4, LABEL_SELECTOR, "Which volumes may serve.", pointer=True),
        Field("resources", 2, VOLUME_RESOURCE_REQUIREMENTS, "How much storage is wanted."),
        Field("volumeName", 3, Scalar.STRING, "The volume that serves."),
        Field("storageClassName", 5, Scalar.STRING, "Class of the storage.", pointer=True),
        Field("volumeMode", 6, Scalar.STRING, "Filesystem or Block.", pointer=True, enum=("Block", "Filesystem")),
        Field("dataSource", 7, TYPED_LOCAL_OBJECT_REFERENCE, "What it is filled from.", pointer=True),
        Field(
            "dataSourceRef",
            8,
            TYPED_OBJECT_REFERENCE,
            "What it is filled from, also of other namespaces.",
            pointer=True,
        ),
        Field(
            "volumeAttributesClassName", 9, Scalar.STRING, "Class of attributes that may change later.", pointer=True
        ),
    ),
    "What storage is claimed.",
)

PERSISTENT_VOLUME_CLAIM_TEMPLATE = Message(
    CORE + "PersistentVolumeClaimTemplate",
    (
        Field("metadata", 1, OBJECT_META, "Labels and annotations of the claim."),
        Field("spec", 2, PERSISTENT_VOLUME_CLAIM_SPEC, "What is claimed."),
    ),
    "A claim to be made for the Pod.",
)

EPHEMERAL_VOLUME_SOURCE = Message(
    CORE + "EphemeralVolumeSource",
    (Field("volumeClaimTemplate", 1, PERSISTENT_VOLUME_CLAIM_TEMPLATE, "The claim to make.", pointer=True),),
    "A claim that is made with the Pod and goes with it.",
)

IMAGE_VOLUME_SOURCE = Message(
    CORE + "ImageVolumeSource",
    (
        Field("reference", 1, Scalar.STRING, "Name of the image."),
        Field(
            "pullPolicy", 2, Scalar.STRING, "Always, Never or IfNotPresent.", enum=("Always", "IfNotPresent", "Never")
        ),
    ),
    "The content of a container image.",
)

VOLUME = Message(
    CORE + "Volume",
    (
        Field("name", 1, Scalar.STRING, "Name of the volume, a DNS label and unique in the Pod.", required=True),
        Field("hostPath", 1, HOST_PATH_VOLUME_SOURCE, "A file or directory of the node.", pointer=True, within=2),
        Field(
            "emptyDir", 2, EMPTY_DIR_VOLUME_SOURCE, "A directory that lives as long as the Pod.", pointer=True, within=2
        ),
        Field("secret", 6, SECRET_VOLUME_SOURCE, "Files made of a Secret.", pointer=True, within=2),
        Field("nfs", 7, NFS_VOLUME_SOURCE, "A directory of an NFS server.", pointer=True, within=2),
        Field(
            "persistentVolumeClaim",
            10,
            PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE,
            "Storage that a claim got.",
            pointer=True,
            within=2,
        ),
        Field("downwardAPI", 16, DOWNWARD_API_VOLUME_SOURCE, "Files that tell about the Pod.", pointer=True, within=2),
        Field("configMap", 19, CONFIG_MAP_VOLUME_SOURCE, "Files made of a ConfigMap.", pointer=True, within=2),
        Field("projected", 26, PROJECTED_VOLUME_SOURCE, "Several sources in one directory.", pointer=True, within=2),
        Field("csi", 28, CSI_VOLUME_SOURCE, "A volume that a CSI driver makes for the Pod.", pointer=True, within=2),
        Field(
            "ephemeral",
            29,
            EPHEMERAL_VOLUME_SOURCE,
            "A claim that is made with the Pod and goes with it.",
            pointer=True,
            within=2,
        ),
        Field("image", 30, IMAGE_VOLUME_SOURCE, "The content of a container image.", pointer=True, within=2),
        *IN_TREE_SOURCES.values(),
    ),
    "A directory that containers of the Pod may mount; it has one source.",
)
