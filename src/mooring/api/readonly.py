"""Read-only kinds: they can be read and watched, but not created (docs/adr/0015).

Rules kept here: get, list and watch answer in every form that other kinds have; any other verb is refused with 405. Reasons:
* CustomResourceDefinitions (docs/protocol/openapi.md#clients; kubectl's crd_finder): kubectl looks up a kind that has no PATCH
  with `fieldValidation`, such as a review, among them before it validates the object. An empty list lets kubectl continue; a 404
  makes it fail.
* ReplicationControllers, ReplicaSets and DaemonSets: the e2e binary lists them before any test. Deployments and StatefulSets
  complete the group apps.
* Volumes, claims, Jobs, CronJobs and Ingresses: `kubectl apply --prune` processes a built-in list of kinds, and stops at the first
  that discovery does not name.
* CSIDrivers and RuntimeClasses: a kubelet's informers list and watch them, and log errors without end while that fails.
Objects of these kinds were written to the same store by another server, and are served unchanged. Their schemas here name what
clients ask for, with free-form parts; `mooring.api.storedfields` has all fields, to read what kube-apiserver stored as protobuf.
"""

from __future__ import annotations

from mooring.api import storedfields
from mooring.api.kind import Kind
from mooring.api.meta.printcolumns import CREATED_AT, NAME
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Field, Message, Scalar
from mooring.apimachinery.table import AGE

READ_VERBS = ("get", "list", "watch")

_METADATA = Field("metadata", 1, OBJECT_META, "Standard object metadata.")
_SPEC = Field("spec", 2, Scalar.RAW, "What is wanted.")
_STATUS = Field("status", 3, Scalar.RAW, "What there is.")


_STORED_FIELDS = {
    message.name: message
    for message in (
        storedfields.REPLICATION_CONTROLLER,
        storedfields.PERSISTENT_VOLUME,
        storedfields.PERSISTENT_VOLUME_CLAIM,
        storedfields.DAEMON_SET,
        storedfields.DEPLOYMENT,
        storedfields.REPLICA_SET,
        storedfields.STATEFUL_SET,
        storedfields.CRON_JOB,
        storedfields.JOB,
        storedfields.INGRESS,
        storedfields.RUNTIME_CLASS,
        storedfields.CSI_DRIVER,
    )
}


def _kind(
    schema: Message,
    group: str,
    *short_names: str,
    storage: str,
    namespaced: bool = True,
    categories: tuple[str, ...] = (),
    columns: tuple[Column, ...] = (NAME, AGE),
) -> Kind:
    name = schema.name.rpartition(".")[2]
    singular = name.lower()
    return Kind(
        resource=Resource(
            group=group,
            version="v1",
            kind=name,
            plural=f"{singular}es" if singular.endswith("s") else f"{singular}s",
            singular=singular,
            namespaced=namespaced,
            schema=schema,
            short_names=short_names,
            categories=categories,
            verbs=READ_VERBS,
            columns=columns,
        ),
        storage=f"/registry/{storage}",
        stored_fields=_STORED_FIELDS.get(schema.name),
        name_errors=dns1123_subdomain_errors,
    )


def _spec_and_status(group: str, name: str, doc: str) -> Message:
    """Return the schema of a kind with metadata, spec and status."""
    return Message(f"io.k8s.api.{group.partition('.')[0] or 'core'}.v1.{name}", (_METADATA, _SPEC, _STATUS), doc)


def _workload(group: str, name: str, short_name: str, doc: str, storage: str = "") -> Kind:
    short_names = (short_name,) if short_name else ()
    return _kind(
        _spec_and_status(group, name, doc),
        group,
        *short_names,
        storage=storage or f"{name.lower()}s",
        categories=("all",),
    )


CUSTOM_RESOURCE_DEFINITION = Message(
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    (
        _METADATA,
        Field("spec", 2, Scalar.RAW, "What the kind looks like.", required=True),
        Field("status", 3, Scalar.RAW, "Whether the kind is served."),
    ),
    "A kind that is not built in. This server serves none.",
)

CSI_DRIVER = Message(
    "io.k8s.api.storage.v1.CSIDriver",
    (_METADATA, Field("spec", 2, Scalar.RAW, "What the driver can do.", required=True)),
    "A storage driver of the cluster. This server attaches no volumes.",
)

RUNTIME_CLASS = Message(
    "io.k8s.api.node.v1.RuntimeClass",
    (
        _METADATA,
        Field("handler", 2, Scalar.STRING, "The configuration of the container runtime.", required=True),
        Field("overhead", 3, Scalar.RAW, "What running a Pod costs beside its containers."),
        Field("scheduling", 4, Scalar.RAW, "The nodes that have this runtime."),
    ),
    "A way of running containers that Pods may choose. This server runs none.",
)

KINDS = (
    _workload(
        "", "ReplicationController", "rc", "Keeps Pods of one template running. This server runs none.", "controllers"
    ),
    _kind(
        _spec_and_status("", "PersistentVolume", "A piece of storage. This server attaches none."),
        "",
        "pv",
        storage="persistentvolumes",
        namespaced=False,
    ),
    _kind(
        _spec_and_status("", "PersistentVolumeClaim", "A wish for storage. This server fulfils none."),
        "",
        "pvc",
        storage="persistentvolumeclaims",
    ),
    _kind(
        CUSTOM_RESOURCE_DEFINITION,
        "apiextensions.k8s.io",
        "crd",
        "crds",
        storage="apiextensions.k8s.io/customresourcedefinitions",
        namespaced=False,
        categories=("api-extensions",),
        columns=(NAME, CREATED_AT),
    ),
    _workload("apps", "DaemonSet", "ds", "Keeps one Pod running on each node. This server runs none."),
    _workload("apps", "Deployment", "deploy", "Rolls out Pods of a changing template. This server runs none."),
    _workload("apps", "ReplicaSet", "rs", "Keeps Pods of one template running. This server runs none."),
    _workload("apps", "StatefulSet", "sts", "Keeps Pods with an identity running. This server runs none."),
    _workload("batch", "CronJob", "cj", "Makes Jobs at times. This server runs none."),
    _workload("batch", "Job", "", "Runs Pods until they succeed. This server runs none."),
    _kind(
        _spec_and_status("networking.k8s.io", "Ingress", "A way in from outside. This server routes no traffic."),
        "networking.k8s.io",
        "ing",
        storage="ingress",
    ),
    _kind(RUNTIME_CLASS, "node.k8s.io", storage="runtimeclasses", namespaced=False),
    _kind(CSI_DRIVER, "storage.k8s.io", storage="csidrivers", namespaced=False),
)
